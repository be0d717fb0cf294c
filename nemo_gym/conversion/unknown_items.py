"""Items of types that nobody here knows, kept until the endpoint that made them wants them back. Pure.

Endpoints add types faster than programs learn them (searches they ran themselves, compacted history, …). Such an item
travels inside a reasoning item without text: agents pass by it, files record it, and whoever speaks to the endpoint
again takes it out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

KEPT_ITEM: Final = "unknown_item"
_KEY: Final = f'"{KEPT_ITEM}"'.encode()
KNOWN_TYPES: Final = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def is_unknown(item: Mapping[str, Any]) -> bool:
    """True for an item of another type than those that are worked with here."""
    kind = item.get("type", "message")
    return isinstance(kind, str) and kind not in KNOWN_TYPES


def wrap_unknown_item(item: Mapping[str, Any], *, position: int) -> dict[str, Any]:
    """A reasoning item that has the item inside."""
    return {"id": f"rs_kept_{position}", "summary": [], "type": "reasoning", KEPT_ITEM: dict(item)}


def unknown_item(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The item inside, if there is one."""
    kept = item.get(KEPT_ITEM)
    return kept if isinstance(kept, Mapping) else None


def release_items(items: Iterable[Any]) -> list[Any]:
    """The items as their endpoint made them."""
    return [
        item[KEPT_ITEM] if isinstance(item, dict) and KEPT_ITEM in item and unknown_item(item) is not None else item
        for item in items
    ]


def release_encoded(request: bytes) -> bytes:
    """A request in JSON with its items as their endpoint made them; almost always the same bytes."""
    if _KEY not in request:
        return request
    asked = orjson.loads(request)
    asked["input"] = release_items(asked["input"])
    return orjson.dumps(asked)
