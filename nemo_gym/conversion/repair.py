"""Repairs answers that are almost as they should be. Pure: dictionaries in, the same dictionaries out.

Fields that many servers leave out or send as null, and whose value is beyond doubt, are filled in; items of unknown
types are kept; call ids that repeat are told apart; usage that can't be true is left out. Nothing is guessed about what
the model said, and nothing is checked: what is still wrong afterwards is for validation to say.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from nemo_gym.conversion.kept import is_unknown, keep_item

REPEATED_IDS: Final = "call ids that repeat: they were made different"
FALSE_USAGE: Final = "usage with negative numbers: it was left out"


def is_true(numbers: Iterable[Any]) -> bool:
    """True unless a count of tokens is negative."""
    return all(not isinstance(number, int) or number >= 0 for number in numbers)


def repair_response(payload: dict[str, Any], asked: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """A response with its gaps filled; ``notes`` gets what a person should know."""
    _fill(
        payload,
        id="resp_unnamed",
        created_at=0.0,
        model=asked.get("model") or "",
        object="response",
        parallel_tool_calls=asked.get("parallel_tool_calls") is not False,
        tool_choice=asked.get("tool_choice") or "auto",
        tools=asked.get("tools") or [],
    )
    _keep_unknown(payload["output"], notes)
    items = _objects(payload["output"])
    for position, item in enumerate(items):
        _repair_item(item, position)
    _tell_apart([item for item in items if item.get("type") == "function_call"], "call_id", notes)
    usage = payload.get("usage")
    if isinstance(usage, dict):
        _repair_total(usage, "input_tokens", "output_tokens")
        for details, name in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
            _fill(usage, **{details: {}})
            for numbers in _objects([usage[details]]):
                _fill(numbers, **{name: 0})
    _drop_false_usage(payload, notes)
    return payload


def _drop_false_usage(payload: dict[str, Any], notes: list[str]) -> None:
    usage = payload.get("usage")
    if isinstance(usage, dict) and not is_true(usage.values()):
        notes.append(FALSE_USAGE)
        payload["usage"] = None


def _keep_unknown(output: list[Any], notes: list[str]) -> None:
    """Keep items that nobody here knows; an answer that has no others is one nobody could go on with."""
    unknown = [position for position, item in enumerate(output) if isinstance(item, dict) and is_unknown(item)]
    if len(unknown) == len(output):
        return
    for position in unknown:
        notes.append(f"items of type {output[position].get('type')}: they are kept, not understood")
        output[position] = keep_item(output[position], position=position)


def _repair_item(item: dict[str, Any], position: int) -> None:
    kind = item.get("type", "message")
    if item.get("status") is None:
        item.pop("status", None)
    if kind == "message":
        _fill(item, id=f"msg_{position}", role="assistant", content=[])
        if isinstance(item["content"], str):
            item["content"] = [{"type": "output_text", "text": item["content"]}]
        for part in _objects(item["content"]):
            if part.get("type") == "output_text":
                _fill(part, annotations=[])
    elif kind == "reasoning":
        _fill(item, id=f"rs_{position}", summary=[])
    elif kind == "function_call":
        _fill(item, call_id=item.get("id"))
        item["arguments"] = _json_text(item.get("arguments"))


def repair_completion(payload: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """A chat completion with its gaps filled; ``notes`` gets what a person should know."""
    _fill(payload, id="chatcmpl_unnamed", created=0, model="", object="chat.completion")
    for position, choice in enumerate(payload["choices"]):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            continue
        message = choice["message"]
        _fill(choice, index=position, finish_reason="tool_calls" if message.get("tool_calls") else "stop")
        _repair_message(message, notes)
    usage = payload.get("usage")
    if isinstance(usage, dict):
        _repair_total(usage, "prompt_tokens", "completion_tokens")
    _drop_false_usage(payload, notes)
    return payload


def _repair_message(message: dict[str, Any], notes: list[str]) -> None:
    _fill(message, role="assistant")
    if isinstance(message.get("content"), list):
        texts = [part.get("text") for part in _objects(message["content"]) if part.get("type") == "text"]
        message["content"] = "".join(text for text in texts if isinstance(text, str))
    calls = _objects(message.get("tool_calls"))
    for number, call in enumerate(calls):
        _fill(call, id=f"call_{number}", type="function")
        if isinstance(call.get("function"), dict):
            call["function"]["arguments"] = _json_text(call["function"].get("arguments"))
    _tell_apart(calls, "id", notes)


def _json_text(arguments: Any) -> Any:
    """Arguments as text: some servers parse them, and leave them out when a tool has none."""
    if arguments is None:
        return "{}"
    return orjson.dumps(arguments).decode() if isinstance(arguments, dict) else arguments


def _fill(target: dict[str, Any], **defaults: Any) -> None:
    for name, value in defaults.items():
        if target.get(name) is None:
            target[name] = value


def _objects(values: Any) -> list[dict[str, Any]]:
    """Those of the values that are objects."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _tell_apart(calls: Iterable[dict[str, Any]], key: str, notes: list[str]) -> None:
    """Give every call a name of its own: the second ``x`` becomes ``x_2``."""
    taken: set[str] = set()
    for call in calls:
        given = name = call.get(key)
        if not isinstance(name, str):
            continue
        number = 1
        while name in taken:
            number += 1
            name = f"{given}_{number}"
        taken.add(name)
        if name != given:
            call[key] = name
            notes.append(REPEATED_IDS)


def _repair_total(usage: dict[str, Any], one: str, other: str) -> None:
    _fill(usage, **{one: 0, other: 0})
    if isinstance(usage[one], int) and isinstance(usage[other], int):
        _fill(usage, total_tokens=usage[one] + usage[other])
