"""Options that a request sets through its ``metadata``, whose values are always text, or beside its fields.

The Responses API has no fields for much of what endpoints offer (``top_k``, ``chat_template_kwargs``, recordings).
Requests carry it in ``metadata.extra_body`` and ``metadata.chat_template_kwargs`` (JSON) and ``metadata.audio_…``.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

JSON_OPTIONS: Final = ("chat_template_kwargs", "extra_body")
AUDIO_OPTIONS: Final = ("audio_data", "audio_path", "audio_paths")
MEDIA_TYPES: Final = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".mp3": "audio/mpeg",
    ".m4a": "audio/mp4",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
}


class MetadataError(ValueError):
    """Metadata that cannot be used."""


def with_options(
    chat: Mapping[str, Any], *, extra_body: Mapping[str, Any], chat_template_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Put the options of a request's metadata, and the configured defaults, beside its fields, which always win."""
    metadata = dict(chat.get("metadata") or {})
    given = chat.get("extra_body")
    extra = {**extra_body, **_json_object(metadata, "extra_body"), **(given if isinstance(given, dict) else {})}
    template = {
        **chat_template_kwargs,
        **(extra.pop("chat_template_kwargs", None) or {}),
        **_json_object(metadata, "chat_template_kwargs"),
        **(chat.get("chat_template_kwargs") or {}),
    }
    body = extra | {name: value for name, value in chat.items() if name not in ("metadata", "extra_body")}
    rest = {name: value for name, value in metadata.items() if name not in (*JSON_OPTIONS, *AUDIO_OPTIONS)}
    if rest:
        body["metadata"] = rest
    if template:
        body["chat_template_kwargs"] = template
    return body


def _json_object(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    if name not in metadata:
        return {}
    try:
        value = orjson.loads(metadata[name])
    except orjson.JSONDecodeError as error:
        raise MetadataError(f"metadata.{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MetadataError(f"metadata.{name} is not a JSON object")
    return value


def wants_audio(metadata: Mapping[str, str]) -> bool:
    """Whether the metadata names recordings."""
    return any(name in metadata for name in AUDIO_OPTIONS)


def audio_urls(metadata: Mapping[str, str], root: Path | None) -> list[str]:
    """Read the recordings that the metadata names into URLs that contain them."""
    given = [name for name in AUDIO_OPTIONS if name in metadata]
    if len(given) > 1:
        raise MetadataError(f"metadata has {' and '.join(given)}, but only one of them is allowed")
    value = metadata[given[0]]
    if given[0] == "audio_data":
        return [value if ":" in value[:10] else f"data:audio/wav;base64,{value}"]
    return [_read(Path(path), root) for path in (_paths(value) if given[0] == "audio_paths" else [value])]


def _paths(value: str) -> list[str]:
    try:
        paths = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MetadataError(f"metadata.audio_paths is not JSON: {error}") from error
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise MetadataError("metadata.audio_paths is not a JSON list of paths")
    return paths


def _read(path: Path, root: Path | None) -> str:
    media_type = MEDIA_TYPES.get(path.suffix.lower())
    if media_type is None:
        raise MetadataError(f"{path}: recordings must end in one of {', '.join(MEDIA_TYPES)}")
    try:
        content = (root / path if root else path).read_bytes()
    except OSError as error:
        raise MetadataError(f"{path}: {error.strerror} (relative paths start at audio_root)") from error
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def add_audio(messages: list[dict[str, Any]], urls: list[str]) -> None:
    """Put recordings before the text of the last user message."""
    blocks = [{"type": "audio_url", "audio_url": {"url": url}} for url in urls]
    for message in reversed(messages):
        if message["role"] == "user":
            content = message["content"]
            text = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            message["content"] = [*blocks, *text]
            return
    raise MetadataError("metadata names recordings, but there is no user message to put them into")
