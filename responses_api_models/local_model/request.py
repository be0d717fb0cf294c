"""A chat request, read into what the engine understands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.openai_utils import NeMoGymChatCompletionCreateParamsNonStreaming
from responses_api_models.local_model.grammar import Choice
from responses_api_models.local_model.tool_calls import Tool

# The engine counts seeds in 32 bits and takes the last one for "any".
SEEDS: Final = 2**32 - 1
# Options that only the server sets.
RESERVED: Final = frozenset(
    {
        *("prompt", "messages", "model", "n", "n_predict", "max_tokens", "stream", "tools", "tool_choice", "grammar"),
        *("n_probs", "logprobs", "top_logprobs", "post_sampling_probs", "return_tokens", "response_fields", "id_slot"),
        "required_prefix_token_ids",  # the messages carry the same tokens
    }
)
# Names that other servers use for the same option.
SYNONYMS: Final = {"repetition_penalty": "repeat_penalty", "max_completion_tokens": "max_tokens"}
# What the engine reads of a request besides OpenAI's options. It ignores everything else without a word.
ENGINE_OPTIONS: Final = frozenset(
    {
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logit_bias", "ignore_eos"),
        *("top_k", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "min_keep", "samplers"),
        *("dynatemp_range", "dynatemp_exponent", "repeat_penalty", "repeat_last_n", "mirostat", "mirostat_tau"),
        *("mirostat_eta", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        *("dry_sequence_breakers", "adaptive_target", "adaptive_decay", "n_keep", "n_discard", "n_indent"),
        *("cache_prompt", "t_max_predict_ms"),
    }
)
# Options that say what happens here anyway.
REDUNDANT: Final = frozenset({"model", "stream", "max_tokens", "required_prefix_token_ids"})
# Options of the protocol that a model of text, without tools of its own, cannot follow.
UNSUPPORTED: Final = ("audio", "functions", "function_call", "verbosity", "web_search_options")
SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop")
JSON_OBJECT: Final = {"type": "object"}


class RequestError(ValueError):
    """A request that cannot be served as it is."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a request asks for."""

    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Tool, ...]  # those that may be called
    choice: Choice
    one_call: bool  # whether at most one call is allowed at a time
    max_tokens: int | None
    completions: int
    top_logprobs: int | None  # None: no log-probabilities at all
    sampling: Mapping[str, Any]
    all_tools: tuple[Tool, ...] = ()  # also those that may not be called this time
    schema: Any = None  # of the text, if it must be JSON
    template_options: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()  # options that cannot be followed here

    @property
    def stops(self) -> Sequence[str]:
        """The strings that end a completion."""
        stops: Sequence[str] = self.sampling.get("stop") or ()
        return stops


def read_request(body: NeMoGymChatCompletionCreateParamsNonStreaming, defaults: Mapping[str, Any]) -> ChatRequest:
    """Read a request. Options that it does not set come from its ``metadata``, then from the configured defaults."""
    metadata = body.metadata or {}
    beside = dict(body.model_extra or {})  # options that the protocol does not know
    effort = {"reasoning_effort": body.reasoning_effort} if body.reasoning_effort else {}
    template = {**effort, **_json_object(metadata, "chat_template_kwargs"), **(body.chat_template_kwargs or {})}
    extra = {**defaults, **_json_object(metadata, "extra_body"), **_mapping(beside, "extra_body"), **beside}
    extra = {SYNONYMS.get(name, name): value for name, value in extra.items()}
    if any(_is_custom(entry) for entry in (*(body.tools or ()), *_calls(body.messages))):
        raise RequestError(
            "tools whose input is any text (custom) are not supported: only functions can be called here"
        )
    tools, choice = _offered(body)
    limits = (body.max_completion_tokens, body.max_tokens, extra.get("max_tokens"))
    max_tokens = next((limit for limit in limits if limit is not None), None)
    if not body.messages:
        raise RequestError("there are no messages")
    _check_count("max_tokens", max_tokens, 1)
    _check_count("n", body.n, 1)
    _check_count("top_logprobs", body.top_logprobs, 0)
    return ChatRequest(
        messages=body.messages,
        tools=tuple(tools),
        choice=choice,
        one_call=body.parallel_tool_calls is False,
        max_tokens=max_tokens,
        completions=body.n or 1,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs or body.top_logprobs else None,
        sampling=_sampling(body, extra),
        all_tools=tuple(_tools(body)),
        schema=_wanted_schema(body.response_format),
        template_options=template,
        lost=tuple(_lost(body, extra)),
    )


def _lost(body: NeMoGymChatCompletionCreateParamsNonStreaming, extra: Mapping[str, Any]) -> list[str]:
    known = ENGINE_OPTIONS | REDUNDANT
    lost = [name for name, value in extra.items() if name not in known and value is not None]
    lost += [name for name in UNSUPPORTED if getattr(body, name) is not None]
    if any(kind != "text" for kind in body.modalities or ()):
        lost.append("modalities")
    return lost


def _check_count(name: str, count: Any, least: int) -> None:
    if count is not None and not (isinstance(count, int) and count >= least):
        raise RequestError(f"{name} must be a whole number and at least {least}, not {count!r}")


def _json_object(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(name, "{}"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RequestError(f"metadata.{name} must be a JSON object in a string, not {metadata[name]!r}")
    return value


def _mapping(options: dict[str, Any], name: str) -> dict[str, Any]:
    value = options.pop(name, {})
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be a JSON object, not {value!r}")
    return value


def _sampling(body: NeMoGymChatCompletionCreateParamsNonStreaming, extra: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {name: value for name, value in extra.items() if name not in RESERVED and value is not None}
    sampling |= {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    if body.logit_bias:
        sampling["logit_bias"] = [[int(token), bias] for token, bias in body.logit_bias.items()]
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    if isinstance(sampling.get("seed"), int):
        sampling["seed"] %= SEEDS
    return sampling


def _wanted_schema(response_format: Mapping[str, Any] | None) -> Any:
    kind = (response_format or {}).get("type", "text")
    if kind == "json_schema":
        assert response_format is not None
        return response_format.get("json_schema", {}).get("schema", JSON_OBJECT)
    if kind == "json_object":
        return JSON_OBJECT
    if kind != "text":
        raise RequestError(f"the response format {kind!r} is not supported")
    return None


def _offered(body: NeMoGymChatCompletionCreateParamsNonStreaming) -> tuple[list[Tool], Choice]:
    """Read which tools the model may call, and whether it must."""
    tools = _tools(body)
    wanted: Any = body.tool_choice or "auto"
    if wanted == "none":
        return [], "auto"
    if wanted == "required" and not tools:
        raise RequestError("tool_choice is 'required', but there are no tools")
    if isinstance(wanted, str):
        return tools, "required" if wanted == "required" else "auto"
    if wanted.get("type") == "allowed_tools":
        allowed = wanted.get("allowed_tools", {})
        names = [tool.get("function", {}).get("name") for tool in allowed.get("tools", ())]
        return _named(tools, names), "required" if allowed.get("mode") == "required" else "auto"
    if wanted.get("type") == "function":
        return _named(tools, [wanted.get("function", {}).get("name")]), "required"
    raise RequestError(f"tool_choice {wanted!r} is not supported: only functions can be called here")


def _is_custom(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == "custom"


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (call for message in messages for call in message.get("tool_calls") or ())


def _tools(body: NeMoGymChatCompletionCreateParamsNonStreaming) -> list[Tool]:
    functions: list[Mapping[str, Any]] = [tool["function"] for tool in body.tools or () if tool["type"] == "function"]
    return [Tool(one["name"], one.get("description") or "", one.get("parameters") or {}) for one in functions]


def _named(tools: Sequence[Tool], names: Sequence[str | None]) -> list[Tool]:
    known = {tool.name: tool for tool in tools}
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise RequestError(f"tool_choice names {missing[0] if missing else None!r}, which is not among the tools")
    return [known[name] for name in names if name is not None]
