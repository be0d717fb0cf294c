import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_gym.cli import parameters, testing
from nemo_gym.cli.testing import find_servers

PASSING = "def test_nothing():\n    pass\n"
FAILING = "def test_nothing():\n    assert False\n"


def make_server(name: str, *, test: str = PASSING, kind: str = "responses_api_agents") -> Path:
    folder = Path(kind) / name
    (folder / "tests").mkdir(parents=True)
    (folder / "app.py").touch()
    (folder / "README.md").touch()
    (folder / "requirements.txt").touch()
    (folder / "tests" / f"test_{name}.py").write_text(test)
    return folder


def add_data(folder: Path, *, examples: int = 5, counted: int = 5, rollouts: int = 5) -> None:
    (folder / "data").mkdir()
    (folder / "data/example.jsonl").write_text("{}\n" * examples)
    (folder / "data/example_metrics.json").write_text(json.dumps({"Number of examples": counted}))
    (folder / "data/example_rollouts.jsonl").write_text("{}\n" * rollouts)


def test_a_failing_test_is_reported_with_pytests_exit_code(run):
    make_server("broken", test=FAILING)
    ran = run("ng_test", "+entrypoint=responses_api_agents/broken")
    assert ran.code == 1
    assert "1 failed" in ran.out
    assert "responses_api_agents/broken: failed; to investigate: cd " in ran.out


def test_a_server_without_tests_is_told_apart(run):
    folder = make_server("empty")
    (folder / "tests/test_empty.py").unlink()
    ran = run("ng_test", "+entrypoint=responses_api_agents/empty")
    assert ran.code == 5
    assert "responses_api_agents/empty: no tests; " in ran.out


def test_the_folder_under_test_can_be_imported(run):
    folder = make_server(
        "mine", test="from responses_api_agents.mine.app import X\n\ndef test_x():\n    assert X == 1\n"
    )
    (folder / "app.py").write_text("X = 1\n")
    ran = run("ng_test", "+entrypoint=responses_api_agents/mine/")
    assert ran.code == 0, ran.out


def test_valid_example_data_is_accepted(run):
    add_data(make_server("good", kind="resources_servers"))
    ran = run("ng_test", "+entrypoint=resources_servers/good", "+should_validate_data=true")
    assert ran.code == 0, ran.err


def test_each_problem_of_the_example_data_is_named(run):
    folder = make_server("bad", kind="resources_servers")
    add_data(folder, examples=4, counted=3)
    (folder / "data/example_rollouts.jsonl").unlink()
    (folder / "data/train_metrics_conflict.json").touch()
    ran = run("ng_test", "+entrypoint=resources_servers/bad", "+should_validate_data=true")
    assert ran.code == 1
    data = Path.cwd() / folder / "data"
    assert ran.out.splitlines()[-4:] == [
        f"  error: {data}/example.jsonl: has 4 rows, not 5",
        f"  error: {data}/example_rollouts.jsonl: is missing; run ng_collect_rollouts on data/example.jsonl",
        (
            f'  error: {data}/example_metrics.json: has "Number of examples": 3, not 5;'
            " run ng_prepare_data with +mode=example_validation"
        ),
        f"  error: {data}/train_metrics_conflict.json: is an unresolved conflict; compare it and delete it",
    ]


def test_metrics_that_are_no_json_are_a_problem(run):
    folder = make_server("bad", kind="resources_servers")
    add_data(folder)
    (folder / "data/example_metrics.json").write_text("{")
    ran = run("ng_test", "+entrypoint=resources_servers/bad", "+should_validate_data=true")
    assert ran.code == 1
    assert "example_metrics.json: is not JSON (" in ran.out


def test_only_resources_servers_have_example_data(run):
    make_server("agent")
    ran = run("ng_test", "+entrypoint=responses_api_agents/agent", "+should_validate_data=true")
    assert ran.code == 2
    assert "error: responses_api_agents/agent has no example data to validate" in ran.err


def test_an_unknown_server_suggests_a_near_one(run):
    make_server("my_agent")
    ran = run("ng_test", "+entrypoint=responses_api_agents/my_agnet")
    assert ran.code == 1
    assert "error: no folder responses_api_agents/my_agnet in " in ran.err
    assert "'my_agent'" in ran.err


def test_an_entrypoint_that_is_no_server_folder_is_a_usage_error(run):
    ran = run("ng_test", "+entrypoint=somewhere/else")
    assert ran.code == 2
    assert "  entrypoint (expected str or null): " in ran.err


@pytest.fixture
def test_all(workspace, capfd):
    """Test all servers of the workspace, and none of those that are installed, which have tests of their own."""

    def run_tests(**given: object) -> SimpleNamespace:
        capfd.readouterr()
        code = testing.test_folders(find_servers([workspace]), parameters.TestAllConfig.model_validate(given))
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run_tests


def test_all_servers_are_tested_and_summed_up(test_all):
    make_server("good")
    make_server("broken", test=FAILING)
    make_server("hidden").joinpath("README.md").unlink()
    ran = test_all()
    assert ran.code == 1
    assert "responses_api_agents/good    passed" in ran.out
    assert "responses_api_agents/broken  failed" in ran.out
    assert "1 of 2 passed (50%)" in ran.out
    assert "warning: responses_api_agents/hidden: not tested; write a README.md" in ran.out


def test_shards_divide_the_servers(test_all):
    for name in ("one", "two", "three"):
        make_server(name)
    tested = [test_all(num_shards=2, shard_index=index).out for index in range(2)]
    assert [output.count(" passed  ") for output in tested] == [2, 1]


def test_a_shard_that_does_not_exist_is_a_usage_error(run):
    ran = run("ng_test_all", "+num_shards=2", "+shard_index=2")
    assert (ran.code, ran.err) == (2, "error: shard_index=2 is not below num_shards=2\n")


def test_servers_without_readme_can_be_made_a_failure(test_all):
    make_server("hidden").joinpath("README.md").unlink()
    assert test_all().code == 0
    assert test_all(fail_on_total_and_test_mismatch=True).code == 1


def test_bad_example_data_fails_the_server(test_all):
    make_server("dataless", kind="resources_servers")
    ran = test_all()
    assert ran.code == 1
    assert "bad data" in ran.out
    assert "example.jsonl: is missing; write five tasks" in ran.out


def test_without_an_entrypoint_all_servers_are_tested(run):
    ran = run("ng_test", "+num_shards=1", "+shard_index=1")
    assert (ran.code, ran.err) == (2, "error: shard_index=1 is not below num_shards=1\n")


def test_the_packages_of_a_server_are_listed(run):
    make_server("mine")
    ran = run("ng_pip_list", "+entrypoint=responses_api_agents/mine", "+format=json")
    assert ran.code == 0, ran.err
    assert "pydantic" in {package["name"] for package in json.loads(ran.out)}


def make_environment(name: str) -> Path:
    """Make what looks like a finished virtual environment of a server; its Python says so and lets ours do the work."""
    home = Path("environments/venvs") / f"{name}-0123456789ab"
    (home / "bin").mkdir(parents=True)
    python = home / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "this is the Python of {name}"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (home / ".complete").touch()
    return home


def test_the_packages_of_a_server_are_those_of_its_own_environment(run):
    (make_server("mine") / "requirements.txt").write_text("a-package-that-nobody-has==1.0\n")
    make_environment("mine")
    ran = run("ng_pip_list", "+entrypoint=responses_api_agents/mine", "+uv_venv_dir=environments", "+format=freeze")
    assert ran.code == 0
    assert ran.out.startswith("this is the Python of mine\n")


def test_environments_are_deleted_on_request(test_all):
    make_server("mine")
    mine, other = make_environment("mine"), make_environment("other")
    assert test_all(uv_venv_dir="environments", delete_venvs_after_each_test=True).code == 0
    assert not mine.exists()
    assert other.exists()


def test_a_server_whose_environment_was_never_built_has_no_packages(run):
    (make_server("mine") / "requirements.txt").write_text("a-package-that-nobody-has==1.0\n")
    ran = run("ng_pip_list", "+entrypoint=responses_api_agents/mine", "+uv_venv_dir=environments")
    assert ran.code == 1
    assert "error: responses_api_agents/mine needs its own virtual environment, which has not been built yet" in ran.err


def test_the_project_is_tested_where_it_stands(run):
    make_server("good")
    ran = run("ng_dev_test")
    assert ran.code == 0, ran.out + ran.err
    assert "1 passed" in ran.out


def test_the_project_test_takes_no_parameters(run):
    ran = run("ng_dev_test", "+x=1")
    assert ran.code == 2
    assert ran.err.startswith("error: ng_dev_test takes no parameters")
