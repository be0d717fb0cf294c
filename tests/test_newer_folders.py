"""Folders written for NeMo Gym 0.7.0, copied as they are: the same rewards wherever their servers run."""

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.forked_commands import ForkedCommands
from tests.ports import free_port

if TYPE_CHECKING:
    from conftest import MockModel

FOREIGN = Path(__file__).parent / "foreign_newer"
CONFIGS = "+config_paths=[config.yaml,responses_api_models/openai_model/configs/openai_model.yaml]"
ISOLATED = [
    f"++{name}.{kind}.{folder}.isolation=process"
    for kind, folder, name in (
        ("resources_servers", "bell_tower", "bell_tower"),
        ("responses_api_agents", "turn_agent", "turn_agent"),
        ("environment_servers", "quiet_turn", "quiet_turn"),
    )
]


@pytest.fixture
def project(tmp_path: Path, mock_model: "MockModel") -> Path:
    shutil.copytree(FOREIGN, tmp_path, dirs_exist_ok=True)
    (tmp_path / "env.yaml").write_text(
        f"policy_base_url: {mock_model.base_url}\npolicy_api_key: none\npolicy_model_name: mock\n"
        f"head_server: {{port: {free_port()}}}\n"
    )
    return tmp_path


def environment(project: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM_", "PYTEST_"))}
    return inherited | {"XDG_RUNTIME_DIR": str(project)}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def collect(commands: ForkedCommands, project: Path, *more: str) -> list[tuple[Any, ...]]:
    command = ["ng_collect_rollouts", "+input_jsonl_fpath=tasks.jsonl", "+num_repeats=2"]
    command += ["+output_jsonl_fpath=results/rollouts.jsonl", *more]
    ran = commands.run(*command, folder=project, environment=environment(project))
    assert ran.code == 3, ran.err  # the task without data is a failure, and the rest is complete
    assert "2 rollouts without a measurement" in ran.err
    check_failures(read(project / "results" / "rollouts_failures.jsonl"))
    check_metrics(project / "results" / "rollouts_aggregate_metrics.json")
    rows = read(project / "results" / "rollouts.jsonl")
    return sorted(
        (
            row["_ng_task_index"],
            row["agent_ref"]["name"],
            row.get("_ng_environment_server"),
            row["reward"],
            row["mask_sample"],
            row["rung"],
        )
        for row in rows
    )


def check_failures(failures: list[dict[str, Any]]) -> None:
    assert {row["_ng_task_index"] for row in failures} == {4}, failures
    for row in failures:
        assert row["_ng_failure_class"] == "environment_server_failed"
        assert row["_ng_failure_stage"] == "seed"
        assert row["_ng_task_id"] == {"taskset": "bell_tower:chimes", "task_id": "none"}


def check_metrics(path: Path) -> None:
    simple, turn = json.loads(path.read_bytes())
    assert simple["key_metrics"]["mean/reward"] == turn["key_metrics"]["mean/reward"] == 1.0
    coverage = {name: value for name, value in simple["key_metrics"].items() if name.startswith("coverage/")}
    assert coverage == {
        "coverage/measured_rollouts": 4,
        "coverage/masked_rollouts": 2,
        "coverage/measured_tasks": 2,
        "coverage/fully_masked_tasks": 1,
    }
    assert not any(name.startswith("coverage/") for name in turn["key_metrics"])
    assert "mean/mask_sample" not in simple["agent_metrics"]


def expected() -> list[tuple[Any, ...]]:
    simple, turn = ("bell_tower_simple_agent", None), ("turn_agent", "quiet_turn")
    tasks = [(0, *simple, 1.0, False, 2), (1, *simple, 1.0, True, 3), (2, *simple, 1.0, False, 1)]
    return [row for row in [*tasks, (3, *turn, 1.0, False, 4)] for _ in range(2)]


@pytest.mark.parametrize("more", [[], ["+workers=2"], ISOLATED], ids=["one process", "workers", "isolated"])
def test_newer_folders_earn_the_same_rewards_everywhere(
    commands: ForkedCommands, project: Path, more: list[str]
) -> None:
    assert collect(commands, project, CONFIGS, *more) == expected()


def test_newer_folders_earn_the_same_rewards_through_ng_run(commands: ForkedCommands, project: Path) -> None:
    with commands.start("ng_run", CONFIGS, folder=project, environment=environment(project)) as gym:
        gym.read_until("servers ready!")
        assert collect(commands, project) == expected()
        assert gym.interrupt().code == 0


def test_an_episode_keeps_what_its_agent_observed(commands: ForkedCommands, project: Path) -> None:
    collect(commands, project, CONFIGS)
    [first, _] = [row for row in read(project / "results" / "rollouts.jsonl") if row["_ng_task_index"] == 3]
    assert first["_ng_task_id"] == {"taskset": "bell_tower:chimes", "task_id": "four"}
    assert first["_ng_result_type"] == "quiet_turn"
    assert first["rollout_id"].startswith("3-")
    observed = first["ng_agent_observations"]["records"]
    assert [record["kind"] for record in observed] == ["agent_invocation", "tool_call"]


def test_rows_are_routed_as_the_configuration_says(commands: ForkedCommands, project: Path) -> None:
    lost = {"task_id": {"taskset": "lost", "task_id": "1"}, "task_input": {}}
    (project / "lost.jsonl").write_text(json.dumps(lost) + "\n")
    run = ["ng_collect_rollouts", CONFIGS, "++input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=results/r.jsonl"]
    for more, message in (
        (["+environment_routing_mode=taskset"], "rows [0, 1, 2] (counted from 0) have no environment server"),
        (["++input_jsonl_fpath=lost.jsonl"], "rows [0] (counted from 0) have no environment server"),
        (["+num_repeats_add_seed=true"], "rows [3, 4] (counted from 0) are whole tasks"),
        (["+environment_routing_mode=legacy"], "'environment_server_name' is None"),
        (["+environment_routing_mode=legacy", "+environment_server_name=quiet"], "there is no environment server"),
    ):
        ran = commands.run(*run, *more, folder=project, environment=environment(project))
        assert message in ran.err, ran.err


def test_legacy_routing_sends_all_flat_rows_to_one_environment_server(commands: ForkedCommands, project: Path) -> None:
    tasks = (project / "tasks.jsonl").read_text("utf-8").splitlines()[:3]
    (project / "flat.jsonl").write_text("\n".join(tasks) + "\n")
    ran = commands.run(
        *("ng_collect_rollouts", CONFIGS, "+input_jsonl_fpath=flat.jsonl", "+output_jsonl_fpath=results/r.jsonl"),
        *("+environment_routing_mode=legacy", "+environment_server_name=bell_tower_environment_server"),
        folder=project,
        environment=environment(project),
    )
    assert ran.code == 0, ran.err
    rows = read(project / "results" / "r.jsonl")
    assert {row["_ng_environment_server"] for row in rows} == {"bell_tower_environment_server"}
    assert [row["rung"] for row in sorted(rows, key=lambda row: row["_ng_task_index"])] == [2, 3, 1]
