"""One attempt: how long it took, what it came to, and when it is given up."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from types import MappingProxyType
from typing import Any

import pytest

from nemo_gym.rollouts.attempt import AgentAttempt, as_completed, attempt_through, marked, recorded
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome, PlannedRollout
from nemo_gym.servers.http.retry import retry_patience_s
from nemo_gym.steps.rollout_steps import from_line
from nemo_gym.steps.trace_context import current_traceparent

Make = Callable[..., PlannedRollout]
PAUSE_S = 0.05


class Reply:
    headers = MappingProxyType({"Retry-After": "7"})

    def __init__(self, status: int = 200, body: bytes = b'{"reward": 1.0}') -> None:
        self.status, self._body = status, body

    async def read(self) -> bytes:
        return self._body


class Agent:
    """An agent's server that takes its time."""

    def __init__(self, does: Callable[[], Any]) -> None:
        self._does = does
        self.patience: list[float | None] = []

    async def post(self, **_: Any) -> Any:
        self.patience.append(retry_patience_s.get())
        await asyncio.sleep(PAUSE_S)
        return self._does()


def refuse() -> None:
    raise ConnectionRefusedError("nobody there")


def duration(outcome: Outcome) -> float:
    assert isinstance(outcome, Failed)
    found = json.loads(outcome.line)["_ng_duration_s"]
    assert found == pytest.approx(outcome.seconds, abs=0.001)
    return float(found)


@pytest.mark.parametrize(
    ("does", "kind"), [(refuse, "connection"), (lambda: Reply(503, b'"busy"'), "model_error"), (Reply, None)]
)
async def test_an_outcome_says_how_long_the_attempt_took(
    does: Callable[[], Any], kind: str | None, planned: Make
) -> None:
    outcome = await AgentAttempt(Agent(does))(planned())
    assert PAUSE_S <= outcome.seconds < 30
    if kind is None:
        assert isinstance(outcome, Completed)
        assert outcome.reward == 1.0
    else:
        assert isinstance(outcome, Failed)
        assert duration(outcome) >= PAUSE_S


async def test_a_failure_keeps_what_its_reply_asks_for_and_a_success_does_not_look(planned: Make) -> None:
    failed = await AgentAttempt(Agent(lambda: Reply(429, b'"slow down"')))(planned())
    assert isinstance(failed, Failed)
    assert failed.failure.retry_after_s == 7


async def test_an_attempt_that_takes_too_long_is_a_timeout_of_that_length(planned: Make) -> None:
    outcome = await AgentAttempt(Agent(lambda: asyncio.sleep(60)), timeout_s=0.02)(planned())
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "timeout"
    assert "no reply within 0.02 s" in outcome.failure.message
    assert 0.02 <= duration(outcome) < 30


async def test_the_requests_of_an_attempt_know_the_patience_of_the_run(planned: Make) -> None:
    agent = Agent(Reply)
    await asyncio.create_task(AgentAttempt(agent, patience_s=15.0)(planned()))
    await asyncio.create_task(AgentAttempt(agent)(planned()))
    assert agent.patience == [15.0, None]


def running(*, seconds: float = 0.0, error: Exception | None = None) -> Callable[[list[Any]], Iterable[Awaitable[Any]]]:
    async def one(row: Any) -> Any:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return row, {"reward": 0.5}

    return lambda rows: [one(row) for row in rows]


async def test_a_function_for_rows_has_a_time_limit_too(planned: Make) -> None:
    outcome = await attempt_through(running(seconds=60), timeout_s=0.02)(planned())
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "timeout"
    assert 0.02 <= duration(outcome) < 30


@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_a_function_for_rows_makes_outcomes_with_their_duration(timeout_s: float | None, planned: Make) -> None:
    outcome = await attempt_through(running(seconds=PAUSE_S), timeout_s=timeout_s)(planned())
    assert isinstance(outcome, Completed)
    assert outcome.reward == 0.5
    assert PAUSE_S <= outcome.seconds < 30
    lost = await attempt_through(running(seconds=PAUSE_S, error=ConnectionError()), timeout_s=timeout_s)(planned())
    assert PAUSE_S <= duration(lost) < 30


async def test_rows_are_started_in_their_order_and_only_as_many_as_may_run() -> None:
    started: list[int] = []
    now = most = 0

    async def run(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal now, most
        started.append(row["n"])
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        return {"n": row["n"]}

    rows = [{"n": number} for number in range(9)]
    found = [await one for one in as_completed(rows, run, asyncio.Semaphore(2))]
    assert started == list(range(9))
    assert most == 2
    assert sorted(result["n"] for _, result in found) == list(range(9))


async def test_steps_say_whose_they_are_how_long_it_took_and_how_it_ended(planned: Make) -> None:
    completed = await recorded(AgentAttempt(Agent(Reply)))(planned(3, attempt=2))
    steps = from_line(completed.steps)
    assert steps is not None
    assert (steps.task, steps.attempt, steps.outcome) == (3, 2, "completed")
    assert PAUSE_S <= steps.duration < 30
    failed = await recorded(AgentAttempt(Agent(refuse)))(planned(4))
    steps = from_line(failed.steps)
    assert steps is not None
    assert (steps.task, steps.outcome) == (4, "connection")


async def test_lines_of_other_models_say_so(planned: Make) -> None:
    outcome = await marked(AgentAttempt(Agent(Reply)), ["model: a, not b"])(planned())
    assert json.loads(outcome.line)["_ng_model_changes"] == ["model: a, not b"]
    assert json.loads(outcome.line)["reward"] == 1.0


@pytest.mark.parametrize("run", ["", "a run"])
async def test_only_the_calls_of_a_run_that_is_traced_say_which_trace_they_belong_to(run: str, planned: Make) -> None:
    seen: list[str | None] = []

    def answer() -> Reply:
        seen.append(current_traceparent())
        return Reply()

    await asyncio.create_task(recorded(AgentAttempt(Agent(answer)), trace_run=run)(planned()))
    assert [bool(parent) for parent in seen] == [bool(run)]
