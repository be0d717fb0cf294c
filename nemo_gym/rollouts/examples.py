"""Runs rows one by one through whatever runs rows, for those who bring their own way of doing it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from time import perf_counter
from typing import Any, TypeAlias

from nemo_gym.rollouts.classify import expected_errors, outcome_of_error, outcome_of_record
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.outcome import Outcome
from nemo_gym.rollouts.plan import Row
from nemo_gym.rollouts.planned import Planned

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

    async def attempt(planned: Planned) -> Outcome:
        started = perf_counter()
        try:
            async with asyncio.timeout(timeout_s) if timeout_s else nullcontext():
                [ended] = run_examples([planned.row])
                _, record = await ended
        except expected_errors() as error:
            return outcome_of_error(planned, error, perf_counter() - started)
        return outcome_of_record(planned, record, perf_counter() - started)

    return attempt
