"""What a request may set through its metadata, whose values are always text. Pure but for the reading of recordings."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

JSON_KNOBS: Final = ("chat_template_kwargs", "extra_body")
AUDIO_KNOBS: Final = ("audio_data", "audio_path", "audio_paths")
MEDIA_TYPES: Final = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".mp3": "audio/mpeg",
    ".m4a": "audio/mp4",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
}


class KnobError(ValueError):
    """Metadata that does not say what it should."""


def set_knobs(
    chat: Mapping[str, Any], *, extra_body: Mapping[str, Any], chat_template_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The request with its knobs and the configured defaults applied: the request's own fields always win."""
    metadata = dict(chat.get("metadata") or {})
    extra = {**extra_body, **_json_object(metadata, "extra_body")}
    template = {
        **chat_template_kwargs,
        **(extra.pop("chat_template_kwargs", None) or {}),
        **_json_object(metadata, "chat_template_kwargs"),
    }
    body = extra | {name: value for name, value in chat.items() if name != "metadata"}
    rest = {name: value for name, value in metadata.items() if name not in (*JSON_KNOBS, *AUDIO_KNOBS)}
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
        raise KnobError(f"metadata.{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise KnobError(f"metadata.{name} is not a JSON object")
    return value


def wants_audio(metadata: Mapping[str, str]) -> bool:
    """True if the metadata names recordings."""
    return any(name in metadata for name in AUDIO_KNOBS)


def audio_urls(metadata: Mapping[str, str], root: Path | None) -> list[str]:
    """The recordings that the metadata names, as URLs that contain them. Reads files."""
    given = [name for name in AUDIO_KNOBS if name in metadata]
    if len(given) > 1:
        raise KnobError(f"metadata has {' and '.join(given)}: one of them is enough")
    value = metadata[given[0]]
    if given[0] == "audio_data":
        return [value if ":" in value[:10] else f"data:audio/wav;base64,{value}"]
    return [_read(Path(path), root) for path in (_paths(value) if given[0] == "audio_paths" else [value])]


def _paths(value: str) -> list[str]:
    try:
        paths = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise KnobError(f"metadata.audio_paths is not JSON: {error}") from error
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise KnobError("metadata.audio_paths is not a JSON list of paths")
    return paths


def _read(path: Path, root: Path | None) -> str:
    media_type = MEDIA_TYPES.get(path.suffix.lower())
    if media_type is None:
        raise KnobError(f"{path}: a recording ends in {', '.join(MEDIA_TYPES)}")
    try:
        content = (root / path if root else path).read_bytes()
    except OSError as error:
        raise KnobError(f"{path}: {error.strerror}; relative paths begin at audio_root") from error
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def add_audio(messages: list[dict[str, Any]], urls: list[str]) -> None:
    """Put recordings before the text of the last message of the user."""
    blocks = [{"type": "audio_url", "audio_url": {"url": url}} for url in urls]
    for message in reversed(messages):
        if message["role"] == "user":
            content = message["content"]
            text = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            message["content"] = [*blocks, *text]
            return
    raise KnobError("metadata names recordings, but no user speaks")
