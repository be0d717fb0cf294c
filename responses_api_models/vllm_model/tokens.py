"""The true tokens of a call: taken from what the endpoint answers, and given back with the next request. Pure.

Endpoints tell them in three ways: on the message (servers of trainers), in fields of their own (vLLM's
``return_token_ids``), or as log-probabilities whose tokens are written ``token_id:7``. Tokens that do not fit together
are refused: a trainer could not tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nemo_gym.conversion.parts import TOKEN_FIELDS
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChoice

PREFIX_FIELD: Final = "required_prefix_token_ids"
OPTIONS: Final[Mapping[str, Any]] = {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}
_ID_MARK: Final = "token_id:"
SUPPORT_HINT: Final = (
    "an endpoint has to return its tokens for this (vLLM does); without that, set return_token_id_information: false"
)


class TokenError(ValueError):
    """Tokens that are missing or do not fit together."""


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The tokens of one answer; the prompt's may have to be asked for separately."""

    generation: list[int]
    log_probs: list[float]
    prompt: list[int] | None = None
    routed_experts: Any | None = None

    def fields(self, prompt: list[int]) -> dict[str, Any]:
        """The fields of the message that carries them."""
        values = (self.prompt or prompt, self.generation, self.log_probs, self.routed_experts)
        return {name: value for name, value in zip(TOKEN_FIELDS, values, strict=True) if value is not None}


def carry_prefix(chat: dict[str, Any]) -> None:
    """Say what the prompt has to begin with: the tokens of the last answer and of all that went before it.

    Those of earlier answers are contained in these, and not sent: a long conversation would be sent as often as it has
    turns.
    """
    messages: list[dict[str, Any]] = chat["messages"]
    trained = [number for number, message in enumerate(messages) if message.get("generation_token_ids") is not None]
    if not trained:
        return
    for number in trained[:-1]:
        messages[number] = {name: value for name, value in messages[number].items() if name not in TOKEN_FIELDS}
    last = messages[trained[-1]]
    chat[PREFIX_FIELD] = [*last["prompt_token_ids"], *last["generation_token_ids"]]


def tokens_of(completion: NeMoGymChatCompletion, choice: NeMoGymChoice) -> CallTokens:
    """The tokens of one answer."""
    message = choice.message.model_extra or {}
    told = getattr(choice.message, "generation_token_ids", None)
    if told is not None:
        tokens = CallTokens(
            generation=told,
            log_probs=getattr(choice.message, "generation_log_probs", []),
            prompt=getattr(choice.message, "prompt_token_ids", None),
            routed_experts=getattr(choice.message, "routed_experts", None),
        )
    else:
        scores = _scores(choice)
        ids = (choice.model_extra or {}).get("token_ids")
        prompt = message.get("prompt_token_ids") or (completion.model_extra or {}).get("prompt_token_ids")
        tokens = CallTokens(
            generation=[_token_id(score) for score in scores] if ids is None else _ids(ids),
            log_probs=[_log_prob(score) for score in scores],
            prompt=None if prompt is None else _ids(prompt),
        )
    if len(tokens.generation) != len(tokens.log_probs):
        lengths = f"{len(tokens.generation)} tokens and {len(tokens.log_probs)} log-probabilities"
        raise TokenError(f"{lengths}: there is one for each")
    return tokens


def _scores(choice: NeMoGymChoice) -> Sequence[Mapping[str, Any]]:
    scores = (choice.logprobs or {}).get("content")
    if not isinstance(scores, list) or not all(isinstance(score, dict) for score in scores):
        raise TokenError("no log-probabilities, although they were asked for")
    return scores


def _ids(tokens: Any) -> list[int]:
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise TokenError("tokens that are no list of numbers")
    return tokens


def _token_id(score: Mapping[str, Any]) -> int:
    token = score.get("token")
    if not isinstance(token, str) or not token.startswith(_ID_MARK) or not token[len(_ID_MARK) :].isdigit():
        raise TokenError(f"the token {token!r:.40} instead of its id, although that was asked for")
    return int(token[len(_ID_MARK) :])


def _log_prob(score: Mapping[str, Any]) -> float:
    value = score.get("logprob")
    if not isinstance(value, int | float):
        raise TokenError("a token without its log-probability")
    return float(value)
