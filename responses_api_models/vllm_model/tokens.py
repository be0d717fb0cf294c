"""The true tokens of a call: requests them, reads them from completions, and classifies log-probabilities.

Endpoints return them in several ways: on the message (servers of trainers), beside it (vLLM's ``token_ids``, SGLang's
``response_token_ids``), or with the log-probabilities (written ``token_id:7``, or llama.cpp's ``id``). Tokens that do
not fit together are refused, because a trainer could not detect that they are wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from nemo_gym.capture.conversations import without_tokens
from nemo_gym.conversion.completion_tokens import LogProbs, sampling_record
from nemo_gym.conversion.parts import TOKEN_FIELDS
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChoice

PREFIX_FIELD: Final = "required_prefix_token_ids"
OPTIONS: Final[Mapping[str, Any]] = {
    "logprobs": True,
    "top_logprobs": 0,
    "return_tokens_as_token_ids": True,
    # The prompt's ids come with the completion: /tokenize does not know every option that changes a prompt.
    "return_token_ids": True,
}
GRAMMAR_FIELDS: Final = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
)
_PROMPT_FIELD: Final = b'"prompt_token_ids":['
_Id = Annotated[int, msgspec.Meta(ge=0)]
_ID_MARK: Final = "token_id:"
SUPPORT_HINT: Final = (
    "an endpoint has to return its tokens for this (vLLM does); without that, set return_token_id_information: false"
)


class Dialect(StrEnum):
    """How an endpoint returns tokens, and therefore how it can be given some."""

    UNKNOWN = "unknown"
    TRAINER = "trainer"  # on the message; knows required_prefix_token_ids
    VLLM = "vLLM"
    SGLANG = "SGLang"
    LLAMA_CPP = "llama.cpp"


# Samplers that only llama.cpp has, off: its command line may set other defaults.
LLAMA_CPP_UNTRUNCATED: Final[Mapping[str, Any]] = {
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
}
ROUNDING: Final = 1e-4  # how far above 0 a log-probability may be that was computed with few digits


class TokenError(ValueError):
    """Tokens that are missing or do not fit together."""


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The tokens of one completion. Those of the prompt may have to be requested separately."""

    generation: list[int]
    log_probs: list[float]
    prompt: list[int] | None = None
    routed_experts: Any | None = None

    def fields(self, prompt: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the message that carries them."""
        values = (self.prompt or prompt, self.generation, self.log_probs, self.routed_experts, sampling)
        return {name: value for name, value in zip(TOKEN_FIELDS, values, strict=True) if value is not None}


def carry_prefix(chat: dict[str, Any]) -> None:
    """Set what the prompt has to begin with: the tokens of the last completion and of everything before it.

    These include the tokens of earlier completions, which are therefore not sent again. Otherwise a long conversation
    would be sent as many times as it has turns.
    """
    messages: list[dict[str, Any]] = chat["messages"]
    trained = trained_messages(messages)
    if not trained:
        return
    for number in trained[:-1]:
        messages[number] = without_tokens(messages[number])
    last = messages[trained[-1]]
    chat[PREFIX_FIELD] = [*last["prompt_token_ids"], *last["generation_token_ids"]]


def trained_messages(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The indices of the messages that carry their tokens."""
    return [number for number, message in enumerate(messages) if message.get("generation_token_ids") is not None]


def dialect_of(completion: NeMoGymChatCompletion) -> Dialect:
    """Recognise the engine from a completion with token ids."""
    choice = completion.choices[0]
    beside = choice.model_extra or {}
    scores = (choice.logprobs or {}).get("content") or [{}]
    first = scores[0] if isinstance(scores[0], Mapping) else {}
    message = choice.message.__dict__ | (choice.message.model_extra or {})
    if message.get("generation_token_ids") is not None:
        return Dialect.TRAINER
    if beside.get("response_token_ids") is not None:
        return Dialect.SGLANG
    if beside.get("token_ids") is not None or str(first.get("token")).startswith(_ID_MARK):
        return Dialect.VLLM
    if isinstance(first.get("id"), int) or "timings" in (completion.model_extra or {}):
        return Dialect.LLAMA_CPP
    return Dialect.UNKNOWN


def sampling_of(body: Mapping[str, Any], dialect: Dialect, *, mode: LogProbs | None) -> dict[str, Any]:
    """What the log-probabilities of a completion are, and how it was sampled; see ``docs/tokens.md``."""
    kind = mode or (LogProbs.PROCESSED if dialect is Dialect.SGLANG else LogProbs.RAW)
    # llama.cpp reports the model's own distribution, before its grammar is applied.
    if kind is LogProbs.RAW and dialect is not Dialect.LLAMA_CPP and is_constrained(body):
        kind = LogProbs.GRAMMAR_MASKED
    return sampling_record(kind, body)


def is_constrained(body: Mapping[str, Any]) -> bool:
    """Whether a grammar restricts the tokens that the model may write."""
    if any(body.get(name) for name in GRAMMAR_FIELDS):
        return True
    if (body.get("response_format") or {}).get("type", "text") != "text":
        return True
    tools = body.get("tools") or ()
    # vLLM holds the model to the schemas of strict tools even if it need not call any.
    is_strict = any((tool.get("function") or {}).get("strict") for tool in tools)
    return forces_call(body) or (is_strict and body.get("tool_choice") != "none")


def forces_call(body: Mapping[str, Any]) -> bool:
    """Whether the model has to call a tool."""
    return bool(body.get("tools")) and body.get("tool_choice") not in (None, "auto", "none")


def tokens_of(completion: NeMoGymChatCompletion, choice: NeMoGymChoice) -> CallTokens:
    """Read the tokens of one choice."""
    message = choice.message.__dict__ | (choice.message.model_extra or {})
    if message.get("generation_token_ids") is not None:
        prompt = message.get("prompt_token_ids")
        tokens = CallTokens(
            generation=_ids(message["generation_token_ids"]),
            log_probs=_numbers(message.get("generation_log_probs") or []),
            prompt=None if prompt is None else _ids(prompt),
            routed_experts=message.get("routed_experts"),
        )
    else:
        beside = choice.model_extra or {}
        ids = _first("token_ids", beside) or _first("response_token_ids", beside)
        scores = _scores(choice) if ids is None else []
        prompt = reported_prompt(completion, choice)
        tokens = CallTokens(
            generation=[_token_id(score) for score in scores] if ids is None else _ids(ids),
            log_probs=[score.logprob for score in scores] if ids is None else _log_probs(choice),
            prompt=None if prompt is None else _ids(prompt),
            routed_experts=_first("routed_experts", message, beside, _extension(completion)),
        )
    if len(tokens.generation) != len(tokens.log_probs):
        lengths = f"{len(tokens.generation)} tokens and {len(tokens.log_probs)} log-probabilities"
        raise TokenError(f"{lengths}, where there must be one for each")
    _check_log_probs(tokens.log_probs, completion)
    return tokens


def split_prompt(content: bytes, expected: bytes | None = None) -> tuple[bytes, bytes | None]:
    """A reply without the ids of its prompt, and these as JSON text without brackets; None if it has none, or several.

    The ids of a long prompt are most of a reply, and where they are only compared with what was expected, parsing them
    would be most of the work. If they are those, ``expected`` itself is returned.
    """
    start = content.find(_PROMPT_FIELD) + len(_PROMPT_FIELD)
    if start < len(_PROMPT_FIELD):
        return content, None
    if (
        expected
        and content.startswith(expected, start)
        and content[start + len(expected) : start + len(expected) + 1] == b"]"
    ):
        text, end = expected, start + len(expected)
    else:
        end = content.find(b"]", start)
        text = content[start:end]
        is_plain = text[:1].isdigit() and text[-1:].isdigit() and not text.translate(None, b"0123456789,")
        if not is_plain or b",," in text:
            return content, None
    if content.find(_PROMPT_FIELD, end) >= 0:
        return content, None
    return b"%b%b%b" % (content[:start], b"0", content[end:]), text


def reported_prompt(completion: NeMoGymChatCompletion, choice: NeMoGymChoice) -> Any:
    """The prompt that the endpoint reports beside a completion, unchecked."""
    places = (choice.message.model_extra, choice.model_extra, completion.model_extra)
    return _first("prompt_token_ids", *(place or {} for place in places))


def _check_log_probs(log_probs: Sequence[float], completion: NeMoGymChatCompletion) -> None:
    """Refuse numbers that are not log-probabilities: logits, for example, which vLLM returns if it is set to."""
    if log_probs and (not math.isfinite(sum(log_probs)) or max(log_probs) > ROUNDING):
        wrong = next(value for value in log_probs if not math.isfinite(value) or value > ROUNDING)
        raise TokenError(f"{wrong} as a log-probability")
    timings = (completion.model_extra or {}).get("timings")
    if isinstance(timings, Mapping) and timings.get("draft_n_accepted"):
        raise TokenError("drafted tokens (speculative decoding), whose log-probabilities llama.cpp reports as 0")


def _extension(completion: NeMoGymChatCompletion) -> Mapping[str, Any]:
    """What SGLang adds to a completion as a whole."""
    added = (completion.model_extra or {}).get("sglext")
    return added if isinstance(added, Mapping) else {}


def check_counts(
    prompt: Sequence[int], tokens: CallTokens, completion: NeMoGymChatCompletion, *, context: int | None = None
) -> None:
    """Refuse tokens whose number differs from the endpoint's own count, or that can't all have been in its context.

    llama.cpp, for example, reports one token for a character of several, and none for a stop string.
    """
    if context is not None and len(prompt) + len(tokens.generation) > context:
        raise TokenError(f"more tokens than its context of {context}, so it has forgotten the first of them")
    usage = completion.usage
    if usage is None:
        if dialect_of(completion) is Dialect.LLAMA_CPP:
            raise TokenError("no count of its tokens, without which missing ones can't be noticed")
        return
    if usage.prompt_tokens != len(prompt):
        raise TokenError(f"{usage.prompt_tokens} prompt tokens, but {len(prompt)} ids were found for them")
    # With several choices, engines count those of all, or of one.
    if len(completion.choices) == 1 and usage.completion_tokens != len(tokens.generation):
        counted, found = usage.completion_tokens, len(tokens.generation)
        raise TokenError(f"{counted} generated tokens, but {found} ids were found for them")


def _first(name: str, *places: Mapping[str, Any]) -> Any:
    return next((place[name] for place in places if place.get(name) is not None), None)


class _Score(msgspec.Struct):
    logprob: float
    token: Any = None
    id: Any = None


def _log_probs(choice: NeMoGymChoice) -> list[float]:
    """The log-probabilities of a choice whose ids are beside them."""
    scores = (choice.logprobs or {}).get("content")
    if not isinstance(scores, list):
        raise TokenError("no log-probabilities, although they were requested")
    try:
        found = [score["logprob"] for score in scores]
    except (KeyError, TypeError):
        found = [None]
    if not set(map(type, found)) <= {float, int}:
        raise TokenError("a token without its log-probability")
    return list(map(float, found))


def _scores(choice: NeMoGymChoice) -> list[_Score]:
    scores = (choice.logprobs or {}).get("content")
    if not isinstance(scores, list):
        raise TokenError("no log-probabilities, although they were requested")
    try:
        return msgspec.convert(scores, list[_Score])
    except msgspec.ValidationError:
        raise TokenError("a token without its log-probability") from None


def _ids(tokens: Any) -> list[int]:
    try:
        return msgspec.convert(tokens, list[_Id])
    except msgspec.ValidationError:
        raise TokenError("tokens that are not a list of numbers") from None


def _numbers(values: Any) -> list[float]:
    try:
        return msgspec.convert(values, list[float])
    except msgspec.ValidationError:
        raise TokenError("log-probabilities that are not a list of numbers") from None


def _token_id(score: _Score) -> int:
    if isinstance(score.id, int):
        return score.id
    token = score.token
    if not isinstance(token, str) or not token.startswith(_ID_MARK) or not token[len(_ID_MARK) :].isdigit():
        raise TokenError(f"the token {token!r:.40} instead of its id, although that was requested")
    return int(token[len(_ID_MARK) :])
