"""One run from beginning to end: plan or resume, run what is owed, save every outcome, compute the metrics.

plan  ─►  dispatch  ─►  outcome  ─►  store
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import TextIO, TypeAlias

from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.io.files import RunFiles, StorageError, storage_errors
from nemo_gym.rollouts.attempt import marked, recorded
from nemo_gym.rollouts.concurrency import Limit
from nemo_gym.rollouts.dispatch import (
    DEFAULT_DRAIN_S,
    Attempt,
    Dispatch,
    Pause,
    pause_before_retry,
)
from nemo_gym.rollouts.gates import TokenContinuity, continuity_gate
from nemo_gym.rollouts.outage import DEFAULT_PATIENCE_S, OutageWatch
from nemo_gym.rollouts.progress import Activity, Describe, Load, Progress
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.outcome import Outcome, PlannedRollout
from nemo_gym.rollouts.store.output import Request
from nemo_gym.rollouts.store.plan_file import PlanOnDisk
from nemo_gym.rollouts.store.rollout_store import ResumeMode, RolloutStore, open_plan, open_store
from nemo_gym.rollouts.tally import (
    AgentMetrics,
    Budget,
    Ending,
    Spending,
    StopRules,
    Summary,
    Tally,
    failure_budget,
    read_spending,
)
from nemo_gym.schemas.record import Row
from nemo_gym.schemas.rows import FailureClass, Prices
from nemo_gym.steps.facts import Usage, UsageMeter, add_facts
from nemo_gym.steps.recording import Trail

logger = logging.getLogger(__name__)


TICK_S = 1.0
SYNC_INTERVAL_S = 5.0
FEWEST_TIMED = 4  # attempts; with fewer, there is no word on where the time went


class StopSwitch:
    """Asks a run to stop: the first request lets running attempts finish, the second cancels them."""

    def __init__(self, *, drain_s: float) -> None:
        self._drain_s = drain_s
        self._requests = 0
        self._listener: Callable[[float], None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the run is to stop."""
        return self._requests > 0

    def press(self) -> None:
        """Ask for the run to stop; asking again is more urgent."""
        self._requests += 1
        if self._listener is not None:
            self._listener(self._time_left)

    def connect(self, listener: Callable[[float], None]) -> None:
        """Call the listener, now or when the run is stopped, with the seconds that running attempts may still take."""
        self._listener = listener
        if self.is_on:
            listener(self._time_left)

    @property
    def _time_left(self) -> float:
        return self._drain_s if self._requests == 1 else 0.0


class RunListener:
    """Follows a run, on its event loop. A listener overrides what it needs, and must not wait for anything."""

    def run_started(self, load: Load) -> None:
        """Attempts are about to begin; ``load`` tells at any time how busy the run is."""

    def outcomes_saved(self, outcomes: Sequence[Outcome]) -> None:
        """Attempts have ended, and their outcomes are saved."""

    def tick(self) -> None:
        """A second has passed, whether or not anything ended."""

    def metrics_computed(self, metrics: Sequence[AgentMetrics]) -> None:
        """The rollouts have been aggregated."""

    def run_ended(self, files: RunFiles) -> None:
        """The run is over and its files are complete. Not called if an error ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """How a run behaves."""

    limit: Limit
    max_failures: float | None = None
    budget: Budget = field(default_factory=Budget)
    prices: Mapping[str, Prices] = field(default_factory=dict)  # of each agent's model
    drain_s: float = DEFAULT_DRAIN_S
    patience_s: float = DEFAULT_PATIENCE_S  # how long to wait for an outage to end
    stop: StopSwitch = field(default_factory=lambda: StopSwitch(drain_s=DEFAULT_DRAIN_S))
    pause: Pause = pause_before_retry
    token_continuity: TokenContinuity = TokenContinuity.WARN
    steps: bool = False  # whether the calls of each attempt are recorded
    server_usage: Callable[[], Usage] = dict  # asks other processes that host the servers what they have used
    trace_run: str = ""  # the id of the run in its traces, if it sends any
    listeners: Sequence[RunListener] = ()
    stream: TextIO | None = None  # where progress is shown


Aggregate: TypeAlias = Callable[[RolloutStore], Awaitable[Sequence[AgentMetrics]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRun:
    """What to collect, and where to save it."""

    output: Path
    rows: Callable[[], Iterable[Row]]  # makes the plan; called only if one is needed
    request: Request
    owed: Callable[[], Iterable[Row]] | None = None  # what is left to run on resuming, if the files don't determine it
    resume: bool = False
    resume_mode: ResumeMode = ResumeMode.STRICT
    overwrite: bool = True  # whether a fresh run may move an existing output aside; if not, it is refused
    may_be_empty: bool = True  # whether a plan without rollouts is accepted
    retries: AttemptPolicy = field(default_factory=AttemptPolicy)
    agents: Collection[str] | None = None  # those that exist, if that is known


async def run_collection(
    run: CollectionRun, attempt: Attempt, control: RunControl, aggregate: Aggregate | None = None
) -> Summary:
    """Collect everything that is owed, and compute the metrics if ``aggregate`` is given."""
    with open_store(run.output, task_file=run.request.input) as store:
        plan = _open(store, run)
        owed = plan.pick(run.owed()) if run.owed is not None and plan.done else None
        meter = await asyncio.to_thread(UsageMeter, control.server_usage) if control.steps else None
        own = marked(attempt, plan.model_changes) if plan.model_changes else attempt
        running: set[Trail] = set()
        with continuity_gate(own, control.token_continuity) as gated:
            tally = await run_owed(
                plan,
                store,
                recorded(gated, trace_run=control.trace_run, running=running) if meter else gated,
                control,
                owed=owed,
                describe=getattr(attempt, "describe", None),
                meter=meter,
                running=running,
            )
        timing = await asyncio.to_thread(_timing, store.files, meter, control.limit, plan, tally) if meter else ()
        metrics = await _metrics(store, aggregate, plan, tally)
        summary = Summary(
            files=store.files,
            planned=plan.planned,
            done_before=plan.done,
            given_up_before=plan.given_up,
            tally=tally,
            spent=await asyncio.to_thread(read_spending, [store.files.rollouts], control.prices)
            if control.prices
            else None,
            metrics=metrics,
            has_metrics_file=store.files.metrics.exists(),
            timing=timing,
        )
    _tell_end(summary, control.listeners)
    return summary


def _tell_end(summary: Summary, listeners: Sequence[RunListener]) -> None:
    for listener in listeners:
        if summary.metrics:
            listener.metrics_computed(summary.metrics)
        listener.run_ended(summary.files)


async def _metrics(
    store: RolloutStore, aggregate: Aggregate | None, plan: PlanOnDisk, tally: Tally
) -> Sequence[AgentMetrics]:
    if aggregate is not None and tally.ending is not Ending.INTERRUPTED and plan.done + tally.completed:
        return await aggregate(store)
    if tally.completed:  # metrics computed earlier no longer describe the rollouts
        for path in (store.files.metrics, store.files.details):
            path.unlink(missing_ok=True)
    return ()


def _open(store: RolloutStore, run: CollectionRun) -> PlanOnDisk:
    """The plan, found or made, and announced."""
    plan = open_plan(
        store,
        run.rows,
        run.request,
        resume=run.resume,
        overwrite=run.overwrite,
        mode=run.resume_mode,
        policy=run.retries,
        approve=lambda plan: _approve(plan, run),
    )
    _announce(plan, run.retries)
    return plan


def _approve(plan: PlanOnDisk, run: CollectionRun) -> None:
    """Refuse a plan that can't be run, before anything on disk is touched."""
    if not plan.planned and not run.may_be_empty:
        raise ConfigError(
            f"the input {run.request.input or ''} has no tasks, so there is nothing to run".replace("  ", " "),
            hint="each line of the input is one task; correct input_jsonl_fpath or limit",
        )
    _check_agents(plan, run.agents)
    _check_reopened(plan, run.retries)


def _check_agents(plan: PlanOnDisk, known: Collection[str] | None) -> None:
    for name in plan.agents if known is not None else ():
        if name not in (known or ()):
            raise ConfigError(
                f"the plan needs agent {name!r}, but no such server is running",
                hint=did_you_mean(name, known or (), available="Agents"),
            )


def _check_reopened(plan: PlanOnDisk, retries: AttemptPolicy) -> None:
    """Refuse a misspelt class of failures, which would reopen nothing. Agents may have classes of their own."""
    known = {*map(str, FailureClass), *(past.kind for past in plan.failures.values())}
    for name in sorted(retries.reopened - known):
        raise ConfigError(
            f"retry_failed: no rollout failed with class {name!r}",
            hint=did_you_mean(name, known, available="Classes of failure"),
        )


def _announce(plan: PlanOnDisk, retries: AttemptPolicy) -> None:
    if plan.done or plan.failures:
        text = f"Resuming: {plan.done} of {plan.planned} rollouts are done, {len(plan)} to run"
        if plan.failures:
            attempts = sum(past.count for past in plan.failures.values())
            given_up = f"{plan.given_up.total()} given up, the limit is {retries.max_attempts} attempts"
            text += f" (failed attempts: {attempts}, of {len(plan.failures)} rollouts; {given_up})"
        logger.info(text)


def _timing(files: RunFiles, meter: UsageMeter, limit: Limit, plan: PlanOnDisk, tally: Tally) -> Sequence[str]:
    """Save what the run used, and summarize where its time went."""
    facts = meter.facts(
        limit=limit.allowed(monotonic()),
        adaptive=limit.adaptive,
        completed=tally.completed,
        attempts=tally.attempts,
    )
    with storage_errors(files.timing, "write"):
        add_facts(files.timing, facts, resumed=bool(plan.done or plan.failures))
    if facts.attempts < FEWEST_TIMED:
        return ()
    from nemo_gym.steps.screen import profile_of, short_lines  # noqa: PLC0415 - needs numpy

    return list(short_lines(profile_of(files)))


# ---- running what is owed --------------------------------------------------------------------------------------------
async def run_owed(
    plan: PlanOnDisk,
    store: RolloutStore,
    attempt: Attempt,
    control: RunControl,
    *,
    owed: Iterable[PlannedRollout] | None = None,
    describe: Describe | None = None,
    meter: UsageMeter | None = None,
    running: Collection[Trail] = (),
) -> Tally:
    """Run everything that is owed (by default, all that the plan owes) and save each outcome as soon as it is known."""
    tally = Tally(spending=Spending(control.prices))
    activity = Activity(attempt, store.files.status, describe)
    dispatch = Dispatch(
        iter(plan if owed is None else owed),
        activity,
        limit=control.limit,
        pause=control.pause,
        outage=OutageWatch(control.patience_s),
        drain_s=control.drain_s,
    )
    control.stop.connect(lambda patience: dispatch.stop(drain_s=patience))
    for listener in control.listeners:
        listener.run_started(dispatch)
    progress = Progress(plan, control.stream, running=running) if control.stream is not None and len(plan) else None
    rules = StopRules(failure_budget(control.max_failures, len(plan)), control.budget)
    watch = _Watch(rules, control, tally, dispatch, len(plan))
    async with _housekeeping(store, watch, progress, activity, meter), aclosing(aiter(dispatch)) as batches:
        async for outcomes in batches:
            # Saved first: nothing that a crash could still undo may be counted, shown or announced.
            _save(outcomes, store, meter)
            tally.add(outcomes)
            if progress is not None:
                progress.advance(outcomes, tally, dispatch)
            for listener in control.listeners:
                listener.outcomes_saved(outcomes)
            watch.look()
    watch.conclude()
    return tally


def _save(outcomes: Sequence[Outcome], store: RolloutStore, meter: UsageMeter | None) -> None:
    began = perf_counter()
    store.append(outcomes)
    if meter is not None:
        meter.append_s += perf_counter() - began


@dataclass(slots=True)
class _Watch:
    """Stops a run that has to end early."""

    rules: StopRules
    control: RunControl
    tally: Tally
    dispatch: Dispatch
    owed: int  # at the beginning
    started: float = field(default_factory=monotonic)

    def look(self) -> None:
        verdict = self.rules.verdict(self.tally, monotonic() - self.started)
        if verdict is not None and self.tally.ending is Ending.FINISHED:  # the first reason counts
            self.tally.ending, self.tally.reason = verdict
            self.dispatch.stop(drain_s=self.control.drain_s)

    def tick(self) -> None:
        """Look, and tell the listeners that time passes."""
        self.look()
        for listener in self.control.listeners:
            listener.tick()

    def conclude(self) -> None:
        """Note why the run ended."""
        outage = self.dispatch.outage
        # A run of one or two rollouts has no outage, but ends for the same reason.
        if self.dispatch.ran_out_of_patience or (outage.blocked and not self.tally.completed):
            self.tally.ending, self.tally.reason = Ending.OUTAGE, outage.why_it_ended()
        # Last, because people who stop a run want to read that they stopped it, whatever else went wrong.
        if self.control.stop.is_on and self.tally.ended < self.owed:
            self.tally.ending, self.tally.reason = Ending.INTERRUPTED, ""


@asynccontextmanager
async def _housekeeping(
    store: RolloutStore,
    watch: _Watch,
    progress: Progress | None,
    activity: Activity,
    meter: UsageMeter | None,
) -> AsyncIterator[None]:
    """Keep the display alive and the disk up to date, whether or not anything ends."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            watch.tick()
            activity.write(watch.tally, watch.dispatch, watch.owed)
            if progress is not None:
                progress.tick(watch.tally, watch.dispatch)

    async def sync() -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            try:
                await asyncio.to_thread(store.sync)  # a slow disk must not hold up the event loop
            except StorageError as error:
                watch.dispatch.abort(error)

    tasks = [asyncio.create_task(tick()), asyncio.create_task(sync())]
    if meter is not None:
        tasks.append(asyncio.create_task(meter.watch()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        activity.remove()
        if progress is not None:
            progress.close()
