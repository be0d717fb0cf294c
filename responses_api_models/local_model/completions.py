"""What was generated, as a chat completion."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.capture.calls import SampledTokens, json_text
from nemo_gym.capture.conversations import Linked, keep
from nemo_gym.conversion.completion_tokens import SAMPLING_FIELD
from nemo_gym.conversion.parts import CALL_REFERENCE, POLICY_VERSION
from nemo_gym.openai_utils import NeMoGymChatCompletion
from responses_api_models.local_model.tool_calls import Answer


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one choice, for training."""

    prompt: list[int]
    generation: list[int]
    log_probs: list[float]
    sampling: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One choice and its bookkeeping."""

    answer: Answer
    cut_off: bool
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    scores: Sequence[Mapping[str, Any]] | None = None
    tokens: Tokens | None = None
    version: int | None = None  # of the weights


def chat_completion(
    outcomes: Sequence[Outcome], *, model: str, versions: bool = False, linked: Linked | None = None
) -> NeMoGymChatCompletion:
    """Put the choices for one request into a completion; ``versions``: each says which weights made it.

    With a linked request, its tokens are kept, and the message refers to them.
    """
    prompt = outcomes[0].prompt_tokens
    generated = sum(outcome.generated_tokens for outcome in outcomes)
    body = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(index, outcome, linked, versions=versions) for index, outcome in enumerate(outcomes)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": outcomes[0].cached_tokens},
        },
    }
    return NeMoGymChatCompletion.model_validate(body)


def _choice(index: int, outcome: Outcome, linked: Linked | None, *, versions: bool) -> dict[str, Any]:
    answer = outcome.answer
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    if outcome.tokens is not None and linked is not None:
        message[CALL_REFERENCE] = keep(linked, _sampled(outcome.tokens), as_rendered=True).id
    elif outcome.tokens is not None:
        message |= {
            "prompt_token_ids": outcome.tokens.prompt,
            "generation_token_ids": outcome.tokens.generation,
            "generation_log_probs": outcome.tokens.log_probs,
            SAMPLING_FIELD: outcome.tokens.sampling,
        }
    if versions and outcome.version is not None:
        message[POLICY_VERSION] = outcome.version
    finish = "length" if outcome.cut_off else "tool_calls" if answer.calls else "stop"
    logprobs = None if outcome.scores is None else {"content": list(map(_logprob, outcome.scores)), "refusal": None}
    return {"index": index, "message": message, "finish_reason": finish, "logprobs": logprobs}


def _sampled(tokens: Tokens) -> SampledTokens:
    return SampledTokens(
        json_text(tokens.prompt),
        json_text(tokens.generation),
        json_text(tokens.log_probs),
        {SAMPLING_FIELD: tokens.sampling},
    )


def _logprob(score: Mapping[str, Any]) -> dict[str, Any]:
    entry = {name: score[name] for name in ("token", "bytes", "logprob")}
    top = [{name: one[name] for name in ("token", "bytes", "logprob")} for one in score.get("top_logprobs", ())]
    return {**entry, "top_logprobs": top}
