import asyncio
import io
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.cli.signals import stopped_by_signals
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.plan import PlanSource, PlanSpec
from nemo_gym.rollouts.progress import Load
from nemo_gym.rollouts.run import CollectionRun, RunControl, RunListener, StopSwitch, run_collection
from nemo_gym.rollouts.run_metrics import RunMetrics, aggregate_run
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.outcome import Outcome, PlannedRollout
from nemo_gym.rollouts.store.rollout_store import RolloutStore
from nemo_gym.rollouts.tally import Budget, Ending, Summary


def test_the_second_request_is_more_urgent() -> None:
    switch, heard = StopSwitch(drain_s=30), []
    switch.connect(heard.append)
    assert not switch.is_on
    switch.press()
    switch.press()
    assert switch.is_on
    assert heard == [30, 0]


def test_a_switch_that_is_on_already_tells_a_late_listener() -> None:
    switch, heard = StopSwitch(drain_s=30), []
    switch.press()
    switch.connect(heard.append)
    assert heard == [30]


async def test_signals_press_the_switch_and_are_given_back_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    switch = StopSwitch(drain_s=30)
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals(switch, end_process=False):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert switch.is_on
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("SIGTERM: starting no more rollouts")
    assert said[1] == "SIGINT: stopping now"
    assert signal.getsignal(signal.SIGTERM) == before


Agents = Callable[[Callable[..., Any]], AbstractAsyncContextManager[Any]]
Tasks = Callable[..., Path]


def quickly(_: PlannedRollout, asked: float | None) -> float:
    return min(asked or 0.001, 0.01)


class Collector:
    """Collects a task file into a folder, as often as it is told to."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out.jsonl"
        self.files = RunFiles.of(self.output)

    async def __call__(self, agents: Any, tasks: Path, *, timeout_s: float | None = 5, **options: Any) -> Summary:
        spec = PlanSpec(agent="alpha", repeats=options.pop("repeats", 1))
        source = PlanSource(str(tasks), None, spec)
        run = CollectionRun(
            output=self.output,
            rows=source.rows,
            request=source.request,
            resume=options.pop("resume", False),
            retries=AttemptPolicy(options.pop("attempts", 3)),
            agents=options.pop("known", None),
        )
        control = RunControl(limit=FixedLimit(options.pop("parallel", 8)), pause=quickly, **options)

        async def aggregate(store: RolloutStore) -> Any:
            return await aggregate_run(store.files, agents)

        return await run_collection(run, AgentAttempt(agents, timeout_s=timeout_s), control, aggregate)


@pytest.fixture
def collect(tmp_path: Path) -> Collector:
    return Collector(tmp_path)


def scored(row: dict[str, Any], _: int = 0) -> dict[str, Any]:
    return {"reward": float(row["n"] % 2), "response": {"output": [], "usage": {"total_tokens": 3}}}


async def test_every_rollout_is_saved_once_and_the_metrics_see_each(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    async with agents_with(scored) as agents:
        summary = await collect(agents, tasks_file(4), repeats=3, stream=io.StringIO())
    rollouts = read_jsonl(collect.output)
    assert len(rollouts) == len({(r["_ng_task_index"], r["_ng_rollout_index"]) for r in rollouts}) == 12
    assert summary.exit_code == 0
    assert summary.tally.mean_reward == 0.5
    (request,) = agents.aggregated
    assert len(request["verify_responses"]) == 12
    assert request["verify_responses"][0]["response"] == {"usage": {"total_tokens": 3}}
    (entry,) = json.loads(collect.files.metrics.read_text())
    assert entry["agent_ref"] == {"name": "alpha"}
    assert entry["key_metrics"] == {"mean/reward": 0.5}


async def test_no_more_run_at_once_than_allowed(agents_with: Agents, tasks_file: Tasks, collect: Collector) -> None:
    async def slow(row: dict[str, Any], _: int) -> Any:
        await asyncio.sleep(0.005)
        return scored(row)

    async with agents_with(slow) as agents:
        await collect(agents, tasks_file(30), parallel=5)
    assert agents.most_in_flight == 5
    assert [task for task, _ in agents.sent()][:5] == [0, 1, 2, 3, 4]


async def test_a_failing_rollout_fails_alone(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    def one_breaks(row: dict[str, Any], _: int) -> Any:
        return web.json_response("ValueError('no such city')", status=500) if row["n"] == 3 else scored(row)

    async with agents_with(one_breaks) as agents:
        summary = await collect(agents, tasks_file(10))
        assert len(agents.received) == 10, "an agent's own error is not tried again in the same run"
        assert len(agents.aggregated[0]["verify_responses"]) == 9
        assert summary.exit_code == 3
        assert len(read_jsonl(collect.output)) == 9
        (failure,) = read_jsonl(collect.files.failures)
        assert failure["_ng_failure_class"] == "agent_error"
        assert failure["error_message"] == "HTTP 500: ValueError('no such city')"
        assert "reward" not in failure
        text = summary.text()
        assert "agent_error" in text
        assert "9 of 10 rollouts completed (1 failed)" in text

        await collect(agents, tasks_file(10), resume=True)
        assert agents.sent()[10:] == [(3, 0)]


async def test_failures_that_pass_are_tried_again_within_the_run(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    def busy_at_first(row: dict[str, Any], times: int) -> Any:
        return web.Response(status=429, headers={"Retry-After": "0"}) if times == 0 else scored(row)

    async with agents_with(busy_at_first) as agents:
        summary = await collect(agents, tasks_file(5))
    assert summary.exit_code == 0
    assert summary.tally.retried == 5
    assert len(read_jsonl(collect.output)) == 5
    assert {f["_ng_failure_class"] for f in read_jsonl(collect.files.failures)} == {"rate_limited"}


async def test_attempts_are_limited_over_all_runs(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    async with agents_with(lambda *_: web.Response(status=408)) as agents:
        first = await collect(agents, tasks_file(2))
        assert len(agents.received) == 6
        assert "'+retry_failed=[timeout]'" in first.text()
        summary = await collect(agents, tasks_file(2), resume=True)
        assert len(agents.received) == 6
    assert [f["_ng_attempt"] for f in read_jsonl(collect.files.failures)].count(3) == 2
    assert summary.exit_code == 3
    assert "2 given up earlier" in summary.text()


async def test_a_rollout_that_takes_too_long_is_given_up(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    async def hang(row: dict[str, Any], _: int) -> Any:
        await asyncio.sleep(60 if row["n"] == 1 else 0)
        return scored(row)

    async with agents_with(hang) as agents:
        summary = await collect(agents, tasks_file(3), timeout_s=1, attempts=1)
    assert summary.tally.completed == 2
    (failure,) = read_jsonl(collect.files.failures)
    assert (failure["_ng_failure_class"], failure["error_message"]) == ("timeout", "no reply within 1 s")


async def test_too_many_failures_stop_the_run(agents_with: Agents, tasks_file: Tasks, collect: Collector) -> None:
    async with agents_with(lambda *_: web.Response(status=500)) as agents:
        summary = await collect(agents, tasks_file(100), parallel=2, max_failures=5)
        assert summary.tally.ending is Ending.TOO_MANY_FAILURES
        assert 6 <= summary.tally.failed <= 8
        assert summary.exit_code == 3
        assert "too many failures" in summary.text()
        assert not agents.aggregated


async def test_a_run_in_which_nothing_works_stops_early_unless_that_is_wanted(
    agents_with: Agents, tasks_file: Tasks, collect: Collector
) -> None:
    async with agents_with(lambda *_: web.Response(status=500)) as agents:
        summary = await collect(agents, tasks_file(200), parallel=4)
        assert summary.tally.ending is Ending.NOTHING_WORKS
        assert 50 <= summary.tally.failed < 60
        assert summary.exit_code == 3
        assert "+resume_from_cache=true" in summary.text()
        everything = await collect(agents, tasks_file(70), parallel=4, max_failures=1.0)
        assert everything.tally.failed == 70


async def test_a_budget_stops_new_rollouts_and_the_rest_can_be_resumed(
    agents_with: Agents, tasks_file: Tasks, collect: Collector
) -> None:
    def used(row: dict[str, Any], _: int) -> dict[str, Any]:
        return {"reward": 1.0, "response": {"usage": {"input_tokens": 80, "output_tokens": 20}}, "n": row["n"]}

    async with agents_with(used) as agents:
        summary = await collect(agents, tasks_file(40), parallel=2, budget=Budget(tokens=500))
        assert summary.tally.ending is Ending.OUT_OF_BUDGET
        assert 5 <= summary.tally.completed <= 8
        assert summary.exit_code == 3
        assert "stopped: budget_tokens=500 is used up" in summary.text()
        assert "tokens: " in summary.text()
        rest = await collect(agents, tasks_file(40), parallel=2, resume=True)
        assert rest.completed == 40


async def test_time_may_run_out_while_nothing_ends(agents_with: Agents, tasks_file: Tasks, collect: Collector) -> None:
    async def hang(*_: Any) -> Any:
        await asyncio.sleep(60)

    async with agents_with(hang) as agents:
        summary = await collect(agents, tasks_file(3), timeout_s=None, budget=Budget(seconds=0.2), drain_s=0.1)
    assert summary.tally.ending is Ending.OUT_OF_BUDGET
    assert summary.completed == 0


async def test_a_share_of_failures_may_be_allowed(agents_with: Agents, tasks_file: Tasks, collect: Collector) -> None:
    def every_tenth(row: dict[str, Any], _: int) -> Any:
        return web.Response(status=500) if row["n"] % 10 == 0 else scored(row)

    async with agents_with(every_tenth) as agents:
        assert (await collect(agents, tasks_file(50), max_failures=0.1)).tally.ending is Ending.FINISHED
        assert (await collect(agents, tasks_file(50), max_failures=0.05)).tally.ending is Ending.TOO_MANY_FAILURES


async def test_a_stopped_run_saves_what_finishes_and_can_be_resumed(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    stop = StopSwitch(drain_s=5)

    async def stop_after_some(row: dict[str, Any], _: int) -> Any:
        if row["n"] == 6:
            stop.press()
        await asyncio.sleep(0.01)
        return scored(row)

    async with agents_with(stop_after_some) as agents:
        summary = await collect(agents, tasks_file(20), parallel=4, stop=stop)
        assert summary.exit_code == 130
        saved = len(read_jsonl(collect.output))
        assert 7 <= saved < 20
        assert not agents.aggregated
        assert "+resume_from_cache=true" in summary.text()
        await collect(agents, tasks_file(20), resume=True)
    assert len(agents.received) == 20
    assert len(read_jsonl(collect.output)) == 20


async def test_an_agent_that_does_not_exist_is_noticed_before_anything_happens(
    agents_with: Agents, tasks_file: Tasks, collect: Collector
) -> None:
    async with agents_with(scored) as agents:
        with pytest.raises(ConfigError) as caught:
            await collect(agents, tasks_file(1), known={"alpah", "beta"})
    assert "'alpha'" in str(caught.value)
    assert "'alpah'" in (caught.value.hint or "")
    assert not collect.files.plan.exists()
    assert not agents.received


async def test_an_agent_without_metrics_loses_only_its_own(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    async with agents_with(lambda row, _: {"reward": "none of your business"}) as agents:
        summary = await collect(agents, tasks_file(1))
    assert summary.exit_code == 0
    assert not summary.metrics
    assert "No metrics for alpha: HTTP 500" in caplog.text


async def test_a_listener_hears_of_what_is_already_saved(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any
) -> None:
    events: list[Any] = []

    class Listening(RunListener):
        ended = 0

        def run_started(self, load: Load) -> None:
            events.append(("started", load.in_flight))

        def outcomes_saved(self, outcomes: Sequence[Outcome]) -> None:
            self.ended += len(outcomes)
            assert len(read_jsonl(collect.output)) == self.ended

        def metrics_computed(self, metrics: Sequence[RunMetrics]) -> None:
            events.append([each.agent for each in metrics])

        def run_ended(self, files: RunFiles) -> None:
            events.append(("ended", self.ended, files.metrics.exists()))

    async with agents_with(scored) as agents:
        await collect(agents, tasks_file(9), listeners=[Listening()])
    assert events == [("started", 0), ["alpha"], ("ended", 9, True)]


async def misbehave(row: dict[str, Any], times: int) -> Any:
    """Nine kinds of task; the first five kinds behave when they are sent again."""
    kind = row["n"]
    if kind == 6:
        await asyncio.sleep(30)
    answers = {
        0: web.Response(status=429),
        1: web.Response(body=b'{"reward": 1.0, "resp', content_type="application/json"),
        2: web.Response(text="<html>gateway</html>", content_type="text/html"),
        3: web.Response(body=b"x", headers={"Content-Length": "999"}),  # breaks off in the middle
        4: web.json_response(["another", "shape"]),
        5: web.json_response({"detail": "broken"}, status=500),
        7: {"_ng_failure_class": "legitimate", "reward": 0.0},
    }
    return scored(row) if times and kind < 5 else answers.get(kind, scored(row))


@pytest.mark.parametrize("parallel", [1, 32])
async def test_whatever_an_endpoint_does_every_rollout_is_completed_or_recorded(
    agents_with: Agents, tasks_file: Tasks, collect: Collector, read_jsonl: Any, parallel: int
) -> None:
    async with agents_with(misbehave) as agents:
        summary = await collect(agents, tasks_file(9), parallel=parallel, timeout_s=1, attempts=2)
    completed = {r["_ng_task_index"] for r in read_jsonl(collect.output)}
    failures = {r["_ng_task_index"]: r["_ng_failure_class"] for r in read_jsonl(collect.files.failures)}
    assert completed | set(failures) == set(range(9))
    assert completed == {0, 1, 2, 3, 4, 8}
    assert {failures[n] for n in (5, 6, 7)} == {"agent_error", "timeout", "legitimate"}
    assert summary.tally.failed == 3
