"""When two requests count as the same, and how different ones differ.

The order of keys does not matter, nor whether a parameter is null or missing. Headers are not part of a request. The
key of a request is a digest of its canonical text.
"""

import json
from hashlib import blake2b
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict

from nemo_gym.schemas.call_tokens import common_prefix

SHOWN: Final = 80
MISSING: Final = object()


def canonical(body: bytes) -> str:
    """Write a request so that equal requests give equal text; a body that is not a JSON object stays as it is."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="backslashreplace")
    if isinstance(request, dict):
        request = {name: value for name, value in request.items() if value is not None}
    return orjson.dumps(request, option=orjson.OPT_SORT_KEYS).decode()


def key_of(path: str, text: str) -> str:
    """Compute the key of a request from its canonical text."""
    return blake2b(f"{path}\n{text}".encode(errors="backslashreplace"), digest_size=16).hexdigest()


class AnyRequest(BaseModel):
    """A request that is forwarded or looked up without being read; the upstream server checks it."""

    model_config = ConfigDict(extra="allow")

    # A stream is made from the recorded reply, before the request comes here.
    stream: Literal[False] | None = None


def common_end(one: str, other: str) -> int:
    """Count the characters that two texts have in common at the end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def likeness(one: str, other: str) -> int:
    """Measure how much two texts have in common; more is nearer."""
    start = common_prefix(one, other)
    return start + common_end(one[start:], other[start:]) - abs(len(one) - len(other)) // 4


def first_difference(recorded: str, requested: str) -> str:
    """Describe where two requests first differ."""
    try:
        found = _difference(orjson.loads(recorded), orjson.loads(requested), "")
    except orjson.JSONDecodeError:
        found = None
    if found is None:
        place = common_prefix(recorded, requested)
        return f"at character {place}: recorded {_shown(recorded[place:])}, requested {_shown(requested[place:])}"
    where, one, other = found
    return f"at {where or 'the top'}: recorded {_shown(one)}, requested {_shown(other)}"


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
