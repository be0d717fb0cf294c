"""What a conversation says, as a sequence of numbers: equal content has equal numbers, however it is written. Pure.

It shows which call a request continues where there are no tokens, and where in its items the new ones begin. Ids, marks
for caches, reasoning, the form of arguments and white space at the ends are not content: clients drop, move and rewrite
them. Instructions before the conversation don't count either: an agent that begins to plan has others.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

_BYTES = 7  # so that a number is exact wherever JSON is read
_SORTED = orjson.OPT_SORT_KEYS


class Outline(NamedTuple):
    """The numbers of a conversation as text, and how many numbers each of its items has."""

    text: bytes
    counts: list[int]

    @property
    def length(self) -> int:
        return sum(self.counts)

    def items_after(self, length: int) -> int | None:
        """How many items hold the first numbers; None if an item holds the next of them too."""
        seen = 0
        for place, count in enumerate(self.counts):
            if seen == length > 0:
                return place
            seen += count
        return len(self.counts) if seen == length else None


def outline(items: Sequence[Mapping[str, Any]]) -> Outline:
    """The outline of a conversation, or of an answer."""
    numbers: list[bytes] = []
    counts = []
    for item in items:
        found = [] if not numbers and item.get("role") in ("system", "developer") else list(_elements(item))
        numbers += found
        counts.append(len(found))
    return Outline(b",".join(numbers), counts)


def _elements(item: Mapping[str, Any]) -> Iterator[bytes]:
    match item.get("type") or "message":
        case "reasoning":
            return
        case "function_call":
            yield _number(b"call", item["name"].encode(), _arguments(item.get("arguments")))
        case "custom_tool_call":
            yield _number(b"call", item["name"].encode(), _text(item.get("input")))
        case "function_call_output" | "custom_tool_call_output":
            yield _number(b"result", *_parts(item.get("output")))
        case "message":
            parts = _parts(item.get("content"))
            if parts:
                yield _number(str(item["role"]).replace("developer", "system").encode(), *parts)
        case other:
            plain = {name: value for name, value in item.items() if name not in ("id", "status")}
            yield _number(str(other).encode(), orjson.dumps(plain, option=_SORTED))


def _parts(content: Any) -> list[bytes]:
    """The texts of a content joined, and everything else as it is."""
    if isinstance(content, str) or content is None:
        whole = _text(content)
        return [whole] if whole else []
    texts: list[str] = []
    others: list[bytes] = []
    for part in content:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else str(part)
        if isinstance(text, str):
            texts.append(text)
        else:
            others.append(orjson.dumps({key: part[key] for key in part if key != "cache_control"}, option=_SORTED))
    joined = _text("".join(texts))
    return [joined, *others] if joined else others


def _text(text: Any) -> bytes:
    return str(text or "").strip().encode("utf-8", "surrogatepass")


def _arguments(text: Any) -> bytes:
    try:
        return orjson.dumps(orjson.loads(text), option=_SORTED)
    except (orjson.JSONDecodeError, TypeError):
        return _text(text)


def _number(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=_BYTES)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return b"%d" % int.from_bytes(digest.digest(), "big")
