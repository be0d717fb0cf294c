"""One run from beginning to end: plan or resume, collect, compute the metrics, say how it went."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nemo_gym.config.suggest import did_you_mean
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.begin import ResumeMode, begin
from nemo_gym.rollouts.collect import Conduct, collect
from nemo_gym.rollouts.continuity_gate import continuity_gate
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.plan import Row
from nemo_gym.rollouts.store.agenda import Agenda
from nemo_gym.rollouts.store.history import RetryPolicy
from nemo_gym.rollouts.store.journal import Fsync
from nemo_gym.rollouts.store.manifest import Request
from nemo_gym.rollouts.store.rollout_store import RolloutStore, open_store
from nemo_gym.rollouts.summary import Summary
from nemo_gym.rollouts.tally import Ending

if TYPE_CHECKING:
    from nemo_gym.rollouts.aggregate import AgentMetrics

logger = logging.getLogger(__name__)

Aggregate: TypeAlias = Callable[[RolloutStore], Awaitable["Sequence[AgentMetrics]"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to collect, and to where."""

    output: Path
    rows: Callable[[], Iterable[Row]]  # makes the plan; called only if one is needed
    request: Request
    owed: Callable[[], Iterable[Row]] | None = None  # says what is left on resuming, if that is not what the files say
    resume: bool = False
    resume_mode: ResumeMode = ResumeMode.STRICT
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    fsync: Fsync = Fsync.INTERVAL
    agents: Collection[str] | None = None  # those that exist, if that is known


async def carry_out(run: Run, attempt: Attempt, conduct: Conduct, aggregate: Aggregate | None = None) -> Summary:
    """Collect everything that is owed, and compute the metrics if it is said how."""
    with open_store(run.output, fsync=run.fsync) as store:
        agenda = begin(
            store,
            run.rows,
            run.request,
            resume=run.resume,
            mode=run.resume_mode,
            policy=run.retries,
            approve=lambda agenda: _check_agents(agenda, run.agents),
        )
        _announce(agenda, run.retries)
        owed = agenda.pick(run.owed()) if run.owed is not None and agenda.done else None
        with continuity_gate(attempt, conduct.token_continuity) as gated:
            tally = await collect(agenda, store, gated, conduct, owed=owed)
        metrics: Sequence[AgentMetrics] = ()
        if aggregate is not None and tally.ending is not Ending.INTERRUPTED and agenda.done + tally.completed:
            metrics = await aggregate(store)
        return Summary(
            files=store.files,
            planned=agenda.planned,
            done_before=agenda.done,
            given_up_before=agenda.given_up,
            tally=tally,
            metrics=metrics,
            has_metrics_file=store.files.metrics.exists(),
        )


def _check_agents(agenda: Agenda, known: Collection[str] | None) -> None:
    for name in agenda.agents if known is not None else ():
        if name not in (known or ()):
            raise ConfigError(
                f"the plan names the agent {name!r}, which is not among the servers",
                hint=did_you_mean(name, known or (), available="Agents"),
            )


def _announce(agenda: Agenda, retries: RetryPolicy) -> None:
    if agenda.done or agenda.failures:
        attempts = sum(past.count for past in agenda.failures.values())
        logger.info(
            "Resuming: %d planned, %d done, %d failed attempts of %d rollouts, %d given up (limit: %d), %d to run",
            agenda.planned,
            agenda.done,
            attempts,
            len(agenda.failures),
            agenda.given_up,
            retries.max_attempts,
            len(agenda),
        )
