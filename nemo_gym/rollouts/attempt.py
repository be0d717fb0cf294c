"""One attempt of one rollout: a call of the agent's ``/run``, in this process or over the network.

Every way in which the call can go wrong becomes an outcome. ``attempt_through`` adapts any function that runs rows, for
programs that bring their own. ``recorded`` notes the calls that an attempt makes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from time import perf_counter, perf_counter_ns, time
from typing import Any, TypeAlias

from nemo_gym.capture.traces import references
from nemo_gym.io.json import decode
from nemo_gym.rollouts.agents import AgentClient, agents_of
from nemo_gym.rollouts.classify import (
    MESSAGE_CHARS,
    expected_errors,
    failed,
    outcome_of_error,
    outcome_of_record,
    result_of_reply,
)
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.store.outcome import Failed, Failure, Outcome, PlannedRollout, Vanished
from nemo_gym.rollouts.store.saved_lines import encode_keyed
from nemo_gym.schemas.call_tokens import has_whole_prompts
from nemo_gym.schemas.record import Row
from nemo_gym.schemas.rows import MODEL_CHANGES_KEY_NAME, FailureClass
from nemo_gym.servers.http.deadlines import Deadlines, attempt_deadline
from nemo_gym.servers.http.retry import retry_patience_s
from nemo_gym.steps.recording import Trail, attempt_span, current_span
from nemo_gym.steps.rollout_steps import COMPLETED, RolloutSteps, from_line, to_line
from nemo_gym.steps.trace_context import attempt_context

Pair: TypeAlias = tuple[Row, dict[str, Any]]
RunExamples: TypeAlias = Callable[[list[Row]], Iterable[Awaitable[Pair]]]


class AgentAttempt:
    """Runs rollouts by calling agents."""

    def __init__(self, client: AgentClient, *, timeout_s: float | None = None, patience_s: float | None = None) -> None:
        self._agents = agents_of(client)
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._deadlines = Deadlines()

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        retry_patience_s.set(self._patience_s)  # and not set back: an attempt has a task, with a context of its own
        started = perf_counter()
        if self._timeout_s is None:
            outcome = await self._run(planned)
        else:
            try:
                with self._deadlines.within(self._timeout_s, self._agents.waited) as deadline:
                    # Not set back: an attempt has a task, and with it a context, of its own.
                    attempt_deadline.set(deadline)
                    outcome = await self._run(planned)
            except TimeoutError:
                late = Failure.of(FailureClass.TIMEOUT, f"no reply within {self._timeout_s:g} s")
                outcome = failed(planned, late, perf_counter() - started)
        return await self._explained(outcome, started) if isinstance(outcome, Failed) else outcome

    async def _explained(self, outcome: Failed, started: float) -> Failed:
        """The outcome with the crash of a server as its reason, if there was one during the attempt."""
        failure = outcome.failure
        is_likely = failure.kind in (FailureClass.CONNECTION, FailureClass.SERVER_CRASHED)
        if failure.terminal or (failure.outside and not is_likely):
            return outcome
        crash = await self._agents.crash_since(started, is_likely=is_likely)
        if crash is None:
            return outcome
        explained = Failure.of(
            FailureClass.SERVER_CRASHED,
            f"{crash.server} ended ({crash.reason}) while this rollout was using it: {failure.message}"[:MESSAGE_CHARS],
            crash=crash.id,
            in_call=failure.kind != FailureClass.SERVER_CRASHED,  # otherwise it came back later, to a lost session
            http_status=failure.http_status,
            http_body=failure.http_body,
        )
        return failed(outcome.planned, explained, outcome.seconds, outcome.usage)

    async def _run(self, planned: PlannedRollout) -> Outcome:
        started = perf_counter()
        try:
            reply = await self._agents.run(planned)
            body = await reply.read()
        except asyncio.CancelledError:
            self._agents.end_attempt()
            raise
        except expected_errors() as error:
            self._agents.end_attempt()
            outcome = outcome_of_error(planned, error, perf_counter() - started)
            # A Gym that was restarted has other ports. The next attempt should already find them.
            if isinstance(outcome, Failed) and outcome.failure.kind == FailureClass.CONNECTION:
                await self._agents.find_again()
            return outcome
        headers = reply.headers if reply.status >= 400 else {}  # built only on demand, because it is rarely needed
        result = result_of_reply(planned, reply.status, headers, body, perf_counter() - started)
        if isinstance(result, Failed):
            self._agents.end_attempt()
            return result
        if self._agents.captures or references(result) or has_whole_prompts(result):
            result = await self._agents.with_tokens(result)
        return outcome_of_record(planned, result, perf_counter() - started)


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


def recorded(attempt: Attempt, *, trace_run: str = "", running: set[Trail] | None = None) -> Attempt:
    """The same attempt, whose outcomes bring the line of its steps along.

    With the id of a run, its calls to other programs say which trace they belong to. ``running`` has the trails of all
    attempts that run.
    """
    trails = running if running is not None else set()

    async def record(planned: PlannedRollout) -> Outcome:
        started_at, span = time(), attempt_span()
        if trace_run:
            span.trail.trace = attempt_context(trace_run, planned.key.task, planned.key.rollout, planned.attempt)
        current_span.set(span)  # and not set back: an attempt has a task, and with it a context, of its own
        trails.add(span.trail)
        try:
            outcome = await attempt(planned)
        finally:
            trails.discard(span.trail)
        if isinstance(outcome, Vanished):
            return outcome
        if not outcome.steps:
            outcome.steps = to_line(_steps_of(planned, span.trail, started_at, outcome, trace_run))
            return outcome
        return _relabelled(outcome) if isinstance(outcome, Failed) else outcome  # recorded where it ran

    return record


def marked(attempt: Attempt, model_changes: Sequence[str]) -> Attempt:
    """The same attempt, whose lines say how its models differ from those of the rows before."""

    async def mark(planned: PlannedRollout) -> Outcome:
        outcome = await attempt(planned)
        outcome.line = encode_keyed(planned.key, {**decode(outcome.line), MODEL_CHANGES_KEY_NAME: list(model_changes)})
        return outcome

    return mark


def _steps_of(planned: PlannedRollout, trail: Trail, started_at: float, outcome: Outcome, run: str) -> RolloutSteps:
    return RolloutSteps(
        task=planned.key.task,
        rollout=planned.key.rollout,
        attempt=planned.attempt,
        agent=planned.agent,
        started_at=started_at,
        duration=(perf_counter_ns() - trail.zero) / 1e9,
        waited=trail.waited,
        outcome=outcome.failure.kind if isinstance(outcome, Failed) else COMPLETED,
        run=run,
        steps=trail.steps,
    )


def _relabelled(outcome: Failed) -> Failed:
    """The outcome with the class of its failure in its steps, which were recorded before a gate failed it."""
    record = from_line(outcome.steps)
    if record is None or record.outcome == outcome.failure.kind:
        return outcome
    record.outcome = outcome.failure.kind
    return replace(outcome, steps=to_line(record))
