"""Values to JSON that every reader accepts: NaN and infinities become ``null``, odd values never stop a report."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson

_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """The value as JSON, compact or with an indent of two."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS | (orjson.OPT_INDENT_2 if indent else 0))
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, or text that is no valid Unicode
        separators = None if indent else (",", ":")
        return json.dumps(_finite(value), default=_plain, indent=2 if indent else None, separators=separators).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "item"):
        return value.item()
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
