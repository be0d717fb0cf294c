"""Decides how a run begins: afresh, or where an earlier one stopped."""

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.plan import Row
from nemo_gym.rollouts.store.agenda import Agenda
from nemo_gym.rollouts.store.history import RetryPolicy
from nemo_gym.rollouts.store.manifest import Manifest, Request
from nemo_gym.rollouts.store.rollout_store import Approve, RolloutStore

logger = logging.getLogger(__name__)


class ResumeMode(StrEnum):
    """What to do if a resumed run is asked for something else than the run before it."""

    STRICT = "strict"  # refuse, and say what differs
    EXTEND = "extend"  # plan anew, run what is new, keep what is collected
    FORCE = "force"  # go on with the old plan, whatever is asked for


class PlanChangedError(ConfigError):
    """A run can't be resumed because it is asked for something else."""


def begin(
    store: RolloutStore,
    rows: Callable[[], Iterable[Row]],
    request: Request,
    *,
    resume: bool = False,
    mode: ResumeMode = ResumeMode.STRICT,
    policy: RetryPolicy,
    approve: Approve = lambda agenda: None,  # noqa: ARG005 - nothing to object to
) -> Agenda:
    """Prepare the files and find out what is owed. ``rows`` makes the plan and is called only if one is needed."""
    if not resume or not store.can_resume:
        if resume:
            missing = [path.name for path in (store.files.plan, store.files.rollouts) if not path.exists()]
            logger.info("Nothing to resume (%s not there): starting afresh", " and ".join(missing))
        return store.begin(rows(), request, policy, approve)
    changes = _changes(store, request)
    if mode is ResumeMode.EXTEND:
        return store.extend(rows(), request, policy, approve)
    if changes and mode is ResumeMode.STRICT:
        raise PlanChangedError(
            "this output was collected with another plan:\n" + "\n".join(f"  {change}" for change in changes),
            hint="resume with the old settings; or +resume_mode=extend to run only what is new; or "
            "+resume_mode=force to finish the old plan; or another output_jsonl_fpath",
        )
    return store.resume(policy, approve)


def _changes(store: RolloutStore, request: Request) -> list[str]:
    """What differs from the run before; nothing is known without a manifest, and then the plan on disk is the plan."""
    earlier = Manifest.read(store.files.manifest)
    if earlier is None:
        return []
    changes = list(request.differences(earlier))
    if store.files.plan.stat().st_size != earlier.plan.bytes:
        changes.append(f"{store.files.plan.name}: the file is not as it was written")
    return changes
