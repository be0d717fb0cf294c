"""One attempt of one rollout: a call of the agent's ``/run``, in this process or over the network.

Runs rows one by one through whatever runs rows, for those who bring their own way of doing it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from nemo_gym.rollouts.classify import expected_errors, failed, outcome_of_answer, outcome_of_error, outcome_of_record
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.outcome import TRANSIENT, Failure, FailureClass, Outcome
from nemo_gym.rollouts.plan import PlannedRollout, Row
from nemo_gym.servers.rollout_scope import mark_rollout, wants_marks
from nemo_gym.servers.server_client import GymClient

RUN_PATH = "/run"


class AgentAnswer(Protocol):
    """What a call returns, as far as it is looked at here."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, whatever the case of their names."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...


class AgentClient(Protocol):
    """Reaches agents by name: a ``ServerClient``, or anything that can do this one thing."""

    async def post(self, *, server_name: str, url_path: str, json: Any) -> Any:
        """POST a JSON body; returns an ``Answer``."""
        ...


class AgentAttempt:
    """Runs rollouts by calling agents. Every way in which a call can go wrong becomes an outcome."""

    def __init__(self, client: AgentClient, *, timeout_s: float | None = None) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._takes_text = isinstance(client, GymClient)  # others may want to look into the row
        self._marks = wants_marks(getattr(client, "global_config_dict", None))

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        """Run one rollout."""
        if self._marks:
            mark_rollout(*planned.key, planned.attempt)
        if self._timeout_s is None:
            return await self._run(planned)
        started, patience = perf_counter(), asyncio.timeout(self._timeout_s)
        try:
            async with patience:
                return await self._run(planned)
        except TimeoutError:
            return failed(planned, _timeout(self._timeout_s), perf_counter() - started)

    async def _run(self, planned: PlannedRollout) -> Outcome:
        started = perf_counter()
        row = planned.text if self._takes_text and planned.text else planned.row
        try:
            answer: AgentAnswer = await self._client.post(server_name=planned.agent, url_path=RUN_PATH, json=row)
            body = await answer.read()
        except expected_errors() as error:
            return outcome_of_error(planned, error, perf_counter() - started)
        headers = answer.headers if answer.status >= 400 else {}  # made when asked for, and rarely needed
        return outcome_of_answer(planned, answer.status, headers, body, perf_counter() - started)


def _timeout(seconds: float) -> Failure:
    kind = FailureClass.TIMEOUT
    return Failure(kind=kind, message=f"no answer within {seconds:g} s", transient=kind in TRANSIENT)


Pair: TypeAlias = tuple[Row, dict[str, Any]]
RunExamples: TypeAlias = Callable[[list[Row]], Iterable[Awaitable[Pair]]]


def as_completed(
    rows: Iterable[Row], run: Callable[[Row], Awaitable[dict[str, Any]]], semaphore: asyncio.Semaphore | None
) -> Iterator[Awaitable[Pair]]:
    """Run all rows, started in their order, and yield one awaitable for each, in the order in which they end."""
    window: AbstractAsyncContextManager[None] = semaphore or asyncio.Semaphore(DEFAULT_WINDOW)

    async def pair(row: Row) -> Pair:
        async with window:
            return row, await run(row)

    # Made here and not inside as_completed, which would start them in any order.
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
