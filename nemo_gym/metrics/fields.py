"""What the fields of a rollout mean: which are numbers worth averaging, which task it is, what its transcript counts.

One rule for every reader of rollouts. A metric is a top-level bool, int or float, or one in ``response.usage``; what
the program stamps itself (``_ng_*``, references, the request and the response) is never a metric, whatever its type.

A *tool call* is an output item whose type ends in ``_call``. A *turn* is a sequence of items that the model produced in
one go (reasoning, assistant messages, tool calls); the output of a tool, or a message by someone else, ends it.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

REWARD: Final = "reward"
PASS_THRESHOLD: Final = 1.0  # lowest reward with which a rollout passes, unless set otherwise
USAGE: Final = "usage"
BOOKKEEPING_PREFIX: Final = "_ng_"
NEVER_METRICS: Final = frozenset(
    {AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME, SKILLS_REF_KEY_NAME}
)
# Stands for "no rollout index given"; the smallest int64 is not an index anybody writes.
NO_INDEX: Final = -(2**63)


class RolloutFormatError(ValueError):
    """A record that cannot be a rollout, for example because its index is text."""


REWARD_COMPONENTS: Final = "reward_components"


def is_metric_name(name: str) -> bool:
    """Whether a field can be a metric; those that the program itself writes into a row cannot."""
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


def numeric_fields(record: Mapping[str, Any]) -> dict[str, bool | int | float]:
    """The numeric top-level fields in the order of the record, then the parts of the reward. Booleans stay booleans."""
    found = {
        name: value for name, value in record.items() if isinstance(value, bool | int | float) and is_metric_name(name)
    }
    parts = record.get(REWARD_COMPONENTS)
    if isinstance(parts, Mapping):
        numbers = {name: value for name, value in parts.items() if isinstance(value, bool | int | float)}
        found |= {f"{REWARD_COMPONENTS}/{name}": value for name, value in numbers.items()}
    return found


def usage_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """``response.usage``, or an empty mapping when the response or its usage is absent, null or not an object."""
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


QUESTION_FIELDS: Final = ("question", "problem", "prompt")


def task_content(record: Mapping[str, Any]) -> int | None:
    """A number of 53 bits that stands for what a task asks: instructions and input. None if the record does not say.

    Sampling parameters, tools and the index do not matter, so two runs with other settings have the same contents.
    """
    params = record.get(RESPONSES_CREATE_PARAMS_KEY_NAME)
    asked: Any = None
    if isinstance(params, Mapping) and params.get("input") is not None:
        asked = [params.get("instructions"), params["input"]]
    if asked is None:
        asked = next((record[name] for name in QUESTION_FIELDS if isinstance(record.get(name), str)), None)
    if asked is None:
        return None
    try:
        text = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested very deeply, or text that is not valid Unicode
        text = repr(asked).encode("utf-8", "replace")
    # 53 bits, because the viewer's columns are floats, which hold no larger integers exactly.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 11


TOOL_CALLS: Final = "tool_calls"
TURNS: Final = "turns"
MODEL_ROLES: Final = frozenset({None, "assistant"})


class TranscriptCounts(NamedTuple):
    """Counts of one rollout; None where there is no transcript to count in."""

    tool_calls: int | None
    turns: int | None


NO_TRANSCRIPT: Final = TranscriptCounts(None, None)


def count_items(items: Iterable[tuple[str | None, str | None]]) -> TranscriptCounts:
    """Count over the (type, role) pairs of the output items, in order."""
    calls = turns = 0
    speaking = False
    for kind, role in items:
        calls += kind is not None and kind.endswith("_call")
        by_model = not (kind or "").endswith("_output") and role in MODEL_ROLES
        turns += by_model and not speaking
        speaking = by_model
    return TranscriptCounts(calls, turns)


def count_record(record: Mapping[str, Any]) -> TranscriptCounts:
    """Count in the transcript of a record."""
    output = output_of(record)
    return NO_TRANSCRIPT if output is None else count_items(map(type_and_role, output))


def output_of(record: Mapping[str, Any]) -> list[Any] | None:
    """``response.output``, or a top-level ``output`` as older files have it, if it is a list."""
    response = record.get(RESPONSE_KEY_NAME)
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list):
        output = record.get("output")
    return output if isinstance(output, list) else None


def type_and_role(item: object) -> tuple[str | None, str | None]:
    """The type and the role of an item; None where it has none."""
    if not isinstance(item, Mapping):
        return None, None
    kind, role = item.get("type"), item.get("role")
    return kind if isinstance(kind, str) else None, role if isinstance(role, str) else None
