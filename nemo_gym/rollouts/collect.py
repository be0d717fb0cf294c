"""The heart: runs what is owed and saves what comes of it.

plan  ─►  agenda  ─►  dispatch  ─►  outcome  ─►  store
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

from nemo_gym.rollouts.backlog import pause_before_retry
from nemo_gym.rollouts.dispatch import Attempt, Dispatch, Pause
from nemo_gym.rollouts.limits import Limit
from nemo_gym.rollouts.options import DEFAULT_DRAIN_S
from nemo_gym.rollouts.outcome import Outcome
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.progress import Progress
from nemo_gym.rollouts.stopping import StopSwitch
from nemo_gym.rollouts.store.agenda import Agenda
from nemo_gym.rollouts.store.files import StorageError
from nemo_gym.rollouts.store.rollout_store import RolloutStore
from nemo_gym.rollouts.tally import Ending, Tally, failure_budget

TICK_S = 1.0
SYNC_INTERVAL_S = 5.0


Listener: TypeAlias = Callable[[Sequence[Outcome]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How a run is to behave."""

    limit: Limit
    max_failures: float | None = None
    drain_s: float = DEFAULT_DRAIN_S
    stop: StopSwitch = field(default_factory=lambda: StopSwitch(drain_s=DEFAULT_DRAIN_S))
    pause: Pause = pause_before_retry
    listener: Listener | None = None  # hears of everything once it is saved
    stream: TextIO | None = None  # where progress is shown


async def collect(
    agenda: Agenda, store: RolloutStore, attempt: Attempt, conduct: Conduct, *, owed: Iterable[Planned] | None = None
) -> Tally:
    """Run everything that is owed (the whole agenda unless given) and save every outcome as it comes."""
    tally, budget = Tally(), failure_budget(conduct.max_failures, len(agenda))
    dispatch = Dispatch(iter(agenda if owed is None else owed), attempt, limit=conduct.limit, pause=conduct.pause)
    conduct.stop.connect(lambda patience: dispatch.stop(drain_s=patience))
    progress = Progress(agenda, conduct.stream) if conduct.stream is not None and len(agenda) else None
    async with _housekeeping(store, tally, dispatch, progress), aclosing(aiter(dispatch)) as batches:
        async for outcomes in batches:
            store.append(outcomes)
            tally.add(outcomes)
            if progress is not None:
                progress.advance(outcomes, tally, dispatch)
            if conduct.listener is not None:
                conduct.listener(outcomes)
            if (ending := _early_end(tally, budget)) is not None:
                tally.ending = ending
                dispatch.stop(drain_s=conduct.drain_s)
    if conduct.stop.is_on and tally.ended < len(agenda):
        tally.ending = Ending.INTERRUPTED
    return tally


def _early_end(tally: Tally, budget: float | None) -> Ending | None:
    """Why to stop before the end, if there is a reason. Whoever sets a budget of failures decides for themselves."""
    if budget is None:
        return Ending.NOTHING_WORKS if tally.is_hopeless else None
    return Ending.TOO_MANY_FAILURES if tally.failed > budget else None


@asynccontextmanager
async def _housekeeping(
    store: RolloutStore, tally: Tally, dispatch: Dispatch, progress: Progress | None
) -> AsyncIterator[None]:
    """Keep the display alive and the disk up to date, whether or not anything ends."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if progress is not None:
                progress.tick(tally, dispatch)

    async def sync() -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            try:
                await asyncio.to_thread(store.sync)
            except StorageError as error:
                dispatch.abort(error)

    tasks = [asyncio.create_task(tick()), asyncio.create_task(sync())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        if progress is not None:
            progress.close()
