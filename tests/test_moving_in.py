"""Folders that other people wrote, copied as they are: the same rewards wherever their servers run."""

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

FOREIGN = Path(__file__).parent / "foreign"
CONFIGS = "+config_paths=[config.yaml,responses_api_models/openai_model/configs/openai_model.yaml]"
ISOLATED = [
    f"++{name}.{kind}.{folder}.isolation=process"
    for kind, folder, names in (
        ("resources_servers", "word_ledger", ["word_ledger"]),
        ("resources_servers", "letter_ledger", ["letter_ledger"]),
        ("responses_api_agents", "careful_agent", ["word_agent", "letter_agent"]),
    )
    for name in names
]


@pytest.fixture
def project(tmp_path: Path, mock_model: "MockModel") -> Path:
    """A user's project: the copied folders, and an env.yaml that names the model."""
    shutil.copytree(FOREIGN, tmp_path, dirs_exist_ok=True)
    (tmp_path / "env.yaml").write_text(
        f"policy_base_url: {mock_model.base_url}\npolicy_api_key: none\npolicy_model_name: mock\n"
        f"head_server: {{host: 127.0.0.1, port: {free_port()}}}\n"
    )
    return tmp_path


def environment(project: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM_", "PYTEST_"))}
    return inherited | {"XDG_RUNTIME_DIR": str(project)}


def collect(commands: ForkedCommands, project: Path, *more: str) -> list[tuple[Any, ...]]:
    """Collect two rollouts of every task; what each of them came to."""
    command = ["ng_collect_rollouts", "+input_jsonl_fpath=tasks.jsonl", "+num_repeats=2"]
    command += ["+output_jsonl_fpath=results/rollouts.jsonl", *more]
    ran = commands.run(*command, folder=project, environment=environment(project))
    assert ran.code == 3, ran.err  # the task whose judge fails is a failure, and the rest is complete
    rows = [json.loads(line) for line in (project / "results" / "rollouts.jsonl").read_text("utf-8").splitlines()]
    failures = (project / "results" / "rollouts_failures.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["_ng_failure_class"] for line in failures} == {"judge_failed"}
    return sorted(
        (
            row["_ng_task_index"],
            row["_ng_rollout_index"],
            row["reward"],
            json.dumps(row["reward_components"]),
            row["rollout_id"],
            row["words"],
            next(item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"),
        )
        for row in rows
    )


def expected() -> list[tuple[Any, ...]]:
    tools = ['{"entry":"San Francisco is cold","words":4}', '{"entry":"San Francisco is icy","words":21}']
    components = '{"kept": 1.0, "answered": 1.0}'
    return [
        (task, rollout, 1.0, components, f"{task}-{rollout}", 2, tools[task % 2])
        for task in range(4)
        for rollout in range(2)
    ]


@pytest.mark.parametrize("more", [[], ["+workers=2"], ISOLATED], ids=["one process", "workers", "isolated"])
def test_foreign_folders_earn_the_same_rewards_everywhere(
    commands: ForkedCommands, project: Path, more: list[str]
) -> None:
    assert collect(commands, project, CONFIGS, *more) == expected()
    if not more:
        check_that_scoring_again_has_to_be_forced(commands, project)


def test_foreign_folders_earn_the_same_rewards_through_ng_run(commands: ForkedCommands, project: Path) -> None:
    with commands.start("ng_run", CONFIGS, folder=project, environment=environment(project)) as gym:
        gym.read_until("servers ready!")
        assert collect(commands, project) == expected()
        assert gym.interrupt().code == 0


def check_that_scoring_again_has_to_be_forced(commands: ForkedCommands, project: Path) -> None:
    command = ["ng_reverify", CONFIGS, "+input=results/rollouts.jsonl", "+output=results/again.jsonl"]
    refused = commands.run(*command, folder=project, environment=environment(project))
    assert "does not support scoring saved rollouts" in refused.err
    forced = commands.run(*command, "+force=true", folder=project, environment=environment(project))
    assert "does not support scoring saved rollouts" not in forced.err
    assert (project / "results" / "again.jsonl").exists()
