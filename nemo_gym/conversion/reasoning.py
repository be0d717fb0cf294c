"""Reasoning in its three shapes: a ``reasoning`` item, ``<think>`` blocks inside a text, a field beside it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

# Different servers, different names for the same thing.
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
BEGIN: Final = "<think>"
END: Final = "</think>"


def wrap_reasoning(texts: Iterable[str]) -> str:
    """One ``<think>`` block for each text."""
    return "".join([f"{BEGIN}{text}{END}" for text in texts])


def extract_reasoning(content: str) -> tuple[list[str], str]:
    """The texts of all complete ``<think>`` blocks, and what remains without them."""
    before, end, after = content.partition(END)
    if not end:
        return [], content
    if before.startswith(BEGIN) and BEGIN not in after:  # the usual case: the model thinks once, and first
        return [before[len(BEGIN) :]], after
    return _extract_blocks(content)


def _extract_blocks(content: str) -> tuple[list[str], str]:
    texts: list[str] = []
    said: list[str] = []
    done = 0
    while (start := content.find(BEGIN, done)) >= 0 and (end := content.find(END, start)) >= 0:
        said.append(content[done:start])
        texts.append(content[start + len(BEGIN) : end])
        done = end + len(END)
    said.append(content[done:])
    return texts, "".join(said)


def reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """What a reasoning item says; some endpoints put it into ``content`` and leave the summary empty."""
    if item.get("summary"):
        return [part["text"] for part in item["summary"]]
    return [part["text"] for part in item.get("content") or () if isinstance(part, dict) and "text" in part]


def separate_reasoning(message: Mapping[str, Any]) -> str:
    """The reasoning that an endpoint returned beside the content of a chat message, or nothing."""
    for name in REASONING_FIELDS:
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return ""
