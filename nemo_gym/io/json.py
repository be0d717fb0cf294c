"""Values to JSON that every reader accepts: NaN and infinities become ``null``, odd values never stop a report.

One JSON value per line: how lines are read and written.

Lines are written compactly, in UTF-8, with ``\n`` at the end and never inside. Reading is more tolerant than writing:
whatever Python's own reader accepts (``NaN``, lone surrogates) is accepted here.

What a call looks like on the wire, on every transport: JSON bytes, cookies, headers.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson
from pydantic import BaseModel

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


def encode(value: Any) -> bytes:
    """The line for a value, without its end."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits and lone surrogates
        return json.dumps(value, separators=(",", ":")).encode()


def decode(line: bytes | str) -> Any:
    """The value on a line. Raises ``ValueError`` if there is none."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def encode_json(content: Any) -> bytes:
    """The body for a value: models send what was set, bytes are JSON already, nothing sends nothing."""
    if content is None:
        return b""
    if isinstance(content, BaseModel):
        return content.__pydantic_serializer__.to_json(content, exclude_unset=True)
    if isinstance(content, bytes):
        return content
    try:
        return orjson.dumps(content, default=_encode_nested, option=JSON_OPTIONS)
    except TypeError:  # integers beyond 64 bits, which JSON allows
        return json.dumps(content, default=_encode_nested).encode()


def _encode_nested(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"{type(value).__name__} can't be sent as JSON")


def cookie_values(cookies: Mapping[str, Any] | None) -> dict[str, str]:
    """Names and values, whether the caller holds strings or the morsels of an earlier answer."""
    if not cookies:
        return {}
    return {name: getattr(value, "value", value) for name, value in cookies.items()}


def request_headers(
    host: bytes, body: bytes, cookies: Mapping[str, str], extra: Mapping[str, str] | None
) -> list[tuple[bytes, bytes]]:
    """The headers that an HTTP client would send."""
    headers = [(b"host", host)]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if cookies:
        text = "; ".join(f"{name}={value}" for name, value in cookies.items())
        headers.append((b"cookie", text.encode("latin-1")))
    if not extra:
        return headers
    given = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in extra.items()]
    names = {name for name, _ in given}
    return [pair for pair in headers if pair[0] not in names] + given
