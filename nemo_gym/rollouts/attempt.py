"""One attempt of one rollout: a call of the agent's ``/run``, in this process or over the network.

Every way in which the call can go wrong becomes an outcome. ``attempt_through`` adapts any function that runs rows, for
programs that bring their own. ``recorded`` notes the calls that an attempt makes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from time import perf_counter, perf_counter_ns, time
from typing import Any, TypeAlias

from nemo_gym.rollouts.agents import AgentClient, agents_of
from nemo_gym.rollouts.classify import expected_errors, failed, outcome_of_answer, outcome_of_error, outcome_of_record
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.outcome import Failed, Failure, Outcome, Vanished
from nemo_gym.rollouts.plan import PlannedRollout, Row
from nemo_gym.schemas.rows import FailureClass
from nemo_gym.servers.event_loop import Deadlines
from nemo_gym.steps.record import COMPLETED, NewLine, encode_line, from_line, seconds_of, to_line
from nemo_gym.steps.recording import ROOT, Trail, attempt_span, current_span
from nemo_gym.steps.trace_context import attempt_context

Pair: TypeAlias = tuple[Row, dict[str, Any]]
RunExamples: TypeAlias = Callable[[list[Row]], Iterable[Awaitable[Pair]]]


class AgentAttempt:
    """Runs rollouts by calling agents."""

    def __init__(self, client: AgentClient, *, timeout_s: float | None = None) -> None:
        self._agents = agents_of(client)
        self._timeout_s = timeout_s
        self._deadlines = Deadlines()

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        """Run one rollout."""
        if self._timeout_s is None:
            return await self._run(planned)
        started = perf_counter()
        try:
            with self._deadlines.within(self._timeout_s):
                return await self._run(planned)
        except TimeoutError:
            late = Failure.of(FailureClass.TIMEOUT, f"no answer within {self._timeout_s:g} s")
            return failed(planned, late, perf_counter() - started)

    async def _run(self, planned: PlannedRollout) -> Outcome:
        started = perf_counter()
        try:
            answer = await self._agents.run(planned)
            body = await answer.read()
        except expected_errors() as error:
            outcome = outcome_of_error(planned, error, perf_counter() - started)
            # A Gym that was restarted has other ports. The next attempt should already find them.
            if isinstance(outcome, Failed) and outcome.failure.kind == FailureClass.CONNECTION:
                await self._agents.find_again()
            return outcome
        headers = answer.headers if answer.status >= 400 else {}  # built only on demand, because it is rarely needed
        return outcome_of_answer(planned, answer.status, headers, body, perf_counter() - started)


def as_completed(
    rows: Iterable[Row], run: Callable[[Row], Awaitable[dict[str, Any]]], semaphore: asyncio.Semaphore | None
) -> Iterator[Awaitable[Pair]]:
    """Run all rows, started in their order, and yield one awaitable for each, in the order in which they end."""
    window: AbstractAsyncContextManager[None] = semaphore or asyncio.Semaphore(DEFAULT_WINDOW)

    async def pair(row: Row) -> Pair:
        async with window:
            return row, await run(row)

    # Created here, because as_completed would start them in any order.
    return asyncio.as_completed([asyncio.ensure_future(pair(row)) for row in rows])


def attempt_through(run_examples: RunExamples, *, timeout_s: float | None) -> Attempt:
    """An attempt that hands its one row to a function made for many."""

    async def attempt(planned: PlannedRollout) -> Outcome:
        started = perf_counter()
        try:
            async with asyncio.timeout(timeout_s) if timeout_s else nullcontext():
                [ended] = run_examples([planned.row])
                _, record = await ended
        except expected_errors() as error:
            return outcome_of_error(planned, error, perf_counter() - started)
        return outcome_of_record(planned, record, perf_counter() - started)

    return attempt


def recorded(attempt: Attempt, *, trace_run: str = "") -> Attempt:
    """The same attempt, whose outcomes bring the line of its steps along.

    With the id of a run, its calls to other programs say which trace they belong to.
    """

    async def record(planned: PlannedRollout) -> Outcome:
        started_at, span = time(), attempt_span()
        if trace_run:
            span.trail.trace = attempt_context(trace_run, planned.key.task, planned.key.rollout, planned.attempt)
        current_span.set(span)  # and not set back: an attempt has a task, and with it a context, of its own
        outcome = await attempt(planned)
        if isinstance(outcome, Vanished):
            return outcome
        if not outcome.steps:
            # Changed in place: nothing else has seen the outcome yet, and a copy costs more than recording a step.
            outcome.steps = _line_of(planned, span.trail, started_at, outcome, trace_run)
            return outcome
        return _relabelled(outcome) if isinstance(outcome, Failed) else outcome  # recorded where it ran

    return record


def _line_of(planned: PlannedRollout, trail: Trail, started_at: float, outcome: Outcome, run: str) -> bytes:
    """The same line as ``to_line`` writes, made directly from the trail."""
    key = planned.key
    zero = trail.zero
    line = NewLine(  # by position, which is faster
        key.task,
        key.rollout,
        planned.attempt,
        planned.agent,
        started_at,
        (perf_counter_ns() - zero) / 1e9,
        outcome.failure.kind if isinstance(outcome, Failed) else COMPLETED,
        zero,
        trail.calls,
        trail.rows,
    )
    if trail.notes:
        line.waited = seconds_of(trail.waited)
        line.notes = [note for index, note in sorted(trail.notes.items()) if index != ROOT]
    if run:
        line.run = run
    try:
        return encode_line(line)
    except (TypeError, OverflowError):  # a call is still open, or an endpoint counts more tokens than can be written
        line.numbers = trail.numbers()
        return encode_line(line)


def _relabelled(outcome: Failed) -> Failed:
    """The outcome with the class of its failure in its steps, which were recorded before a gate failed it."""
    record = from_line(outcome.steps)
    if record is None or record.outcome == outcome.failure.kind:
        return outcome
    record.outcome = outcome.failure.kind
    return replace(outcome, steps=to_line(record))
