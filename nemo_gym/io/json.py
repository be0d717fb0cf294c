"""Reads and writes JSON: one reader, and one writer for each purpose.

- ``decode`` reads a line or a body. It accepts everything that Python's own parser accepts (``NaN``, lone surrogates),
  and raises a ``ValueError`` for anything else. ``decode_exactly`` is slower, and keeps integers beyond 64 bits.
- ``encode`` writes a line of a JSONL file: compact, UTF-8, without line feeds. Its input must have come from JSON.
- ``to_json`` writes reports, which must not fail because of an unusual value: NaN and infinities become ``null``, and
  values without an equivalent in JSON become text.
- ``encode_json`` writes the body of a call: of models only the set fields, and bytes unchanged. Parts that are JSON
  already are ``EncodedJson``.

All of them use orjson, and fall back on Python's own module for what orjson refuses: integers beyond 64 bits, lone
surrogates, deep nesting.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import orjson
from pydantic import BaseModel
from pydantic_core import from_json

_NOT_A_MODEL: Final = (dict, list, str)  # as a tuple, because a union would be made anew by every call
JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def decode(text: bytes | str) -> Any:
    """The value of JSON text. Raises ``ValueError`` if the text is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_exactly(text: bytes | str) -> Any:
    """The value of JSON text as pydantic would read it, with integers of any length."""
    try:
        return msgspec.json.decode(text)  # which takes half as long, and refuses what only pydantic accepts
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return from_json(text)
    except ValueError:  # not JSON, or nested more deeply than that reader goes
        return json.loads(text)


class EncodedJson:
    """A part of a body that is JSON already."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


def encode(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """The line for a value, without a line feed; ``default`` converts objects inside it.

    Raises ``ValueError`` if the value is nested too deeply.
    """
    try:
        return orjson.dumps(value, default)
    except TypeError:
        return _slowly(value, default=default)


def encode_json(content: Any) -> bytes:
    """The body for a value: of models only the set fields, bytes unchanged, and nothing for None."""
    if isinstance(content, bytes):
        return content
    if content is None:
        return b""
    # Asking whether something is a model takes pydantic longer than writing a short text.
    if not isinstance(content, _NOT_A_MODEL) and isinstance(content, BaseModel):
        return content.__pydantic_serializer__.to_json(content, exclude_unset=True)
    # Most keys are text. Without the option for others, a long conversation is written a quarter faster.
    for option in (orjson.OPT_SERIALIZE_NUMPY, JSON_OPTIONS):
        try:
            return orjson.dumps(content, default=_nested, option=option)
        except TypeError:
            continue
    return _slowly(content, default=_nested_slowly)


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """The value as JSON for a report, compact or indented by two spaces."""
    try:
        return orjson.dumps(value, default=_plain, option=JSON_OPTIONS | (orjson.OPT_INDENT_2 if indent else 0))
    except orjson.JSONEncodeError:
        return _slowly(_finite(value), default=_plain, indent=2 if indent else None)


def _slowly(value: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None) -> bytes:
    separators = None if indent else (",", ":")
    try:
        return json.dumps(value, default=default, indent=indent, separators=separators).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _nested(value: Any) -> Any:
    return orjson.Fragment(value.text) if isinstance(value, EncodedJson) else _nested_model(value)


def _nested_slowly(value: Any) -> Any:
    return json.loads(value.text) if isinstance(value, EncodedJson) else _nested_model(value)


def _nested_model(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"{type(value).__name__} can't be sent as JSON")


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "item"):  # a numpy number
        return value.item()
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
