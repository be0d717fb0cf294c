"""Which fields of a scored rollout are numbers worth averaging.

One rule for every reader of rollouts: a metric is a top-level bool, int or float, or one in ``response.usage``. What
the program stamps itself (``_ng_*``, references, the request and the response) is never a metric, whatever its type.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

REWARD: Final = "reward"
USAGE: Final = "usage"
BOOKKEEPING_PREFIX: Final = "_ng_"
NEVER_METRICS: Final = frozenset(
    {AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, SKILLS_REF_KEY_NAME}
)
# Stands for "no rollout index given"; the smallest int64 is not an index anybody writes.
NO_INDEX: Final = -(2**63)


class RolloutFormatError(ValueError):
    """A record that cannot be a rollout."""


def is_metric_name(name: str) -> bool:
    """False for what the program itself writes into a row."""
    return name not in NEVER_METRICS and not name.startswith(BOOKKEEPING_PREFIX)


def as_number(value: object) -> int | float | None:
    """The value if it is a number (booleans as 0 and 1), else None."""
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) else None


def as_float(value: float) -> float:
    """A float; an integer too large for one counts as infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def numeric_fields(record: Mapping[str, Any]) -> dict[str, int | float]:
    """The numeric top-level fields, in the order of the record."""
    return {
        name: number
        for name, value in record.items()
        if (number := as_number(value)) is not None and is_metric_name(name)
    }


def usage_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """``response.usage``, or an empty mapping when the response or its usage is absent, null or no object."""
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get(USAGE) if isinstance(response, Mapping) else None
    return usage if isinstance(usage, Mapping) else {}


def agent_of(record: Mapping[str, Any]) -> str | None:
    """The name in ``agent_ref``, or None."""
    reference = record.get(AGENT_REF_KEY_NAME)
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return name if isinstance(name, str) else None


def task_index_of(record: Mapping[str, Any]) -> int:
    """The task index; absent or null counts as 0."""
    return _index(record, TASK_INDEX_KEY_NAME, 0)


def rollout_index_of(record: Mapping[str, Any]) -> int:
    """The rollout index; absent or null is ``NO_INDEX``, to be numbered later."""
    return _index(record, ROLLOUT_INDEX_KEY_NAME, NO_INDEX)


def _index(record: Mapping[str, Any], name: str, default: int) -> int:
    value = record.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not NO_INDEX < value < -NO_INDEX:
        raise RolloutFormatError(f"{name} must be a whole number, not {value!r}")
    return value
