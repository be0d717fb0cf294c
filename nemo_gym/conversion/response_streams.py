"""Streams of the Responses API: the events of a response, and the response that a stream ends with. Pure.

A client that assembles the events gets exactly the response they were made from. The events come in the order in which
the protocol sends them. Each text is sent in one piece, because the whole text is already known.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nemo_gym.conversion.parts import CALL_REFERENCE, POLICY_VERSION, TOKEN_FIELDS
from nemo_gym.conversion.stream_events import Event, encode_event

_ENDS_OF_RESPONSES: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
# Fields that an item gets only once it is complete.
_LATE: Final = frozenset({*TOKEN_FIELDS, CALL_REFERENCE, POLICY_VERSION, "encrypted_content"})
_ENDINGS: Final = {"incomplete": "response.incomplete", "failed": "response.failed"}


def response_stream(response: Mapping[str, Any]) -> bytes:
    """A response as the body of a stream."""
    return b"".join(map(encode_event, response_events(response)))


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
    yield last_event(response)


def last_event(response: Mapping[str, Any]) -> Event:
    """The event that ends the stream of a response; its type says whether the response is complete."""
    return {"type": _ENDINGS.get(response.get("status") or "", "response.completed"), "response": response}


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


def response_of_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The response that a stream of the Responses API ends with."""
    for event in events:
        if event.get("type") in _ENDS_OF_RESPONSES and isinstance(event.get("response"), dict):
            return dict(event["response"])
    return None
