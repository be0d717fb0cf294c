"""Two alternatives of which exactly one may apply: narrow one until the other can't apply too. Pure."""

from collections.abc import Callable
from typing import Any, TypeAlias

from responses_api_models.local_model.grammar.values import (
    admits,
    allowed_types,
    bounds_of,
    is_listed,
    type_of,
    types_of,
)

Plain: TypeAlias = dict[str, Any]
Expand: TypeAlias = Callable[[Any], list[Plain]]


def apart(plain: Plain, other: Plain, expand: Expand) -> Plain | None:
    """``plain`` without what would also fit ``other``; None when the two can't be told apart."""
    if is_listed(plain):
        return {**plain, "enum": [value for value in plain["enum"] if not _may_fit(other, value)]}
    wanted = types_of(plain)
    taken = {type_of(value) for value in other["enum"]} if is_listed(other) else allowed_types(other)
    free = [name for name in wanted if name not in taken and not (name == "number" and "integer" in taken)]
    if free:
        return {**plain, "type": free}
    if set(wanted) <= {"integer", "number"} and not is_listed(other) and _ranges_apart(plain, other):
        return plain
    return _objects_apart(plain, other, expand) if wanted == ["object"] and not is_listed(other) else None


def _may_fit(plain: Plain, value: Any) -> bool:
    try:
        return admits(plain, value)
    except NotImplementedError:
        return True


def _ranges_apart(plain: Plain, other: Plain) -> bool:
    one, two = bounds_of(plain), bounds_of(other)
    if one.high is not None and two.low is not None and one.high <= two.low:
        return one.high < two.low or one.below_high or two.above_low
    if one.low is not None and two.high is not None and one.low >= two.high:
        return one.low > two.high or one.above_low or two.below_high
    return False


def _objects_apart(plain: Plain, other: Plain, expand: Expand) -> Plain | None:
    mine, theirs = plain.get("properties", {}), other.get("properties", {})
    if not mine and plain.get("additionalProperties", True) is not False:
        return None  # keys of every name
    required, also_required = plain.get("required", []), other.get("required", [])
    forbidden = other.get("additionalProperties", True) is False and "patternProperties" not in other
    for name in required:
        if name not in theirs and forbidden:
            return plain
        if name in mine and name in theirs and _always_apart(mine[name], theirs[name], expand):
            return plain
    for name in also_required:
        if name not in required:
            # What the other needs is left out here.
            return {**plain, "properties": {key: schema for key, schema in mine.items() if key != name} | {name: False}}
    return None


def _always_apart(schema: Any, other: Any, expand: Expand) -> bool:
    pairs = [(one, two) for one in expand(schema) for two in expand(other)]
    return all(apart(one, two, expand) == one for one, two in pairs)
