"""What a call looks like on the wire, on every transport: JSON bytes, cookies, headers."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel

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
