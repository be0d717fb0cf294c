"""What makes two requests the same, and how two that are not differ. Pure.

The order of keys does not matter, nor does a parameter that is null instead of missing. Headers are no part of a
request.
"""

import json
from hashlib import blake2b
from typing import Any, Final

import orjson

from nemo_gym.metrics.continuity import common_prefix

SHOWN: Final = 80
MISSING: Final = object()


def canonical(body: bytes) -> str:
    """The one text of all requests that are the same; what is no JSON object is its own text."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="backslashreplace")
    if isinstance(request, dict):
        request = {name: value for name, value in request.items() if value is not None}
    return orjson.dumps(request, option=orjson.OPT_SORT_KEYS).decode()


def key_of(path: str, text: str) -> str:
    """The short name of a request, given its one text."""
    return blake2b(f"{path}\n{text}".encode(errors="backslashreplace"), digest_size=16).hexdigest()


def common_end(one: str, other: str) -> int:
    """How many characters two texts have in common at the end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def likeness(one: str, other: str) -> int:
    """How much two texts have in common; more is nearer."""
    start = common_prefix(one, other)
    return start + common_end(one[start:], other[start:]) - abs(len(one) - len(other)) // 4


def first_difference(recorded: str, asked: str) -> str:
    """Where two requests differ first, in words."""
    try:
        found = _difference(orjson.loads(recorded), orjson.loads(asked), "")
    except orjson.JSONDecodeError:
        found = None
    if found is None:
        place = common_prefix(recorded, asked)
        return f"at character {place}: recorded {_shown(recorded[place:])}, asked {_shown(asked[place:])}"
    where, one, other = found
    return f"at {where or 'the top'}: recorded {_shown(one)}, asked {_shown(other)}"


def _difference(one: Any, other: Any, where: str) -> tuple[str, Any, Any] | None:
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{where}.{name}".lstrip("."), name) for name in sorted({*one, *other})]
        inner = ((place, one.get(name, MISSING), other.get(name, MISSING)) for place, name in pairs)
    elif isinstance(one, list) and isinstance(other, list):
        numbers = range(max(len(one), len(other)))
        inner = ((f"{where}[{n}]", _at(one, n), _at(other, n)) for n in numbers)
    else:
        return None if one == other and type(one) is type(other) else (where, one, other)
    return next((found for place, a, b in inner if (found := _difference(a, b, place))), None)


def _at(items: list[Any], number: int) -> Any:
    return items[number] if number < len(items) else MISSING


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
