"""Model calls as records that people and programs read: who asked what, what came back, how long it took, what it cost.

An **exchange** is what was seen of one call: a dictionary with the fields of ``RecordedExchange``. A **record** says
what it means, whatever the dialect. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict

from pydantic import BaseModel, ConfigDict

from nemo_gym.conversion.work import tool_calls_of

RESPONSES, CHAT, MESSAGES = "responses", "chat_completions", "messages"
DIALECTS: Final = {"/v1/responses": RESPONSES, "/v1/chat/completions": CHAT, "/v1/messages": MESSAGES}
PAYLOADS: Final = ("request", "response", "request_raw", "response_raw")
CONTEXT_LENGTH: Final = "context_length_exceeded"
SUMMED: Final = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens", "latency_total_ms")


class RecordedExchange(TypedDict, total=False):
    """What was seen of one call. A payload that is not a JSON object is kept as text (``…_raw``)."""

    model_call_id: str
    model_ref: str | None
    client_session_id: str | None
    attempt: str | None
    path: str
    started_at: float
    completed_at: float
    first_byte_at: float | None
    status_code: int
    request: dict[str, Any] | None
    response: dict[str, Any] | None
    request_raw: str | None
    response_raw: str | None
    upstream_attempted: bool | None
    response_source: str | None
    upstream_status_code: int | None
    local_response_reason: str | None


class ModelCallRecord(BaseModel):
    """One model call; None stands for what is not known."""

    model_config = ConfigDict(protected_namespaces=())

    model_call_id: str | None = None
    response_id: str | None = None
    call_index: int = 0
    model_ref: Any = None
    client_session_id: str | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_hit: bool | None = None
    request: Any = None
    response: Any = None
    request_raw: str | None = None
    response_raw: str | None = None
    tool_calls: list[dict[str, Any]] = []
    reasoning_content: str | None = None
    error_category: str | None = None
    latency_total_ms: float | None = None
    latency_ttft_ms: float | None = None
    upstream_attempted: bool | None = None
    response_source: str | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None


def extract_token_stats(usage: Any) -> dict[str, int | None]:
    """The tokens of a usage block in the dialect of Responses, Chat Completions or Messages."""
    given = usage if isinstance(usage, Mapping) else {}
    read = _part(given, "input_tokens_details", "prompt_tokens_details")
    made = _part(given, "output_tokens_details", "completion_tokens_details")
    tokens_in, tokens_out = (
        _count(given, "input_tokens", "prompt_tokens"),
        _count(given, "output_tokens", "completion_tokens"),
    )
    cached, created = _count(read, "cached_tokens"), _count(given, "cache_creation_input_tokens")
    aside = _count(given, "cache_read_input_tokens")
    if aside is not None or created is not None:  # Messages counts these beside its input tokens
        cached = aside
        tokens_in = (tokens_in or 0) + (aside or 0) + (created or 0)
    total = _count(given, "total_tokens")
    if total is None and tokens_in is not None and tokens_out is not None:
        total = tokens_in + tokens_out
    return {
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "tokens_reasoning": _count(made, "reasoning_tokens"),
        "tokens_total": total,
        "cached_tokens": cached,
        "cache_creation_tokens": created,
    }


def build_model_call_record(exchange: Mapping[str, Any], *, call_index: int) -> ModelCallRecord:
    """What an exchange means; ``call_index`` is its place among the calls of its rollout."""
    response = exchange.get("response")
    body = response if isinstance(response, Mapping) else {}
    request = exchange.get("request")
    tokens = extract_token_stats(body.get("usage"))
    known = ModelCallRecord.model_fields
    return ModelCallRecord(
        **{name: value for name, value in exchange.items() if name in known},
        **tokens,
        call_index=call_index,
        response_id=_text(body, "id"),
        model=_text(body, "model") or (_text(request, "model") if isinstance(request, Mapping) else None),
        dialect=DIALECTS.get(str(exchange.get("path"))),
        response_status=_text(body, "status"),
        finish_reason=_finish_reason(body),
        tool_calls=_tool_calls(body),
        reasoning_content=_reasoning(body),
        cache_hit=None if tokens["cached_tokens"] is None else tokens["cached_tokens"] > 0,
        error_category=_error_category(exchange, body),
        latency_total_ms=_between(exchange, "completed_at"),
        latency_ttft_ms=_between(exchange, "first_byte_at"),
    )


def model_call_metrics(records: Iterable[ModelCallRecord]) -> dict[str, float | int | None]:
    """The sums over the calls of a rollout; None if no call says."""
    calls = list(records)
    metrics: dict[str, float | int | None] = {"num_calls": len(calls)}
    for name in SUMMED:
        values = [value for call in calls if (value := getattr(call, name)) is not None]
        metrics[name] = sum(values) if values else None
    return metrics


# ---- three dialects --------------------------------------------------------------------------------------------------
def _finish_reason(body: Mapping[str, Any]) -> str | None:
    if isinstance(choice := _first(body.get("choices")), Mapping):
        return _text(choice, "finish_reason")
    if (reason := _text(body, "stop_reason")) is not None:
        return reason
    return _text(_part(body, "incomplete_details"), "reason")


def _tool_calls(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    if isinstance(output := body.get("output"), list):
        calls = tool_calls_of([item for item in output if isinstance(item, dict)])
        return [{"name": call.name, "arguments": call.arguments} for call in calls]
    if isinstance(content := body.get("content"), list):
        used = [part for part in content if isinstance(part, Mapping) and part.get("type") == "tool_use"]
        return [{"name": part.get("name"), "arguments": part.get("input")} for part in used]
    chosen = _part(_first(body.get("choices")), "message").get("tool_calls")
    functions = [_part(call, "function") for call in chosen] if isinstance(chosen, list) else []
    return [{"name": each.get("name"), "arguments": each.get("arguments")} for each in functions]


def _reasoning(body: Mapping[str, Any]) -> str | None:
    texts: list[Any] = []
    for item in body.get("output") or () if isinstance(body.get("output"), list) else ():
        if isinstance(item, Mapping) and item.get("type") == "reasoning":
            parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
            texts += [part.get("text") for part in parts if isinstance(part, Mapping)]
    for part in body.get("content") or () if isinstance(body.get("content"), list) else ():
        if isinstance(part, Mapping) and part.get("type") == "thinking":
            texts.append(part.get("thinking"))
    message = _part(_first(body.get("choices")), "message")
    texts += [message.get("reasoning_content"), message.get("reasoning")]
    found = [text for text in texts if isinstance(text, str) and text]
    return "\n".join(found) or None


def _error_category(exchange: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    if exchange.get("local_response_reason") == CONTEXT_LENGTH:
        return CONTEXT_LENGTH
    status = exchange.get("status_code")
    if not isinstance(status, int) or status < 400:
        return None
    error = _part(body, "error")
    named = _text(error, "code") or _text(error, "type")
    return named or ("client_error" if status < 500 else "server_error")


def _between(exchange: Mapping[str, Any], end: str) -> float | None:
    started, ended = exchange.get("started_at"), exchange.get(end)
    return None if started is None or ended is None else round((ended - started) * 1000, 3)


def _part(value: Any, *names: str) -> Mapping[str, Any]:
    """The first of these fields that is an object; an empty one otherwise."""
    given = value if isinstance(value, Mapping) else {}
    return next((given[name] for name in names if isinstance(given.get(name), Mapping)), {})


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _text(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _count(value: Mapping[str, Any], *names: str) -> int | None:
    found = (value.get(name) for name in names)
    return next((each for each in found if isinstance(each, int) and not isinstance(each, bool)), None)
