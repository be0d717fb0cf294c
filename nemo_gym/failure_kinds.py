"""Front door: the names of what can keep a rollout from being measured. Needs only the standard library.

A server may use names of its own in the form ``<server>:<kind>``.
"""

import logging
import re
from typing import Final, Literal

FailureStage = Literal["admission", "seed", "agent", "verification", "cleanup"]

TRANSPORT_UNREACHABLE: Final = "transport_unreachable"
TRANSPORT_PEER_DROP: Final = "transport_peer_drop"
TRANSPORT_TIMEOUT: Final = "transport_timeout"
TRANSPORT_LOCAL_RESOURCE: Final = "transport_local_resource"
AGENT_RUN_ERROR: Final = "agent_run_error"
AGENT_REQUEST_FAILED: Final = "agent_request_failed"
AGENT_TIMEOUT: Final = "agent_timeout"
AGENT_COMMAND_NOT_ALLOWED: Final = "agent_command_not_allowed"
JUDGE_FAILED: Final = "judge_failed"
JUDGE_UNPARSEABLE: Final = "judge_unparseable"
VERIFIER_ERROR: Final = "verifier_error"
PROVIDER_UNAVAILABLE: Final = "provider_unavailable"
PROVIDER_QUOTA_EXHAUSTED: Final = "provider_quota_exhausted"
PROVIDER_OOM_KILLED: Final = "provider_oom_killed"
SESSION_LOST: Final = "session_lost"
SESSION_EXPIRED: Final = "session_expired"
SESSION_RELEASE_FAILED: Final = "session_release_failed"
CANCELLED: Final = "cancelled"
KILL_SHAPED: Final = "kill_shaped"
SHUTDOWN: Final = "shutdown"
PERSISTENCE_FAILED: Final = "persistence_failed"
COHORT_INCOMPLETE: Final = "cohort_incomplete"

FAILURE_KINDS: Final = frozenset(
    value for name, value in tuple(globals().items()) if name.isupper() and isinstance(value, str)
)
_NAMESPACED: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*:[a-z0-9][a-z0-9_.-]*")
_warned: Final[set[str]] = set()


def is_registered(name: str) -> bool:
    """Whether this is one of the names above."""
    return name in FAILURE_KINDS


def is_namespaced(name: str) -> bool:
    """Whether this is a name of a server's own, ``<server>:<kind>``."""
    return _NAMESPACED.fullmatch(name) is not None


def validate_failure_kind(name: str | None) -> str | None:
    """The same name. One that is neither registered nor namespaced is logged once."""
    if name is not None and name not in _warned and not is_registered(name) and not is_namespaced(name):
        _warned.add(name)
        logging.getLogger(__name__).warning(
            "the failure kind %r is neither a known one nor of the form <server>:<kind>", name
        )
    return name
