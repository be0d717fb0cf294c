"""Reasoning in its three shapes: a ``reasoning`` item, ``<think>`` blocks inside a text, a field beside it. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from nemo_gym.schemas.items import NeMoGymResponseReasoningItem

_THINK_BLOCK: Final = re.compile(r"<think>(.*?)</think>", re.DOTALL)
# Different servers, different names for the same thing.
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")


def wrap_reasoning(texts: Iterable[str]) -> str:
    """One ``<think>`` block for each text."""
    return "".join(f"<think>{text}</think>" for text in texts)


def extract_reasoning(content: str) -> tuple[list[str], str]:
    """The texts of all complete ``<think>`` blocks, and what remains without them."""
    if "<think>" not in content:
        return [], content
    return _THINK_BLOCK.findall(content), _THINK_BLOCK.sub("", content)


def reasoning_texts(item: NeMoGymResponseReasoningItem) -> list[str]:
    """What a reasoning item says; some endpoints put it into ``content`` and leave the summary empty."""
    if item.summary:
        return [part.text for part in item.summary]
    content = (item.model_extra or {}).get("content") or []
    return [part["text"] for part in content if isinstance(part, dict) and "text" in part]


def separate_reasoning(message: Mapping[str, Any]) -> str:
    """The reasoning that an endpoint returned beside the content of a chat message, or nothing."""
    for name in REASONING_FIELDS:
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return ""
