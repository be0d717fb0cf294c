"""The heart: runs what is owed and saves what comes of it.

plan  ─►  agenda  ─►  dispatch  ─►  outcome  ─►  store
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TextIO, TypeAlias

from nemo_gym.rollouts.backlog import pause_before_retry
from nemo_gym.rollouts.continuity_gate import TokenContinuity
from nemo_gym.rollouts.dispatch import Attempt, Dispatch, Pause
from nemo_gym.rollouts.limits import Limit
from nemo_gym.rollouts.options import DEFAULT_DRAIN_S
from nemo_gym.rollouts.outcome import Outcome
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.progress import Progress
from nemo_gym.rollouts.spending import Budget, Spending
from nemo_gym.rollouts.stop_rules import StopRules, failure_budget
from nemo_gym.rollouts.stopping import StopSwitch
from nemo_gym.rollouts.store.agenda import Agenda
from nemo_gym.rollouts.store.files import StorageError
from nemo_gym.rollouts.store.rollout_store import RolloutStore
from nemo_gym.rollouts.tally import Ending, Tally
from nemo_gym.schemas.prices import Prices

TICK_S = 1.0
SYNC_INTERVAL_S = 5.0


Listener: TypeAlias = Callable[[Sequence[Outcome]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How a run is to behave."""

    limit: Limit
    max_failures: float | None = None
    budget: Budget = field(default_factory=Budget)
    prices: Mapping[str, Prices] = field(default_factory=dict)  # of each agent's model
    drain_s: float = DEFAULT_DRAIN_S
    stop: StopSwitch = field(default_factory=lambda: StopSwitch(drain_s=DEFAULT_DRAIN_S))
    pause: Pause = pause_before_retry
    token_continuity: TokenContinuity = TokenContinuity.WARN
    listener: Listener | None = None  # hears of everything once it is saved
    stream: TextIO | None = None  # where progress is shown


async def collect(
    agenda: Agenda, store: RolloutStore, attempt: Attempt, conduct: Conduct, *, owed: Iterable[Planned] | None = None
) -> Tally:
    """Run everything that is owed (the whole agenda unless given) and save every outcome as it comes."""
    tally = Tally(spending=Spending(conduct.prices))
    dispatch = Dispatch(iter(agenda if owed is None else owed), attempt, limit=conduct.limit, pause=conduct.pause)
    conduct.stop.connect(lambda patience: dispatch.stop(drain_s=patience))
    progress = Progress(agenda, conduct.stream) if conduct.stream is not None and len(agenda) else None
    watch = _Watch(
        StopRules(failure_budget(conduct.max_failures, len(agenda)), conduct.budget), conduct, tally, dispatch
    )
    async with _housekeeping(store, watch, progress), aclosing(aiter(dispatch)) as batches:
        async for outcomes in batches:
            store.append(outcomes)
            tally.add(outcomes)
            if progress is not None:
                progress.advance(outcomes, tally, dispatch)
            if conduct.listener is not None:
                conduct.listener(outcomes)
            watch.look()
    if conduct.stop.is_on and tally.ended < len(agenda):
        tally.ending = Ending.INTERRUPTED
    return tally


@dataclass(slots=True)
class _Watch:
    """Stops a run that has to end early."""

    rules: StopRules
    conduct: Conduct
    tally: Tally
    dispatch: Dispatch
    started: float = field(default_factory=monotonic)

    def look(self) -> None:
        verdict = self.rules.verdict(self.tally, monotonic() - self.started)
        if verdict is not None and self.tally.ending is Ending.FINISHED:
            self.tally.ending, self.tally.reason = verdict
            self.dispatch.stop(drain_s=self.conduct.drain_s)


@asynccontextmanager
async def _housekeeping(store: RolloutStore, watch: _Watch, progress: Progress | None) -> AsyncIterator[None]:
    """Keep the display alive and the disk up to date, whether or not anything ends."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            watch.look()
            if progress is not None:
                progress.tick(watch.tally, watch.dispatch)

    async def sync() -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            try:
                await asyncio.to_thread(store.sync)
            except StorageError as error:
                watch.dispatch.abort(error)

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
