"""Converts completions between Chat Completions and the Responses API: finish reason, usage, scores. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nemo_gym.conversion.new_responses import response_to, response_usage, wants_logprobs
from nemo_gym.conversion.parts import CALL_REFERENCE, TOKEN_FIELDS, reasoning_texts
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChatCompletionMessage

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def completion_to_response(
    completion: NeMoGymChatCompletion,
    output: list[dict[str, Any]],
    request: Mapping[str, Any],
    *,
    id: str,  # noqa: A002 - the name of the field
    model: str,
) -> dict[str, Any]:
    """The response for the first choice of a completion; ``output`` is its message, already converted."""
    choice, usage = completion.choices[0], completion.usage
    if choice.logprobs and wants_logprobs(request):
        _add_logprobs(output, choice.logprobs.get("content"))
    return response_to(
        request,
        output,
        id=id,
        created_at=float(completion.created),
        model=model,
        reason=INCOMPLETE.get(choice.finish_reason),
        usage=usage_to_responses({**usage.__dict__, **(usage.model_extra or {})}) if usage else None,
    )


def message_as_received(message: NeMoGymChatCompletionMessage) -> dict[str, Any]:
    """The message of a completion as a dictionary. Its tokens are not copied, because there may be many."""
    received = {**message.__dict__, **(message.__pydantic_extra__ or {})}
    if message.tool_calls:
        received["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.function_call:
        received["function_call"] = message.function_call.model_dump()
    return received


def usage_to_responses(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers under the names of the Responses API; missing details are 0."""
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return response_usage(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        total=usage["total_tokens"],
        cached=prompt.get("cached_tokens") or 0,
        reasoning=completion.get("reasoning_tokens") or usage.get("reasoning_tokens") or 0,  # SGLang's are beside
    )


def _add_logprobs(output: list[dict[str, Any]], scores: Any) -> None:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    texts = [part for part in parts if part["type"] == "output_text"]
    if texts and isinstance(scores, list):
        texts[0]["logprobs"] = scores


_FINISH: Final = {reason: finish for finish, reason in INCOMPLETE.items()}


def response_to_completion(response: Mapping[str, Any]) -> dict[str, Any]:
    """The completion with the same content as a response."""
    message = _chat_message(response["output"])
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
        "usage": _chat_usage(usage) if usage else None,
    }


def _chat_message(output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    texts = [part["text"] for part in parts if part["type"] == "output_text"]
    refusals = [part["refusal"] for part in parts if part["type"] == "refusal"]
    thoughts = [text for item in output if item["type"] == "reasoning" for text in reasoning_texts(item)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    notes = [_chat_annotation(note) for part in parts for note in part.get("annotations") or ()]
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
        if item.get(CALL_REFERENCE) is not None:
            message[CALL_REFERENCE] = item[CALL_REFERENCE]
    return message


def _chat_annotation(note: Mapping[str, Any]) -> dict[str, Any]:
    """A citation in the object that a chat wraps its fields in."""
    if note.get("type") != "url_citation" or "url_citation" in note:
        return dict(note)
    return {"type": "url_citation", "url_citation": {name: note[name] for name in note if name != "type"}}


def _logprobs(output: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    scores = [score for part in parts for score in part.get("logprobs") or ()]
    return {"content": scores, "refusal": None} if scores else None


def _chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "completion_tokens": usage["output_tokens"],
        "prompt_tokens": usage["input_tokens"],
        "total_tokens": usage["total_tokens"],
        "completion_tokens_details": dict(usage["output_tokens_details"]),
        "prompt_tokens_details": dict(usage["input_tokens_details"]),
    }
