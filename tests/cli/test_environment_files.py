"""An environment in one file, in every command: hosted, checked, validated, run elsewhere, and moved to a folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import nemo_gym
from nemo_gym.config.short_names import find_environment
from nemo_gym.errors import UsageError
from tests.forked_commands import ForkedCommands
from tests.ports import free_port

LETTERS = """\
import nemo_gym

WORDS = ("strawberry", "error", "a", "mirror", "river", "red")
letters = nemo_gym.Environment(
    tasks=[{"prompt": f"How many r are in {word}?", "word": word, "expected": word.count("r")} for word in WORDS],
    max_steps=3,
)


@letters.setup
def start(task):
    return {"calls": 0}


@letters.tool
def spell(word: str, state) -> list[str]:
    "Spell a word, letter by letter."
    state["calls"] += 1
    return list(word)


@letters.verify
def score(task, response, state):
    solved = response.text.strip().endswith(str(task["expected"]))
    return {"reward": float(solved or len(task["word"]) > 5), "calls": state["calls"]}
"""
STATELESS = LETTERS.replace("(task, response, state)", "(task, response)").replace(', "calls": state["calls"]', "")
STATELESS = "".join(part for part in STATELESS.split("@") if not part.startswith(("letters.setup", "letters.tool")))
STATELESS = STATELESS.replace("letters.verify", "@letters.verify")
FILE = "resources_servers.environment_file"


@pytest.fixture
def letters(workspace: Path) -> Path:
    path = workspace / "letters.py"
    path.write_text(LETTERS)
    return path


def to(mock_model: Any) -> tuple[str, ...]:
    return ("--model", "openai:mock", "--model-url", mock_model.base_url, "--model-api-key", "none")


def rewards(path: str | Path) -> dict[str, float]:
    return {rollout.task["word"]: rollout.reward for rollout in nemo_gym.load(path)}


EXPECTED = {"strawberry": 1.0, "error": 0.0, "a": 0.0, "mirror": 1.0, "river": 0.0, "red": 0.0}


# ---- naming ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("named", ["letters.py", "./letters.py", "gym.yaml", "folder", "resources_servers/letters"])
def test_an_environment_is_named_alike_in_every_command(run, letters, named):
    dumped = yaml.safe_load(run("ng_dump_config", "letters.py", "--model", "local").out)
    Path("gym.yaml").write_text(json.dumps({name: dumped[name] for name in ("letters", "letters_agent")}))
    for folder in ("folder", "resources_servers/letters/configs"):
        Path(folder).mkdir(parents=True)
    Path("folder/config.yaml").write_text(Path("gym.yaml").read_text())
    Path("resources_servers/letters/configs/letters.yaml").write_text(Path("gym.yaml").read_text())
    ran = run("ng_validate", named, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["servers"] == ["letters", "letters_agent"]
    assert yaml.safe_load(run("ng_dump_config", named, "--model", "local").out)["letters"]["resources_servers"]
    assert run("ng_prefetch", named).code == 0


def test_several_environments_are_hosted_together_but_collected_one_by_one(run, letters):
    Path("anagrams.py").write_text(LETTERS)
    assert json.loads(run("ng_validate", "letters.py", "anagrams.py", "--json").out)["servers"] == [
        *("letters", "letters_agent"),
        *("anagrams", "anagrams_agent"),
    ]
    ran = run("ng_collect_rollouts", "letters.py", "anagrams.py", "--model", "local")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: 2 environments are named")


def test_names_and_listed_files_are_not_mixed(run, letters):
    ran = run("ng_validate", "letters.py", "+config_paths=[a.yaml]")
    assert ran.code == 2
    assert "by name (letters.py) and by +config_paths" in ran.err


def test_a_folder_with_several_configurations_lists_them(workspace):
    for name in ("easy", "hard"):
        Path("tasks/configs").mkdir(parents=True, exist_ok=True)
        Path(f"tasks/configs/{name}.yaml").touch()
    with pytest.raises(UsageError, match="tasks has several configurations") as refused:
        find_environment("tasks")
    assert "easy.yaml" in (refused.value.hint or "")


# ---- checking --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("word", ["letters.py", "+entrypoint=letters.py"])
def test_a_file_is_played_like_a_folder(run, letters, word):
    ran = run("ng_check_environment", word, "+json=true")
    [report] = json.loads(ran.out)
    assert (ran.code, report["rows"]) == (0, 6), ran.out
    assert {player["player"] for player in report["players"]} == {"silent", "talking", "random", "scripted"}


def test_tasks_of_a_file_can_be_limited_or_replaced(run, letters):
    Path("own.jsonl").write_text(
        json.dumps({"responses_create_params": {"input": "?"}, "word": "b", "expected": 0}) + "\n"
    )
    for more, rows in ((["--limit", "2"], 2), (["--input", "own.jsonl"], 1)):
        [report] = json.loads(run("ng_check_environment", "letters.py", *more, "--json").out)
        assert report["rows"] == rows


def test_a_name_is_played_as_its_folder_is(run):
    by_name, by_folder = (
        json.loads(run("ng_check_environment", word, "--json").out)[0]
        for word in ("calculator", "resources_servers/calculator")
    )
    assert {player["player"] for player in by_name["players"]} >= {"recorded"}
    assert by_name["players"] == by_folder["players"]


WRONG = {
    "tools": ("    return list(word)", "    raise ValueError('no letters')", "fail"),
    "rewards": ("float(solved", "2 * float(solved", "reward"),
}


@pytest.mark.parametrize("problem", ["tools", "rewards"])
def test_what_is_wrong_in_a_file_is_found(run, letters, problem):
    old, new, found = WRONG[problem]
    letters.write_text(LETTERS.replace(old, new))
    ran = run("ng_check_environment", "letters.py", "--json")
    [report] = json.loads(ran.out)
    assert any(found in finding["message"] for finding in report["findings"]), report["findings"]


# ---- hosting ---------------------------------------------------------------------------------------------------------
ISOLATED, SEVERAL = f"++letters.{FILE}.isolation=process", f"++letters.{FILE}.num_workers=2"


@pytest.mark.parametrize(("code", "isolation"), [(LETTERS, ""), (LETTERS, ISOLATED), (STATELESS, SEVERAL)])
def test_two_terminals_give_the_same_rewards(letters, commands: ForkedCommands, mock_model, code, isolation):
    letters.write_text(code)
    head = f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"
    with commands.start("ng_run", "letters.py", *to(mock_model), head, *filter(None, [isolation])) as gym:
        gym.read_until("Ctrl-C stops everything")
        output = ("--output", "results/letters.jsonl")
        ran = commands.run("ng_collect_rollouts", "letters.py", *to(mock_model), *output, head, "+serve=false")
        assert ran.code == 0, ran.err
        assert gym.interrupt().code == 0
    assert rewards("results/letters.jsonl") == EXPECTED


@pytest.mark.parametrize(("code", "option"), [(LETTERS, "+workers=2"), (LETTERS, ISOLATED), (STATELESS, SEVERAL)])
def test_one_command_gives_the_same_rewards_wherever_the_file_runs(letters, commands, mock_model, code, option):
    letters.write_text(code)
    ran = commands.run("ng", "eval", "run", "letters.py", *to(mock_model), option, "--output", "letters.jsonl")
    assert ran.code == 0, ran.err
    assert rewards("letters.jsonl") == EXPECTED


@pytest.mark.parametrize("option", ["+num_samples_in_parallel=1", "+workers=2", ISOLATED])
def test_wherever_rollouts_run_garbage_is_collected_as_seldom_as_in_the_command(letters, commands, mock_model, option):
    letters.write_text(
        LETTERS.replace("float(solved or len(task", "gc.get_threshold()[0], 'x': (len(task").replace(
            "import nemo_gym", "import gc\n\nimport nemo_gym", 1
        )
    )
    ran = commands.run("ng", "eval", "run", "letters.py", *to(mock_model), option, "--output", "letters.jsonl")
    assert ran.code == 0, ran.err
    assert set(rewards("letters.jsonl").values()) == {20_000.0}


def test_a_state_is_not_spread_over_processes(letters, commands, mock_model):
    ran = commands.run("ng", "eval", "run", "letters.py", *to(mock_model), SEVERAL, "--output", "letters.jsonl")
    assert ran.code == 1
    assert "letters: num_workers would spread the calls of a rollout" in ran.err


# ---- moving to a folder ----------------------------------------------------------------------------------------------
def collected(commands: ForkedCommands, mock_model: Any, output: str, *words: str) -> tuple[dict[str, float], Any]:
    ran = commands.run("ng", "eval", "run", *words, *to(mock_model), "--output", output)
    assert ran.code == 0, ran.err
    return rewards(output), json.loads(ran.out.partition(":\n")[2])


def test_a_folder_made_from_a_file_gives_the_same_rewards_and_metrics(letters, commands, mock_model):
    Path("counting.py").write_text("def count(word):\n    return word.count('r')\n")
    letters.write_text("from counting import count\n" + LETTERS.replace('word.count("r")', "count(word)"))
    by_file = collected(commands, mock_model, "file.jsonl", "letters.py")
    ran = commands.run("ng_init_resources_server", "+from=letters.py")
    assert ran.code == 0, ran.err
    folder = Path("resources_servers/letters")
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        *("app.py", "environment.py", "counting.py", "requirements.txt", "README.md", "tests/test_app.py"),
        *("configs/letters.yaml", "data/.gitignore", "data/train.jsonl", "data/example.jsonl"),
    }
    train, example = (folder.joinpath("data", name).read_text() for name in ("train.jsonl", "example.jsonl"))
    assert example == "".join(train.splitlines(keepends=True)[:5])
    config = yaml.safe_load((folder / "configs/letters.yaml").read_text())
    assert config["letters_simple_agent"]["responses_api_agents"]["simple_agent"]["max_steps"] == 3
    letters.unlink()
    Path("counting.py").unlink()
    rows = ("--input", str(folder / "data/train.jsonl"))
    assert collected(commands, mock_model, "folder.jsonl", "letters", *rows) == by_file
    apart = "++letters_resources_server.resources_servers.letters.isolation=process"
    assert collected(commands, mock_model, "apart.jsonl", str(folder), *rows, apart) == by_file
    assert by_file[0] == EXPECTED
    ran = commands.run("ng_test", f"+entrypoint={folder}")
    assert ran.code == 0, ran.out + ran.err
    assert "11 passed" in ran.out


def test_a_server_class_in_a_file_becomes_a_folder_too(workspace, commands):
    Path("shop.py").write_text(
        "from nemo_gym import BaseResourcesServerConfig, SimpleResourcesServer\n\n\n"
        "class Shop(SimpleResourcesServer):\n    config: BaseResourcesServerConfig\n\n"
        "    def verify(self, task, response):\n        return 0.5\n"
    )
    assert commands.run("ng", "env", "init", "--from", "shop.py", "--resources-server", "store").code == 0
    ran = commands.run("ng_test", "+entrypoint=resources_servers/store")
    assert ran.code == 0, ran.out + ran.err


def test_what_a_folder_is_made_from_is_said_once(run, letters):
    for words, message in (
        (["+from=letters.py", "+template=tools"], "+from and +template both say"),
        (["+from=letters.py", "+entrypoint=benchmarks/x"], "+from is for resources servers"),
        (["+from=lettres.py"], "lettres.py: no such file"),
        ([], "missing parameters: entrypoint"),
    ):
        ran = run("ng_init_resources_server", *words)
        assert ran.code in (1, 2)
        assert message in ran.err
    assert not Path("resources_servers").exists()


# ---- mistakes --------------------------------------------------------------------------------------------------------
HEAD = "import nemo_gym\nmine = nemo_gym.Environment(tasks=[{'prompt': '?'}])\n"
VERIFY = "mine.verify(lambda task, response: 1.0)\n"
MISTAKES = {
    "a misspelt file": ("lettres.py", None, "lettres.py: no such file", "did you mean letters.py?"),
    "no such file": ("zodiac.py", None, "zodiac.py: no such file", "name a Python file that defines"),
    "a misspelt name": (
        "calculater",
        None,
        "no environment or benchmark is called calculater",
        "did you mean calculator",
    ),
    "an empty folder": ("empty", None, "the folder empty has no configuration", "write empty/configs/empty.yaml"),
    "no environment": ("mine.py", "x = 1", "mine.py defines no environment", "write one: environment = nemo_gym"),
    "two environments": ("mine.py", HEAD + VERIFY + "more = nemo_gym.Environment()", "defines 2 environments", "own"),
    "no verify": ("mine.py", HEAD, "the environment mine has no verify function", "decorate a function with"),
    "no tasks": (
        "mine.py",
        HEAD.replace("{'prompt': '?'}", "") + VERIFY,
        "the environment mine has no tasks",
        "--input",
    ),
    "no prompt": (
        "mine.py",
        HEAD.replace("prompt", "text") + VERIFY,
        "task 1 has no field 'prompt'",
        "give every task",
    ),
    "a tool without names": (
        "mine.py",
        HEAD + VERIFY + "@mine.tool\ndef add(*numbers: int): ...",
        "mine.py:4: tool add: a model can't name the parameter *numbers: int",
        "give it a plain name",
    ),
    "a tool that is a route": (
        "mine.py",
        HEAD + VERIFY + "@mine.tool\ndef verify(text: str): ...",
        "mine.py:4: a tool can't be called 'verify'",
        "rename it",
    ),
    "a type that has no schema": (
        "mine.py",
        HEAD + VERIFY + "class Box: ...\n@mine.tool\ndef put(box: Box): ...",
        "tool put: ",
        "annotate",
    ),
    "a file that fails": ("mine.py", HEAD + VERIFY + "1 / 0", "mine.py:4: ZeroDivisionError", "correct the file"),
}


@pytest.mark.parametrize(("named", "code", "message", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_every_mistake_is_one_sentence_and_what_to_do(run, letters, named, code, message, hint):
    Path("empty").mkdir()
    if code is not None:
        Path(named).write_text(code)
    ran = run("ng_check_environment", named)
    assert ran.code in (1, 2)
    error, _, advice = ran.err.partition("\n\nhint: ")
    assert message in error.removeprefix("error: ")
    assert "\n" not in error
    assert hint in advice
