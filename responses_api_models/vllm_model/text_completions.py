"""Sends a chat as a plain completion, because only completions accept a prompt of tokens. Pure.

What the chat route of an endpoint does around a generation then has to be done here: the token limit, the grammar of a
forced call, and extracting reasoning and calls from the text. Calls are read in the form that Hermes and Qwen models
write, ``<tool_call>{"name": …, "arguments": …}</tool_call>``; the prompt shows whether a template asks for that form.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nemo_gym.conversion.new_responses import uuid4
from nemo_gym.conversion.parts import BEGIN, END, extract_reasoning
from responses_api_models.vllm_model.tokens import PREFIX_FIELD, Dialect, forces_call

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
CALL: Final = re.compile(re.escape(OPEN) + r"(.*?)" + re.escape(CLOSE), re.DOTALL)
# Chat options that completions don't have, or that have another form there.
CHAT_ONLY: Final = frozenset(
    {
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "documents", "metadata"),
        *("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", PREFIX_FIELD),
        *("logprobs", "top_logprobs", "max_completion_tokens", "max_tokens", "verbosity", "include_reasoning"),
    }
)


class UnreadableCompletionError(ValueError):
    """A completion that is not what was requested."""


def writes_known_calls(prompt: str) -> bool:
    """Whether a prompt that offers tools asks for calls in the form that is read here."""
    return OPEN in prompt and CLOSE in prompt


def completion_request(
    chat: Mapping[str, Any], prompt: Sequence[int], dialect: Dialect, *, context: int | None
) -> dict[str, Any] | None:
    """The completion request that is equivalent to a chat; None if the token limit, which it needs, is unknown."""
    limit = chat.get("max_completion_tokens") or chat.get("max_tokens")
    if limit is None and dialect is Dialect.VLLM:
        if context is None:
            return None
        limit = max(context - len(prompt), 1)
    body = {name: value for name, value in chat.items() if name not in CHAT_ONLY}
    body |= {"prompt": list(prompt), "logprobs": max(chat.get("top_logprobs") or 0, 1)}
    if limit is not None:
        body["max_tokens"] = limit
    if chat.get("tools"):
        body.setdefault("skip_special_tokens", False)  # the marks around a call may be special tokens
    if dialect is Dialect.LLAMA_CPP:  # its completions ignore the option
        body |= _wanted_format(body.pop("response_format", None) or {})
    schema = forced_schema(chat)
    if schema is not None:
        body |= {"json_schema": schema} if dialect is Dialect.LLAMA_CPP else {"structured_outputs": {"json": schema}}
    return body


def _wanted_format(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A response format as llama.cpp's completions take it."""
    if wanted.get("type") == "json_schema":
        return {"json_schema": (wanted.get("json_schema") or {}).get("schema") or {"type": "object"}}
    if wanted.get("type") == "json_object":
        return {"json_schema": wanted.get("schema") or {"type": "object"}}
    return {}


def forced_schema(chat: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of a forced call: of its arguments if the tool is named, else of a list of calls."""
    tools = [tool["function"] for tool in chat.get("tools") or ()]
    choice = chat.get("tool_choice")
    if not tools or choice in (None, "auto", "none"):
        return None
    if isinstance(choice, Mapping):
        name = (choice.get("function") or {}).get("name")
        return next((_parameters(tool) for tool in tools if tool["name"] == name), None)
    calls = [
        {
            "type": "object",
            "properties": {"name": {"enum": [tool["name"]]}, "parameters": _parameters(tool)},
            "required": ["name", "parameters"],
        }
        for tool in tools
    ]
    return {"type": "array", "minItems": 1, "items": {"anyOf": calls}}


def _parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    return tool.get("parameters") or {"type": "object", "properties": {}}


def chat_completion_of(
    completion: Mapping[str, Any], chat: Mapping[str, Any], prompt: Sequence[int], *, parses_reasoning: bool
) -> dict[str, Any]:
    """A plain completion as that of a chat, with its tokens where vLLM has them."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        raise UnreadableCompletionError("no choices")
    reported = choices[0].get("prompt_token_ids")
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": completion.get("created") or 0,
        "model": completion.get("model") or "",
        "choices": [_choice(choice, chat, parses_reasoning=parses_reasoning) for choice in choices],
        "prompt_token_ids": list(prompt) if reported is None else reported,
        **{name: completion[name] for name in ("usage", "timings") if completion.get(name)},
    }


def _choice(choice: Mapping[str, Any], chat: Mapping[str, Any], *, parses_reasoning: bool) -> dict[str, Any]:
    text = choice.get("text")
    if not isinstance(text, str):
        raise UnreadableCompletionError("no text")
    finish = choice.get("finish_reason") or "stop"
    thoughts: list[str] = []
    if parses_reasoning:
        # The template may have opened the thinking block itself, in the prompt.
        begun = END in text and not text.lstrip().startswith(BEGIN)
        thoughts, text = extract_reasoning(BEGIN + text if begun else text)
    calls, rest = read_calls(text, chat)
    message: dict[str, Any] = {"role": "assistant", "content": rest or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
        finish = "tool_calls" if finish == "stop" else finish
    others = {name: choice[name] for name in ("token_ids", "stop_reason", "routed_experts") if name in choice}
    return {
        "index": choice.get("index") or 0,
        "message": message,
        "finish_reason": finish,
        "logprobs": _scores(choice.get("logprobs")),
        **others,
    }


def read_calls(text: str, chat: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The calls in a text, and the remaining text. What can't be parsed as a call stays text."""
    if not chat.get("tools") or chat.get("tool_choice") == "none":
        return [], text
    if forces_call(chat):
        return _forced_calls(text, chat["tool_choice"])
    found = [_call(match[1]) for match in CALL.finditer(text)]
    if not found or None in found:
        return [], text
    calls = [call for call in found if call is not None]
    # The chat route of an endpoint drops the others too.
    used = calls[:1] if chat.get("parallel_tool_calls") is False else calls
    return used, text[: text.index(OPEN)].rstrip()


def _forced_calls(text: str, choice: Any) -> tuple[list[dict[str, Any]], str]:
    if isinstance(choice, Mapping):
        return [_named(choice["function"]["name"], text)], ""
    try:
        listed = json.loads(text)
        return [_named(call["name"], json.dumps(call["parameters"], ensure_ascii=False)) for call in listed], ""
    except (ValueError, KeyError, TypeError):
        return [], text  # cut off


def _call(written: str) -> dict[str, Any] | None:
    try:
        call = json.loads(written)
        return _named(call["name"], json.dumps(call.get("arguments", {}), ensure_ascii=False))
    except (ValueError, KeyError, TypeError):
        return None


def _named(name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _scores(logprobs: Any) -> dict[str, Any] | None:
    """Log-probabilities in the form of chats: llama.cpp has it already, vLLM has lists."""
    if not isinstance(logprobs, Mapping) or "token_logprobs" not in logprobs:
        return dict(logprobs) if isinstance(logprobs, Mapping) else None
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    return {"content": [{"token": token, "logprob": score, "top_logprobs": []} for token, score in pairs]}
