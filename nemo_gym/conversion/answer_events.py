"""Turns whole answers into the events of a stream, for callers that asked for one. Pure.

A client that assembles the events gets exactly the answer they were made from. The events come in the order in which
the protocols send them. Each text is sent in one piece, because the whole text is already known.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from nemo_gym.conversion.parts import POLICY_VERSION, TOKEN_FIELDS

Event = dict[str, Any]

DONE: Final = b"data: [DONE]\n\n"
# Fields that an item gets only once it is complete.
_LATE: Final = frozenset({*TOKEN_FIELDS, POLICY_VERSION, "encrypted_content"})
_ENDINGS: Final = {"incomplete": "response.incomplete", "failed": "response.failed"}


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event under the name of its type, as the Responses API and the Messages API send it."""
    return b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), orjson.dumps(event))


def encode_chunk(chunk: Mapping[str, Any]) -> bytes:
    """A chunk of a chat completion."""
    return b"data: %s\n\n" % orjson.dumps(chunk)


def response_stream(response: Mapping[str, Any]) -> bytes:
    """A response as the body of a stream."""
    return b"".join(map(encode_event, response_events(response)))


def completion_stream(completion: Mapping[str, Any], *, usage: bool) -> bytes:
    """A completion as the body of a stream; ``usage`` adds a chunk with the token counts."""
    return b"".join(map(encode_chunk, completion_chunks(completion, usage=usage))) + DONE


def response_events(response: Mapping[str, Any]) -> Iterator[Event]:
    """The events of a response, numbered."""
    for number, event in enumerate(_response_events(response)):
        yield {**event, "sequence_number": number}


def _response_events(response: Mapping[str, Any]) -> Iterator[Event]:
    begun = {**response, "output": [], "status": "in_progress", "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        place = {"item_id": item.get("id") or item.get("call_id") or f"item_{index}", "output_index": index}
        inside = _INSIDE.get(item["type"], _nothing_inside)
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        yield from ({**event, **place} for event in inside(item))
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": _ENDINGS.get(response.get("status") or "", "response.completed"), "response": response}


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it is announced, without its content."""
    begun = {name: value for name, value in item.items() if name not in _LATE}
    for name in ("content", "summary"):
        if isinstance(begun.get(name), list):
            begun[name] = []
    for name in ("arguments", "input"):
        if isinstance(begun.get(name), str):
            begun[name] = ""
    return begun | ({"status": "in_progress"} if item.get("status") else {})


def _nothing_inside(_: Mapping[str, Any]) -> Iterator[Event]:
    return iter(())


def _inside_content(item: Mapping[str, Any]) -> Iterator[Event]:
    for index, part in enumerate(item.get("content") or ()):
        place = {"content_index": index}
        yield {"type": "response.content_part.added", **place, "part": _empty_part(part)}
        yield from ({**event, **place} for event in _inside_part(part))
        yield {"type": "response.content_part.done", **place, "part": part}


def _empty_part(part: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: "" for name in ("text", "refusal") if name in part}
    return {**part, **texts} | ({"annotations": []} if "annotations" in part else {})


def _inside_part(part: Mapping[str, Any]) -> Iterator[Event]:
    kind = part["type"]
    if kind == "refusal":
        yield {"type": "response.refusal.delta", "delta": part["refusal"]}
        yield {"type": "response.refusal.done", "refusal": part["refusal"]}
    elif kind == "reasoning_text":
        yield {"type": "response.reasoning_text.delta", "delta": part["text"]}
        yield {"type": "response.reasoning_text.done", "text": part["text"]}
    elif kind == "output_text":
        scores = {"logprobs": part.get("logprobs") or []}
        yield {"type": "response.output_text.delta", "delta": part["text"], **scores}
        for number, annotation in enumerate(part.get("annotations") or ()):
            name = "response.output_text.annotation.added"
            yield {"type": name, "annotation_index": number, "annotation": annotation}
        yield {"type": "response.output_text.done", "text": part["text"], **scores}


def _inside_reasoning(item: Mapping[str, Any]) -> Iterator[Event]:
    for index, part in enumerate(item.get("summary") or ()):
        place = {"summary_index": index}
        empty = {**part, "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **place, "part": empty}
        yield {"type": "response.reasoning_summary_text.delta", **place, "delta": part["text"]}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
    yield from _inside_content(item)


def _inside_call(item: Mapping[str, Any]) -> Iterator[Event]:
    arguments = item["arguments"]
    yield {"type": "response.function_call_arguments.delta", "delta": arguments}
    yield {"type": "response.function_call_arguments.done", "arguments": arguments, "name": item["name"]}


def _inside_custom_call(item: Mapping[str, Any]) -> Iterator[Event]:
    given = item.get("input") or ""
    yield {"type": "response.custom_tool_call_input.delta", "delta": given}
    yield {"type": "response.custom_tool_call_input.done", "input": given}


_INSIDE: Final = {
    "message": _inside_content,
    "reasoning": _inside_reasoning,
    "function_call": _inside_call,
    "custom_tool_call": _inside_custom_call,
}


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
    said, calls = message.get("content"), message.get("tool_calls") or []
    known = {"role", "content", "tool_calls"}
    others = {name: value for name, value in message.items() if name not in known and value is not None}
    yield {"delta": {"role": "assistant", "content": None if said is None else ""}, "logprobs": None}
    if others:
        yield {"delta": others, "logprobs": None}
    if said or choice.get("logprobs"):
        yield {"delta": {"content": said} if said else {}, "logprobs": choice.get("logprobs")}
    for index, call in enumerate(calls):
        yield from ({"delta": {"tool_calls": [{"index": index, **part}]}, "logprobs": None} for part in _pieces(call))
    kept = {name: value for name, value in choice.items() if name not in ("index", "message", "logprobs")}
    yield {"delta": {}, "logprobs": None, **kept}


def _pieces(call: Mapping[str, Any]) -> Iterable[Event]:
    """The start of a tool call, then its arguments."""
    name, given = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    inner = call[name]
    return ({**call, name: {**inner, given: ""}}, {name: {given: inner[given]}})
