"""Streams of Chat Completions: the chunks of a completion, and the completion that chunks add up to. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from nemo_gym.conversion.stream_events import Event

DONE: Final = b"data: [DONE]\n\n"


def encode_chunk(chunk: Mapping[str, Any]) -> bytes:
    """A chunk of a chat completion."""
    return b"data: %s\n\n" % orjson.dumps(chunk)


def completion_stream(completion: Mapping[str, Any], *, usage: bool) -> bytes:
    """A completion as the body of a stream; ``usage`` adds a chunk with the token counts."""
    return b"".join(map(encode_chunk, completion_chunks(completion, usage=usage))) + DONE


def completion_chunks(completion: Mapping[str, Any], *, usage: bool) -> Iterator[Event]:
    """The chunks of a completion; ``usage`` adds one with the token counts."""
    common = {name: value for name, value in completion.items() if name not in ("choices", "usage")}
    common["object"] = "chat.completion.chunk"
    if usage:
        common["usage"] = None
    for choice in completion["choices"]:
        for part in _choice_chunks(choice):
            yield {**common, "choices": [{"index": choice["index"], "finish_reason": None, **part}]}
    if usage:
        yield {**common, "choices": [], "usage": completion.get("usage")}


def _choice_chunks(choice: Mapping[str, Any]) -> Iterator[Event]:
    message = choice["message"]
    content, calls = message.get("content"), message.get("tool_calls") or []
    known = {"role", "content", "tool_calls"}
    others = {name: value for name, value in message.items() if name not in known and value is not None}
    yield {"delta": {"role": "assistant", "content": None if content is None else ""}, "logprobs": None}
    if others:
        yield {"delta": others, "logprobs": None}
    if content or choice.get("logprobs"):
        yield {"delta": {"content": content} if content else {}, "logprobs": choice.get("logprobs")}
    for index, call in enumerate(calls):
        yield from ({"delta": {"tool_calls": [{"index": index, **part}]}, "logprobs": None} for part in _pieces(call))
    others = {name: value for name, value in choice.items() if name not in ("index", "message", "logprobs")}
    yield {"delta": {}, "logprobs": None, **others}


def _pieces(call: Mapping[str, Any]) -> Iterable[Event]:
    """The start of a tool call, then its arguments."""
    name, given = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    inner = call[name]
    return ({**call, name: {**inner, given: ""}}, {name: {given: inner[given]}})


_GROWING_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")


def completion_of_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The completion that the chunks of a chat add up to."""
    completion: dict[str, Any] = {"choices": []}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in events:
        completion |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        for part in chunk.get("choices") or ():
            index = part.get("index") or 0
            choice = choices.setdefault(index, {"index": index, "message": {"role": "assistant", "content": None}})
            _grow_choice(choice, part)
    if not choices or any(choice.get("finish_reason") is None for choice in choices.values()):
        return None
    completion["choices"] = [choices[index] for index in sorted(choices)]
    return completion | {"object": "chat.completion"}


def _grow_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    for name in ("finish_reason", "stop_reason"):
        if part.get(name) is not None:
            choice[name] = part[name]
    if part.get("token_ids"):
        choice.setdefault("token_ids", []).extend(part["token_ids"])
    scores = (part.get("logprobs") or {}).get("content")
    if scores:
        choice.setdefault("logprobs", {"content": []})["content"].extend(scores)
    _grow_message(choice["message"], part.get("delta") or {})


def _grow_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None or name == "role":
            continue
        if name in _GROWING_TEXTS and isinstance(value, str):
            message[name] = (message.get(name) or "") + value
        elif name == "tool_calls":
            for call in value:
                _grow_call(message.setdefault("tool_calls", []), call)
        elif isinstance(value, list):
            message[name] = [*(message.get(name) or []), *value]
        elif name == "audio":
            _grow_audio(message.setdefault("audio", {}), value)
        else:
            message[name] = value


def _grow_audio(audio: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        grows = name in ("data", "transcript") and isinstance(value, str)
        audio[name] = (audio.get(name) or "") + value if grows else value


def _grow_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Extend the call with the same index. Endpoints that send a call as a whole may leave the index out."""
    index = part.get("index", len(calls))
    kind, given = ("custom", "input") if part.get("custom") else ("function", "arguments")
    while len(calls) <= index:
        calls.append({"type": kind, kind: {"name": "", given: ""}})
    call, inner = calls[index], part.get(kind) or {}
    if part.get("id"):
        call["id"] = part["id"]
    call[kind]["name"] += inner.get("name") or ""
    added = inner.get(given)
    if isinstance(added, dict):
        added = orjson.dumps(added).decode()
    call[kind][given] += added or ""
