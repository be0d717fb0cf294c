"""Keeps items of unknown types, so that they can be sent back to the endpoint that made them. Pure.

Endpoints keep adding types (searches they ran themselves, compacted history, …). Such an item is wrapped in a reasoning
item without text: agents ignore it, files record it, and it is unwrapped when the conversation goes back to the
endpoint.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

UNKNOWN_ITEM: Final = "unknown_item"
_KEY: Final = f'"{UNKNOWN_ITEM}"'.encode()
KNOWN_TYPES: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def is_unknown(item: Mapping[str, Any]) -> bool:
    """Whether the item has a type that this program does not handle."""
    kind = item.get("type", "message")
    return isinstance(kind, str) and kind not in KNOWN_TYPES


def wrap_unknown_item(item: Mapping[str, Any], *, position: int) -> dict[str, Any]:
    """A reasoning item that contains the item."""
    return {"id": f"rs_kept_{position}", "summary": [], "type": "reasoning", UNKNOWN_ITEM: dict(item)}


def unknown_item(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The wrapped item, if there is one."""
    wrapped = item.get(UNKNOWN_ITEM)
    return wrapped if isinstance(wrapped, Mapping) else None


def release_items(items: Iterable[Any]) -> list[Any]:
    """The items with wrapped ones unwrapped. An assistant's message without a type gets it; some endpoints insist."""
    return [
        item if not isinstance(item, dict) or ("type" in item and UNKNOWN_ITEM not in item) else _released(item)
        for item in items
    ]


def _released(item: dict[str, Any]) -> Any:
    if unknown_item(item) is not None:
        return item[UNKNOWN_ITEM]
    if "type" not in item and item.get("role") == "assistant":
        return {**item, "type": "message"}
    return item


def release_encoded(request: bytes) -> bytes:
    """A JSON request with its wrapped items unwrapped; usually there are none, and the bytes stay the same."""
    if _KEY not in request:
        return request
    asked = orjson.loads(request)
    asked["input"] = release_items(asked["input"])
    return orjson.dumps(asked)
