"""Answers that are given here, and when: the prompt does not fit, or there is nothing left to say. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from nemo_gym.conversion.chat_answers import uuid4
from nemo_gym.schemas.chat import NeMoGymChatCompletion

# Words of vLLM and SGLang, and of llama.cpp.
OVERFLOW_WORDS: Final = (b"context length", b"max_tokens", b"context size")


def is_overflow(status: int, content: bytes) -> bool:
    """True if an endpoint refuses a prompt because it is too long."""
    return status == 400 and any(words in content.lower() for words in OVERFLOW_WORDS)


def is_idle_turn(messages: Sequence[Mapping[str, Any]]) -> bool:
    """True if the assistant spoke last and neither said nor called anything: it would think again, and again."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("content") and not last.get("tool_calls")


def empty_completion(
    finish_reason: Literal["length", "content_filter"], *, model: str, created: int
) -> NeMoGymChatCompletion:
    """An answer without words."""
    message = {"role": "assistant", "content": None}
    return NeMoGymChatCompletion.model_validate(
        {
            "id": f"chatcmpl-{uuid4().hex}",
            "choices": [{"finish_reason": finish_reason, "index": 0, "message": message}],
            "created": created,
            "model": model,
            "object": "chat.completion",
        }
    )
