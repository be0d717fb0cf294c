"""A whole collection against an endpoint that misbehaves: every rollout is completed or recorded, none is lost."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.parse import parse_config
from nemo_gym.io.files import RunFiles
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.store.outcome import Failed, PlannedRollout
from nemo_gym.rollouts.tally import Summary
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.http.deadlines import not_counted

ENVIRONMENT = "resources_servers/example_single_tool_call"
AGENT = "example_single_tool_call_simple_agent"
CONFIGS = (
    f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
)
REPEATS = 8


async def collect(mock_model: Any, output: Path, *, timeout_s: float = 60, **parameters: Any) -> Summary:
    """Collect 40 rollouts with a model server that does not try again by itself, so that the collection has to."""
    policy = [f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    model = "policy_model.responses_api_models.openai_model"
    settings = [f"++{model}.max_retries=0", f"++{model}.request_timeout_s={timeout_s:g}"]
    config = RolloutCollectionConfig.model_validate(
        {
            "agent_name": AGENT,
            "input_jsonl_fpath": f"{ENVIRONMENT}/data/example.jsonl",
            "output_jsonl_fpath": str(output),
            "num_repeats": REPEATS,
            "num_samples_in_parallel": 10,
            **parameters,
        }
    )
    async with host_gym(parse_config([f"+config_paths=[{CONFIGS}]", *policy, *settings]).config) as gym:
        return await RolloutCollectionHelper().collect(config, client=gym.client)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


FAULTS = {
    "a tenth of all calls fail": ({"error_rate": 0.1}, {"model_error"}),
    "a call is never answered": ({"hang_nth": 7}, {"timeout"}),
    "a storm of 429s": ({"rps": 30}, {"rate_limited"}),
    "connections break off in the middle": ({"faults": "cut:0.1"}, {"connection"}),
    "broken JSON, pages, other shapes": ({"faults": "malformed:0.05,html:0.05,schema:0.05"}, {"invalid_response"}),
    "errors with status 200": ({"faults": "error200:0.1"}, {"model_error"}),
    "answers that drip": ({"faults": "drip:0.03"}, {"timeout"}),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_every_rollout_is_completed_or_recorded(
    name: str, mock_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour, classes = FAULTS[name]
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "2")
    mock_model.set(**behaviour)
    try:
        # On a busy machine a short limit is also reached by answers that are merely late.
        summary = await collect(mock_model, tmp_path / "out.jsonl", timeout_s=1 if "timeout" in classes else 60)
    finally:
        mock_model.set(faults="none:0")
    files = RunFiles.of(tmp_path / "out.jsonl")
    completed = Counter((r["_ng_task_index"], r["_ng_rollout_index"]) for r in lines(files.rollouts))
    failures = lines(files.failures)
    recorded = {(r["_ng_task_index"], r["_ng_rollout_index"]) for r in failures}
    planned = {(task, rollout) for task in range(5) for rollout in range(REPEATS)}
    assert completed.keys() | recorded == planned
    assert set(completed.values()) == {1}
    assert {r["_ng_failure_class"] for r in failures} <= classes
    assert failures
    assert all("reward" not in r and r["error_message"] and r["_ng_duration_s"] >= 0 for r in failures)
    assert summary.tally.completed == len(completed)
    assert summary.exit_code == (0 if completed.keys() == planned else 3)


async def test_what_a_bad_day_left_undone_is_done_on_a_better_one(
    mock_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")
    mock_model.set(error_rate=0.2, hang_nth=9, faults="malformed:0.1,html:0.1,schema:0.1,cut:0.1,error200:0.1")
    try:
        bad = await collect(mock_model, output, timeout_s=1, patience_s=0)
    finally:
        mock_model.reset()
        mock_model.set(faults="none:0")
    before = output.read_bytes()
    assert bad.exit_code == 3
    assert before.count(b"\n") == bad.tally.completed < 5 * REPEATS

    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "2")
    good = await collect(mock_model, output, resume_from_cache=True)
    assert good.exit_code == 0
    assert good.tally.completed == 5 * REPEATS - bad.tally.completed
    assert output.read_bytes().startswith(before)
    keys = sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in lines(output))
    assert keys == [(task, rollout) for task in range(5) for rollout in range(REPEATS)]
    recorded = [line for line in lines(RunFiles.of(output).failures) if not line.get("_ng_owed")]
    assert len(recorded) == bad.tally.failed


async def test_arguments_that_are_no_json_are_no_failure(mock_model: Any, tmp_path: Path) -> None:
    mock_model.set(faults="badargs:0.5")
    try:
        summary = await collect(mock_model, tmp_path / "out.jsonl")
    finally:
        mock_model.set(faults="none:0")
    assert summary.exit_code == 0
    assert not summary.tally.failures


async def test_waiting_for_a_turn_at_an_endpoint_uses_up_no_attempt(planned: Callable[..., PlannedRollout]) -> None:
    class Busy:
        async def post(self, **_: Any) -> Any:
            with not_counted():
                await asyncio.sleep(0.2)
            raise ConnectionRefusedError("its turn came")

    outcome = await AgentAttempt(Busy(), timeout_s=0.1)(planned())
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "connection"
