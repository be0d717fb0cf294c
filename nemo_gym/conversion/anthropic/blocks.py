"""Converts blocks of Anthropic's Messages API to parts and items of the Responses API, and back. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from nemo_gym.conversion.parts import UnsupportedContentError

# The key for arguments that are not a JSON object: a block has no other place for what the model really wrote.
INVALID_ARGUMENTS: Final = "_invalid_arguments"
_CITATIONS: Final = frozenset(
    {"char_location", "content_block_location", "page_location", "search_result_location", "web_search_result_location"}
)


def are_citations(annotations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether annotations came from this protocol, and can go back."""
    return all(note.get("type") in _CITATIONS for note in annotations)


def block_to_part(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block of input as a part of a message."""
    kind = block["type"]
    if kind == "text":
        return {"type": "input_text", "text": block["text"]}
    source = block.get("source") or {}
    if kind == "image":
        if source.get("type") == "file":
            return {"type": "input_image", "file_id": source["file_id"], "detail": "auto"}
        return {"type": "input_image", "image_url": _url(source), "detail": "auto"}
    if kind == "document":
        part = {"type": "input_file", **_file(source)}
        return part | ({"filename": block["title"]} if block.get("title") else {})
    raise UnsupportedContentError(f"the Responses API has no equivalent for a block of type {kind!r}")


def _url(source: Mapping[str, Any]) -> str:
    if source.get("type") == "base64":
        return f"data:{source['media_type']};base64,{source['data']}"
    return str(source["url"])


def _file(source: Mapping[str, Any]) -> dict[str, Any]:
    match source.get("type"):
        case "base64":
            return {"file_data": _url(source)}
        case "url":
            return {"file_url": source["url"]}
        case "file":
            return {"file_id": source["file_id"]}
        case "text":
            data = orjson.dumps(source["data"]).decode()  # escaped, so that it fits into a URL
            return {"file_data": f"data:text/plain;json,{data}"}
    raise UnsupportedContentError(f"the Responses API has no equivalent for a document from {source.get('type')!r}")


def part_to_block(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a message as a block of input."""
    kind = part["type"]
    if kind in ("input_text", "output_text"):
        block = {"type": "text", "text": part["text"]}
        notes = part.get("annotations")
        return block | {"citations": list(notes)} if notes and are_citations(notes) else block
    if kind == "refusal":
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image":
        return {"type": "image", "source": _source(part.get("image_url"), part.get("file_id"))}
    if kind == "input_file":
        data = part.get("file_data") or part.get("file_url")
        block = {"type": "document", "source": _source(data, part.get("file_id"))}
        return block | ({"title": part["filename"]} if part.get("filename") else {})
    raise UnsupportedContentError(f"Anthropic's Messages API has no equivalent for a part of type {kind!r}")


def _source(url: str | None, file_id: str | None) -> dict[str, Any]:
    if not url:
        if not file_id:
            raise UnsupportedContentError("an image or a file without content, URL or id")
        return {"type": "file", "file_id": file_id}
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, _, data = url.removeprefix("data:").partition(",")
    media_type, *options = kind.split(";")
    if "json" in options:
        return {"type": "text", "media_type": media_type, "data": orjson.loads(data)}
    return {"type": "base64", "media_type": media_type, "data": data}


def arguments_to_input(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; text that is not a JSON object is kept inside one."""
    try:
        parsed = orjson.loads(arguments) if arguments else {}
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {INVALID_ARGUMENTS: arguments}


def input_to_arguments(arguments: Any) -> str:
    """The arguments of a call as text; the inverse of ``arguments_to_input``, which also accepts plain text."""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, dict) and arguments.keys() == {INVALID_ARGUMENTS}:
        return str(arguments[INVALID_ARGUMENTS])
    return orjson.dumps(arguments).decode()
