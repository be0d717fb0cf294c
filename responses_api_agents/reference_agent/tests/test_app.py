from pathlib import Path

import pytest

import nemo_gym

TASK = Path(__file__).parents[3] / "resources_servers" / "task_folder" / "data" / "example" / "hello-file"


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nothing", 0.0)])
def test_plays_the_solution_or_nothing(agent: str, reward: float, tmp_path: Path) -> None:
    (rollout,) = nemo_gym.collect(tasks=TASK, agent=agent, output=tmp_path / "rollouts.jsonl")
    assert (rollout.reward, rollout.text, rollout.tool_calls) == (reward, "", [])
