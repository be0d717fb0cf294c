from pathlib import Path

import pytest

from nemo_gym.data.task_folders import TaskFolder, find_task_folders, is_folder_of_tasks, read_task_folder, resolved
from nemo_gym.data.task_worlds import TaskWorld, plan_world
from nemo_gym.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "resources_servers" / "task_folder" / "data" / "example"


def make(folder: Path, toml: str = "", dockerfile: str | None = "FROM debian:12\n", **files: str) -> TaskFolder:
    for path, text in {"task.toml": toml, "instruction.md": "Do it.", "tests/test.sh": "exit 0", **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    if dockerfile is not None:
        (folder / "environment").mkdir(exist_ok=True)
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    return read_task_folder(folder)


def plan(task: TaskFolder, where: str = "auto") -> TaskWorld | list[str]:
    return plan_world(task, where=where, engine=None, image="debian", environment={})  # type: ignore[arg-type]


def test_the_examples_run_on_this_machine_without_an_engine() -> None:
    folders = find_task_folders(EXAMPLES)
    assert len(folders) == 10
    for folder in folders:
        assert isinstance(plan(read_task_folder(folder)), TaskWorld), folder


def test_folders_are_found_at_any_depth_and_one_may_be_named_itself(tmp_path: Path) -> None:
    make(tmp_path / "set" / "b")
    make(tmp_path / "set" / "more" / "a", **{"environment/task.toml": "part of a task"})
    assert [each.name for each in find_task_folders(tmp_path)] == ["b", "a"]
    assert find_task_folders(tmp_path / "set" / "b") == [tmp_path / "set" / "b"]
    assert not is_folder_of_tasks(tmp_path / "set" / "b" / "tests")
    with pytest.raises(ConfigError, match=r"no task\.toml in it or below"):
        find_task_folders(tmp_path / "set" / "b" / "tests")


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ('[[steps]]\nname = "one"\n', "several steps in one task"),
        ('[verifier]\nenvironment_mode = "separate"\n', "a separate environment for the verifier"),
        ("[verifier.environment]\ncpus = 1\n", "a separate environment for the verifier"),
        ('[[verifier.collect]]\ncommand = "x"\n', "collect"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n', "an allow-list of hosts"),
        ('[environment]\nnetwork_mode = "public"\n', "public network"),
        ("[environment]\nallow_internet = true\n", "public network"),
        ('[agent]\nnetwork_mode = "allowlist"\n', "an allow-list of hosts"),
        ('[environment]\nos = "windows"\n', "windows"),
        ("[environment]\ngpus = 1\n", "GPUs"),
        ('[[environment.mcp_servers]]\nname = "x"\nurl = "http://x"\n', "MCP servers"),
        ('[environment]\nskills_dir = "/skills"\n', "skills"),
        ('[environment]\nenv = { KEY = "${SUITE_KEY}" }\n', "SUITE_KEY is not set"),
        ('[environment]\ndocker_image = "their/image:1"\n', "needs the image their/image:1"),
    ],
)
def test_what_can_not_be_given_is_refused_with_a_reason(tmp_path: Path, toml: str, reason: str) -> None:
    found = plan(make(tmp_path, toml))
    assert isinstance(found, list)
    assert reason in "; ".join(found)


@pytest.mark.parametrize(
    ("dockerfile", "reason"),
    [
        ("FROM debian\nRUN apt-get install -y git\n", "needs a network"),
        ("FROM nvidia/cuda:12\n", "made from nvidia/cuda:12"),
        ("FROM python:2.7\nFROM debian\n", "several stages"),
        ("FROM python:3.4-slim\n", "needs Python 3.4"),
    ],
)
def test_a_dockerfile_that_needs_an_engine_says_why(tmp_path: Path, dockerfile: str, reason: str) -> None:
    for where in ("auto", "namespaces"):
        found = plan(make(tmp_path, dockerfile=dockerfile), where)
        assert isinstance(found, list)
        assert reason in "; ".join(found)


def test_several_services_are_refused(tmp_path: Path) -> None:
    task = make(tmp_path, **{"environment/docker-compose.yaml": "services: {}"})
    assert task.unsupported() == ["several services (docker-compose) are not supported"]


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("[agent\n", "task.toml"),
        ("[agent]\ntimeout_sec = -1\n", "agent.timeout_sec"),
        ('[environment]\nmemory = "much"\n', "task.toml"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, toml: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make(tmp_path, toml)


def test_a_task_without_tests_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "tests" / "test.sh").unlink()
    with pytest.raises(ConfigError, match=r"there is no tests/test\.sh"):
        read_task_folder(tmp_path)


def test_older_names_and_canaries_are_understood(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "1.5G"\nstorage = "512M"\n'
    task = make(tmp_path, toml, **{"instruction.md": "<!-- the canary GUID 123 -->\n\n# Title\nDo it.\n"})
    asked = task.settings.environment
    assert (task.settings.schema_version, asked.memory_mb, asked.storage_mb) == ("1.0", 1536, 512)
    assert task.instruction == "# Title\nDo it."


def test_variables_come_from_the_environment_or_their_defaults() -> None:
    given = {"A": "${HOME_OF_A}/x", "B": "${NONE:-other}", "C": "plain $HOME"}
    assert resolved(given, {"HOME_OF_A": "/a"}) == {"A": "/a/x", "B": "other", "C": "plain $HOME"}


def test_the_format_own_library_reads_the_examples_in_the_same_way() -> None:
    theirs = pytest.importorskip("harbor.models.task.task")
    for folder in find_task_folders(EXAMPLES):
        assert theirs.Task.is_valid_dir(folder), folder
        task, own = theirs.Task(folder), read_task_folder(folder)
        asked, config = own.settings.environment, task.config
        assert task.instruction.strip() == own.instruction
        assert (config.environment.memory_mb, config.environment.storage_mb) == (asked.memory_mb, asked.storage_mb)
        assert config.verifier.timeout_sec == own.settings.verifier.timeout_sec
        assert (config.environment.env, config.solution.env) == (asked.env, own.settings.solution.env)
