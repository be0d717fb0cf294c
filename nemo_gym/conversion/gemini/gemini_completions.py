"""Converts responses of the Responses API to Gemini's API: whole, as the chunks of a stream, and errors. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from nemo_gym.conversion.anthropic.blocks import arguments_to_input
from nemo_gym.conversion.gemini.gemini_history import signature_of, thoughts_of
from nemo_gym.conversion.parts import CALL_REFERENCE

_FINISH: Final = {"max_output_tokens": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    410: "FAILED_PRECONDITION",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def response_to_gemini(response: Mapping[str, Any], *, thoughts: bool = False) -> dict[str, Any]:
    """The completion with the same content as a response; with ``thoughts``, those are shown."""
    output = response["output"]
    reason = (response.get("incomplete_details") or {}).get("reason")
    reference = output[-1].get(CALL_REFERENCE) if output else None
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": _parts(output, thoughts=thoughts)},
                "finishReason": _FINISH.get(reason or "", "STOP"),
                "index": 0,
            }
        ],
        "usageMetadata": _usage(response.get("usage") or {}),
        "modelVersion": response["model"],
        "responseId": response["id"],
        **({CALL_REFERENCE: reference} if reference is not None else {}),
    }


def _parts(output: Sequence[Mapping[str, Any]], *, thoughts: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    signature = ""
    for item in output:
        if item["type"] == "reasoning":
            signature = signature_of(item)
            if thoughts and thoughts_of(item):
                parts.append({"text": thoughts_of(item), "thought": True})
            continue
        for part in _parts_of(item):
            parts.append(part | ({"thoughtSignature": signature} if signature else {}))
            signature = ""
    return parts + ([{"text": "", "thoughtSignature": signature}] if signature else [])


def _parts_of(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "message":
            for part in item["content"]:
                yield {"text": part.get("text", part.get("refusal")) or ""}
        case "function_call":
            given = arguments_to_input(item["arguments"])
            yield {"functionCall": {"id": item["call_id"], "name": item["name"], "args": given}}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts; in this protocol, thoughts are counted apart."""
    read, written = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    thought = min((usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0, written)
    return {
        "promptTokenCount": read,
        "candidatesTokenCount": written - thought,
        "totalTokenCount": usage.get("total_tokens") or read + written,
        **({"cachedContentTokenCount": cached} if cached else {}),
        **({"thoughtsTokenCount": thought} if thought else {}),
    }


def gemini_chunks(completion: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The completions of a stream that add up to this one: one for each part."""
    candidate = completion["candidates"][0]
    *before, last = candidate["content"]["parts"] or [{"text": ""}]
    common = {key: completion[key] for key in ("modelVersion", "responseId") if key in completion}
    for part in before:
        yield {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}], **common}
    yield {**completion, "candidates": [{**candidate, "content": {"role": "model", "parts": [last]}}]}


def gemini_stream(completion: Mapping[str, Any], *, as_events: bool) -> bytes:
    """The body of a stream: events, or else one JSON array."""
    chunks = map(orjson.dumps, gemini_chunks(completion))
    if as_events:
        return b"".join(b"data: %s\r\n\r\n" % chunk for chunk in chunks)
    return b"[%s]" % b",\r\n".join(chunks)


def gemini_error(status: int, message: str, *, kind: str = "") -> dict[str, Any]:
    """An error in the shape of this protocol."""
    reason = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": kind, "domain": "rollout-gym"}]
    error = {"code": status, "message": message, "status": _STATUS.get(status, "INTERNAL")}
    return {"error": error | ({"details": reason} if kind else {})}
