"""Rollouts for trainers: yields each outcome as its rollout ends, and writes nothing to disk.

    async with host_gym(config) as gym:
        async for group in stream_groups(tasks, gym.client, agent="my_agent", repeats=8):
            train_on(group)

In place of a client there may be an attempt: worker processes (``executors.processes``) or Gyms on a cluster
(``executors.ray_cluster``), which have their own ``timeout_s``.

Leaving the loop (``break``, an exception, cancellation of the task) cancels what is still running. An attempt that is
followed by another is not yielded. A rollout that is given up is yielded as a ``Failed`` outcome, never as a reward. On
request, that includes rollouts whose tokens are not one sequence (``token_continuity``) and rollouts whose weights are
too old (``freshness``), even if they only became so while waiting for the rest of their group. An outage is waited out
for ``patience_s``; after that, the rollouts it hit are yielded as failed, and an ``OutageError`` ends the loop.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode
from nemo_gym.rollouts.agents import AgentClient
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.concurrency import FixedLimit, Limit
from nemo_gym.rollouts.dispatch import Attempt, Dispatch
from nemo_gym.rollouts.gates import Freshness, TokenContinuity, continuity_gate
from nemo_gym.rollouts.options import DEFAULT_WINDOW
from nemo_gym.rollouts.outage import DEFAULT_PATIENCE_S, OutageWatch
from nemo_gym.rollouts.plan import PlanSpec, plan_rollouts
from nemo_gym.rollouts.store.history import DEFAULT_MAX_ATTEMPTS
from nemo_gym.rollouts.store.outcome import Failed, Outcome, PlannedRollout
from nemo_gym.rollouts.tasks import Task
from nemo_gym.schemas.record import Record, Row
from nemo_gym.schemas.rows import RolloutKey


async def stream_outcomes(
    tasks: Iterable[Mapping[str, Any]],
    client: AgentClient | Attempt,
    *,
    agent: str | None = None,
    repeats: int = 1,
    limit: int | Limit = DEFAULT_WINDOW,
    timeout_s: float | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    patience_s: float = DEFAULT_PATIENCE_S,
    token_continuity: TokenContinuity = TokenContinuity.OFF,
    freshness: Freshness | None = None,
) -> AsyncGenerator[Outcome, None]:
    """Run tasks and yield how each rollout ended, in the order in which they end.

    ``agent`` is for tasks that name none. At most ``limit`` rollouts run at once. ``timeout_s`` is for one attempt, and
    ``max_attempts`` are made before a rollout is given up. The module says what the last three parameters do.
    """
    rows = _plan(tasks, PlanSpec(agent=agent, repeats=repeats))
    with _gated(_attempt(client, timeout_s), token_continuity, freshness) as attempt:
        async with aclosing(_run(rows, attempt, limit, max_attempts, patience_s)) as outcomes:
            async for outcome in outcomes:
                yield outcome


async def stream_groups(
    tasks: Iterable[Mapping[str, Any]],
    client: AgentClient | Attempt,
    *,
    agent: str | None = None,
    repeats: int = 1,
    limit: int | Limit = DEFAULT_WINDOW,
    timeout_s: float | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    patience_s: float = DEFAULT_PATIENCE_S,
    token_continuity: TokenContinuity = TokenContinuity.OFF,
    freshness: Freshness | None = None,
) -> AsyncGenerator[list[Outcome], None]:
    """Run tasks and yield all rollouts of a task together, once the last of them has ended, in their order.

    The parameters are those of ``stream_outcomes``.
    """
    rows = list(_plan(tasks, PlanSpec(agent=agent, repeats=repeats)))
    missing = Counter(Record(row).task for row in rows)
    groups: dict[int, list[Outcome]] = {}
    with _gated(_attempt(client, timeout_s), token_continuity, freshness) as attempt:
        async with aclosing(_run(rows, attempt, limit, max_attempts, patience_s)) as outcomes:
            async for outcome in outcomes:
                task = outcome.planned.key.task
                groups.setdefault(task, []).append(outcome)
                missing[task] -= 1
                if not missing[task]:
                    group = sorted(groups.pop(task), key=lambda ended: ended.planned.key)
                    yield freshness.judge_group(group) if freshness else group


def _attempt(client: AgentClient | Attempt, timeout_s: float | None) -> Attempt:
    return client if callable(client) else AgentAttempt(client, timeout_s=timeout_s)


def _plan(tasks: Iterable[Mapping[str, Any]], spec: PlanSpec) -> Iterable[Row]:
    numbered = (Task(number, sha256(encode(task)).digest(), dict(task)) for number, task in enumerate(tasks))
    return plan_rollouts(numbered, spec)


@contextmanager
def _gated(attempt: Attempt, continuity: TokenContinuity, freshness: Freshness | None) -> Iterator[Attempt]:
    with continuity_gate(attempt, continuity) as gated:
        yield freshness.gate(gated) if freshness else gated


class OutageError(ConfigError):
    """Nothing got through to the servers or the model within ``patience_s``."""


async def _run(
    rows: Iterable[Row], attempt: Attempt, limit: int | Limit, max_attempts: int, patience_s: float
) -> AsyncGenerator[Outcome, None]:
    owed = (PlannedRollout.of(row, last_attempt=max_attempts) for row in rows)
    concurrency = FixedLimit(limit) if isinstance(limit, int) else limit
    dispatch = Dispatch(owed, attempt, limit=concurrency, outage=OutageWatch(patience_s), drain_s=0.0)
    put_off: dict[RolloutKey, Failed] = {}
    async with aclosing(aiter(dispatch)) as batches:
        async for batch in batches:
            for outcome in batch:
                if isinstance(outcome, Failed) and outcome.will_retry:
                    put_off[outcome.planned.key] = outcome
                else:
                    put_off.pop(outcome.planned.key, None)
                    yield outcome
    for outcome in put_off.values():
        yield replace(outcome, final=True)
    if dispatch.ran_out_of_patience:
        raise OutageError(dispatch.outage.why_it_ended())
