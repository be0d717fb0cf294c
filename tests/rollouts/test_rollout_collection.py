"""The front door: parameters, and methods that a subclass may replace."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

import nemo_gym.prompt
import nemo_gym.rollout_collection
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollout_collection import (
    RolloutAggregationHelper,
    RolloutCollectionConfig,
    RolloutCollectionHelper,
    _expand_input_glob,
)

Agents = Callable[[Callable[..., Any]], AbstractAsyncContextManager[Any]]
Configure = Callable[..., RolloutCollectionConfig]


@pytest.fixture
def configure(tasks_file: Callable[..., Path], tmp_path: Path) -> Configure:
    def make(tasks: int = 3, **parameters: Any) -> RolloutCollectionConfig:
        files = {"input_jsonl_fpath": str(tasks_file(tasks)), "output_jsonl_fpath": str(tmp_path / "out.jsonl")}
        return RolloutCollectionConfig.model_validate({**files, "agent_name": "alpha", **parameters})

    return make


def helper_with(agents: Any, base: type[RolloutCollectionHelper] = RolloutCollectionHelper) -> Any:
    """A helper that finds these agents."""

    class Helper(base):  # type: ignore[misc, valid-type]
        def setup_server_client(self, head_server_config: Any = None) -> Any:
            return agents

    return Helper()


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob("out*"))


def remove(path: str) -> None:
    Path(path).unlink()


def scored(row: dict[str, Any], _: int) -> dict[str, Any]:
    return {"reward": float(row["n"]), "response": {"output": []}}


# ---- parameters ------------------------------------------------------------------------------------------------------
def test_parameters_of_our_own_are_read_but_not_dumped(configure: Configure) -> None:
    config = configure(
        rollout_timeout_s="1.5",
        max_failures=0.1,
        resume_mode="extend",
        retry_failed="timeout",
        workers=2,
    )
    assert config.rollout_timeout_s == 1.5
    assert config.retry_failed == ["timeout"]
    assert config.resume_mode == "extend"
    ours = {"rollout_timeout_s", "max_failures", "resume_mode", "retry_failed", "workers"}
    assert not ours & config.model_dump().keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_failures": -1},
        {"max_failures": 1.5},
        {"fsync": "always"},
        {"max_in_flight": 64},
        {"resume_mode": "maybe"},
        {"workers": "many"},
        {"num_samples_in_parallel": "automatic"},
        {"num_repeats": 0},
        {"num_repeats": {"a": 1, "b": 0}},
        {"num_repeats": 1.5},
    ],
)
def test_values_that_make_no_sense_are_refused(configure: Configure, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        configure(**wrong)


def test_the_number_in_parallel_may_be_left_to_us(configure: Configure) -> None:
    assert configure(num_samples_in_parallel="auto").num_samples_in_parallel == "auto"
    assert configure(num_samples_in_parallel="8").num_samples_in_parallel == 8


def test_parameters_that_cannot_be_resolved_are_named(configure: Configure) -> None:
    config = configure(responses_create_params={"top_p": "${nothing}"})
    with pytest.raises(ConfigError, match="responses_create_params"):
        RolloutCollectionHelper()._preprocess_rows_from_config(config)


# ---- collecting ------------------------------------------------------------------------------------------------------
async def test_all_results_come_back_sorted_also_those_that_are_in_no_file(
    agents_with: Agents, configure: Configure
) -> None:
    def mixed(row: dict[str, Any], times: int) -> Any:
        answers = {
            0: {"reward": 0.5},
            1: {"reward": 0.0, "_ng_failure_class": "legitimate"},
            2: {"reward": 0.0, "_ng_failure_class": "kill_shaped", "_ng_no_persist": True},
            3: web.Response(status=500, text="broken"),
            4: web.Response(status=429) if times == 0 else {"reward": 1.0},
        }
        return answers[row["n"]]

    async with agents_with(mixed) as agents:
        results = await helper_with(agents).run_from_config(configure(5))
    assert [result["_ng_task_index"] for result in results] == [0, 1, 2, 3, 4]
    classes = [result.get("_ng_failure_class") for result in results]
    assert classes == [None, "legitimate", "kill_shaped", "agent_error", None]
    assert [r["_ng_task_index"] for r in agents.aggregated[0]["verify_responses"]] == [0, 4]


async def test_a_missing_task_file_leaves_no_trace(agents_with: Agents, configure: Configure, tmp_path: Path) -> None:
    async with agents_with(scored) as agents:
        with pytest.raises(ConfigPathNotFoundError, match=r"nowhere\.jsonl"):
            await helper_with(agents).run_from_config(configure(input_jsonl_fpath="nowhere.jsonl"))
    assert not leftovers(tmp_path)


async def test_a_task_file_may_be_gone_when_the_run_is_resumed(agents_with: Agents, configure: Configure) -> None:
    async with agents_with(scored) as agents:
        helper, config = helper_with(agents), configure(resume_from_cache=True)
        await helper.run_from_config(config)
        remove(config.input_jsonl_fpath)
        assert len(await helper.run_from_config(config)) == 3


async def test_more_repeats_extend_a_collection(agents_with: Agents, configure: Configure) -> None:
    async with agents_with(scored) as agents:
        helper = helper_with(agents)
        await helper.run_from_config(configure())
        with pytest.raises(ConfigError, match="num_repeats: 1 → 2"):
            await helper.run_from_config(configure(num_repeats=2, resume_from_cache=True))
        more = configure(num_repeats=2, resume_from_cache=True, resume_mode="extend")
        assert len(await helper.run_from_config(more)) == 6
    assert len(agents.received) == 6


# ---- replaced methods ------------------------------------------------------------------------------------------------
async def test_a_plan_of_ones_own(agents_with: Agents, configure: Configure, row: Any) -> None:
    class OwnPlan(RolloutCollectionHelper):
        def _preprocess_rows_from_config(self, config: RolloutCollectionConfig) -> list[dict[str, Any]]:
            return [row(7, 0, n=7), row(9, 0, n=9)]

    async with agents_with(scored) as agents:
        results = await helper_with(agents, OwnPlan).run_from_config(configure())
    assert [result["_ng_task_index"] for result in results] == [7, 9]


async def test_a_way_of_running_rows_of_ones_own(
    agents_with: Agents, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", "1")

    class OwnWay(RolloutCollectionHelper):
        def run_examples(self, examples: Any, head_server_config: Any = None, semaphore: Any = None) -> Any:
            async def run(row: dict[str, Any]) -> Any:
                if row["n"] == 1:
                    raise aiohttp.ServerDisconnectedError
                return row, {"reward": 5.0}

            return [run(example) for example in examples]

    async with agents_with(scored) as agents:
        helper = helper_with(agents, OwnWay)
        results = await helper.run_from_config(
            configure(2, disable_aggregation=True, rollout_timeout_s=5, patience_s=0)
        )
    assert [result.get("reward") for result in results] == [5.0, None]
    assert results[1]["_ng_failure_class"] == "connection"
    assert not agents.received


async def test_a_say_of_ones_own_in_what_is_left(agents_with: Agents, configure: Configure) -> None:
    class OnlyLast(RolloutCollectionHelper):
        def _load_from_cache(self, config: RolloutCollectionConfig) -> Any:
            owed, *rest = super()._load_from_cache(config)
            return owed[-1:], *rest

    async with agents_with(
        lambda row, times: scored(row, times) if row["n"] == 0 else web.Response(status=500)
    ) as agents:
        await helper_with(agents).run_from_config(configure())
        await helper_with(agents, OnlyLast).run_from_config(configure(resume_from_cache=True))
    assert agents.sent()[3:] == [(2, 0)]


async def test_metrics_of_ones_own(agents_with: Agents, configure: Configure) -> None:
    seen: list[Any] = []

    class OwnMetrics(RolloutCollectionHelper):
        async def _call_aggregate_metrics(self, results: Any, rows: Any, output_fpath: Path) -> Path | None:
            seen.append(([r["_ng_task_index"] for r in results], rows[0]["agent_ref"]["name"], output_fpath.name))
            return None

    async with agents_with(scored) as agents:
        await helper_with(agents, OwnMetrics).run_from_config(configure())
    assert seen == [([0, 1, 2], "alpha", "out.jsonl")]
    assert not agents.aggregated


async def test_metrics_can_be_asked_for_by_hand(agents_with: Agents, row: Any, tmp_path: Path) -> None:
    async with agents_with(scored) as agents:
        helper, results = helper_with(agents), [{"reward": 1.0, "_ng_task_index": 0, "_ng_rollout_index": 0}]
        assert await helper._call_aggregate_metrics([], [], tmp_path / "o.jsonl") is None
        path = await helper._call_aggregate_metrics(results, [row(agent="beta")], tmp_path / "o.jsonl")
    assert path == tmp_path / "o_aggregate_metrics.json"
    assert json.loads(path.read_text())[0]["agent_ref"] == {"name": "beta"}


async def test_rows_of_the_whole_plan_share_nothing(configure: Configure) -> None:
    first, second = RolloutCollectionHelper()._preprocess_rows_from_config(configure(1, num_repeats=2))
    first["responses_create_params"]["input"] = "changed"
    first["agent_ref"]["name"] = "changed"
    assert second["responses_create_params"]["input"] == "question 0"
    assert second["agent_ref"] == {"name": "alpha"}


# ---- running rows ----------------------------------------------------------------------------------------------------
class AgentsWithConfig:
    """What ``run_examples`` expects of a client."""

    def __init__(self, agents: Any) -> None:
        self.post = agents.post
        self.global_config_dict = {"global_aiohttp_client_request_debug": True}


async def test_examples_start_in_their_order_and_come_as_they_end(agents_with: Agents, row: Any) -> None:
    async def later_is_faster(row: dict[str, Any], _: int) -> Any:
        await asyncio.sleep(0.1 * (3 - row["_ng_task_index"]))
        return {"reward": 1.0}

    async with agents_with(later_is_faster) as agents:
        helper = helper_with(AgentsWithConfig(agents))
        ended = [await future for future in helper.run_examples([row(n) for n in range(3)])]
    assert [example["_ng_task_index"] for example, _ in ended] == [2, 1, 0]
    assert agents.sent() == [(0, 0), (1, 0), (2, 0)]


async def test_a_semaphore_limits_the_examples(agents_with: Agents, row: Any) -> None:
    async def slow(row: dict[str, Any], _: int) -> Any:
        await asyncio.sleep(0.005)
        return {"reward": 1.0}

    async with agents_with(slow) as agents:
        helper = helper_with(AgentsWithConfig(agents))
        for future in helper.run_examples([row(n) for n in range(9)], semaphore=asyncio.Semaphore(2)):
            await future
    assert agents.most_in_flight == 2


async def test_an_error_of_an_example_is_raised_with_its_body_and_logged_without_its_payload(
    agents_with: Agents, row: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with agents_with(lambda *_: web.Response(status=500, text="why")) as agents:
        helper = helper_with(AgentsWithConfig(agents))
        (future,) = helper.run_examples([row(4, 2, secret="x")])
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await future
    assert caught.value.response_content == b"why"  # type: ignore[attr-defined]
    assert '{"_ng_rollout_index": 2, "_ng_task_index": 4, "agent_name": "alpha"}' in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nemo_gym.rollout_collection, "collect_rollouts"),
        (nemo_gym.rollout_collection, "aggregate_rollouts"),
        (nemo_gym.prompt, "materialize_prompts_cli"),
    ],
)
def test_the_commands_are_still_found_where_they_were(module: Any, name: str) -> None:
    with pytest.warns(DeprecationWarning, match="ng_"):
        assert callable(getattr(module, name))
    with pytest.raises(AttributeError):
        module.no_such_name  # noqa: B018


def test_the_helpers_are_models_that_may_have_fields() -> None:
    class Mine(RolloutCollectionHelper):
        note: str = "x"

    class Ours(RolloutAggregationHelper):
        note: str

    assert (Mine(note="y").note, Ours(note="z").note) == ("y", "z")


def test_the_glob_is_expanded_by_keyword(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert _expand_input_glob(input_glob=f"{tmp_path}/*.jsonl") == [str(tmp_path / "a.jsonl")]
