"""Parts of a message's content, from one protocol to the other and back. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any


class UnsupportedContentError(NotImplementedError):
    """Content that the other protocol has no words for."""


def parts_to_chat(content: str | Iterable[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of an input message for Chat Completions."""
    return content if isinstance(content, str) else [_part_to_chat(part) for part in content]


def _part_to_chat(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "input_text" | "output_text":
            return {"type": "text", "text": part["text"]}
        case "input_image" if part.get("image_url"):
            image = {"url": part["image_url"]}
            if part.get("detail"):
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "input_file" if not part.get("file_url"):
            kept = ("file_data", "file_id", "filename")
            return {"type": "file", "file": {name: part[name] for name in kept if part.get(name)}}
    raise UnsupportedContentError(
        f"Chat Completions has no equivalent for a part of type {part['type']!r} with {sorted(part)}"
    )


def parts_to_responses(content: str | Iterable[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a chat message for the Responses API."""
    return content if isinstance(content, str) else [_part_to_responses(part) for part in content]


def _part_to_responses(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            converted = {"type": "input_image", "image_url": image["url"]}
            if image.get("detail"):
                converted["detail"] = image["detail"]
            return converted
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "file":
            return {"type": "input_file", **part["file"]}
    raise UnsupportedContentError(f"the Responses API has no equivalent for a chat part of type {part['type']!r}")


def joined_text(content: str | Iterable[Mapping[str, Any]] | None) -> str:
    """The text of a chat message, whatever shape its content has."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part.get("type") == "text")
