"""Converts a chat request to the Responses API, and the response to a chat completion. Pure.

This serves callers that speak Chat Completions to a server that does not. Options without an equivalent are listed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.chat_answers import INCOMPLETE, LOGPROBS, Item
from nemo_gym.conversion.losses import ANNOTATIONS, AUDIO_SAID, SPEAKERS
from nemo_gym.conversion.parts import TOKEN_FIELDS, reasoning_texts

_SAME: Final = (
    *("metadata", "model", "service_tier", "store", "temperature", "top_p", "user", "parallel_tool_calls"),
    # No options of the Responses API, but of the protocols behind it.
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "stop", "top_k"),
)
_RENAMED: Final = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "top_logprobs": "top_logprobs",
}
_CARRIED: Final = frozenset(
    {*_SAME, *_RENAMED, "messages", "tools", "tool_choice", "reasoning_effort", "verbosity", "response_format"}
    | {"logprobs", "stream", "stream_options"}
)
# Default values, which can be left out without losing anything.
_HARMLESS: Final[Mapping[str, Any]] = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "modalities": ["text"]}
_LOST_KEYS: Final = {"audio": AUDIO_SAID, "annotations": ANNOTATIONS, "name": SPEAKERS}
_FINISH: Final = {reason: finish for finish, reason in INCOMPLETE.items()}


class ResponsesRequest(NamedTuple):
    """A request of the Responses API, and the names of the options that have no equivalent there."""

    asked: dict[str, Any]
    lost: list[str]


def chat_to_request(
    chat: Mapping[str, Any], to_items: Callable[[Sequence[Mapping[str, Any]]], list[Item]]
) -> ResponsesRequest:
    """The same request for the Responses API; ``to_items`` converts the history."""
    given = {name: value for name, value in chat.items() if value is not None}
    asked: dict[str, Any] = {"input": to_items(given["messages"])}
    asked |= {name: given[name] for name in _SAME if name in given}
    asked |= {other: given[name] for name, other in _RENAMED.items() if name in given}
    if given.get("logprobs"):
        asked["include"] = [LOGPROBS]
    if "reasoning_effort" in given:
        asked["reasoning"] = {"effort": given["reasoning_effort"]}
    text = _text_options(given)
    if text:
        asked["text"] = text
    if given.get("tools"):
        asked["tools"] = [_tool(tool) for tool in given["tools"]]
        if "tool_choice" in given:
            asked["tool_choice"] = _tool_choice(given["tool_choice"])
    lost = [name for name in given if name not in _CARRIED and given[name] != _HARMLESS.get(name)]
    return ResponsesRequest(asked, lost + _lost_in_history(given["messages"]))


def _lost_in_history(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What messages have besides their content; each kind once."""
    lost = [name for key, name in _LOST_KEYS.items() if any(message.get(key) for message in messages)]
    return list(dict.fromkeys(lost))


def _text_options(given: Mapping[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {}
    wanted = given.get("response_format")
    if wanted:
        text["format"] = {"type": wanted["type"], **(wanted.get("json_schema") or {})}
    if "verbosity" in given:
        text["verbosity"] = given["verbosity"]
    return text


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]} if tool["type"] == "function" else dict(tool)


def _tool_choice(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "name": choice["function"]["name"]}
    if choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        tools = [_tool_choice(tool) for tool in allowed.get("tools", [])]
        return {"type": "allowed_tools", "mode": allowed.get("mode", "auto"), "tools": tools}
    return dict(choice)


def response_to_completion(response: Mapping[str, Any]) -> dict[str, Any]:
    """The completion with the same content as a response."""
    message = _message(response["output"])
    details = response.get("incomplete_details") or {}
    finish = _FINISH.get(details.get("reason") or "", "tool_calls" if message.get("tool_calls") else "stop")
    usage = response.get("usage")
    return {
        "id": f"chatcmpl-{response['id'].removeprefix('resp_')}",
        "choices": [
            {"finish_reason": finish, "index": 0, "logprobs": _logprobs(response["output"]), "message": message}
        ],
        "created": int(response["created_at"]),
        "model": response["model"],
        "object": "chat.completion",
        "usage": _usage(usage) if usage else None,
    }


def _message(output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    texts = [part["text"] for part in parts if part["type"] == "output_text"]
    refusals = [part["refusal"] for part in parts if part["type"] == "refusal"]
    thoughts = [text for item in output if item["type"] == "reasoning" for text in reasoning_texts(item)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    notes = [_annotation(note) for part in parts for note in part.get("annotations") or ()]
    if notes:
        message["annotations"] = notes
    if refusals:
        message["refusal"] = "".join(refusals)
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    calls = [
        {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
        for item in output
        if item["type"] == "function_call"
    ]
    if calls:
        message["tool_calls"] = calls
    for item in output:
        if item.get("generation_token_ids") is not None:
            message |= {name: item[name] for name in TOKEN_FIELDS if item.get(name) is not None}
    return message


def _annotation(note: Mapping[str, Any]) -> dict[str, Any]:
    """A citation in the object that a chat wraps its fields in."""
    if note.get("type") != "url_citation" or "url_citation" in note:
        return dict(note)
    return {"type": "url_citation", "url_citation": {name: note[name] for name in note if name != "type"}}


def _logprobs(output: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    scores = [score for part in parts for score in part.get("logprobs") or ()]
    return {"content": scores, "refusal": None} if scores else None


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "completion_tokens": usage["output_tokens"],
        "prompt_tokens": usage["input_tokens"],
        "total_tokens": usage["total_tokens"],
        "completion_tokens_details": dict(usage["output_tokens_details"]),
        "prompt_tokens_details": dict(usage["input_tokens_details"]),
    }
