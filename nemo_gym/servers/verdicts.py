"""Verdicts, the replies of ``verify``, completed with the rollout that they refer to and the tokens of judges.

A verifier may return only its scores; the saved rollout then still contains the request and the response, whichever
agent called it. The tokens of judges are added under their own key, because only the server that called a judge knows
them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

from nemo_gym.io.json import encode_json
from nemo_gym.schemas.rows import (
    JUDGE_USAGE_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    SPENT,
)
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.middleware.rollout_scope import captured_mark, uncaptured

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
TokenCounts = dict[str, Any]  # a usage of the Responses API

_NOTHING: Final = nullcontext()
_ROLLOUT: Final = (RESPONSES_CREATE_PARAMS_KEY_NAME, RESPONSE_KEY_NAME)
_judge_tokens: ContextVar[dict[str, TokenCounts] | None] = ContextVar("judge_tokens", default=None)  # by server


def count_judge(server: str, usage: Mapping[str, Any] | BaseModel | None) -> None:
    """Add the tokens of one judge call to those of the current verification, if there is one."""
    tokens = _judge_tokens.get()
    if tokens is None or usage is None:
        return
    used = usage.model_dump(mode="json") if isinstance(usage, BaseModel) else usage
    if isinstance(spent := used.get(SPENT), Mapping):  # the tokens paid for, if they differ from those used
        used = {**spent, "input_tokens_details": spent}
    details = used.get("input_tokens_details") or used.get("prompt_tokens_details") or {}
    before = tokens.setdefault(server, usage_of_tokens(0, 0, 0))
    tokens[server] = usage_of_tokens(
        before["input_tokens"] + _count(used.get("input_tokens", used.get("prompt_tokens"))),
        before["output_tokens"] + _count(used.get("output_tokens", used.get("completion_tokens"))),
        before["input_tokens_details"]["cached_tokens"] + _count(details.get("cached_tokens")),
    )


def usage_of_tokens(read: int, written: int, cached: int) -> TokenCounts:
    """Token counts in the form of the Responses API."""
    return {"input_tokens": read, "output_tokens": written, "input_tokens_details": {"cached_tokens": cached}}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def judge_usage() -> dict[str, Any]:
    """What a rollout records about the judges called by the current verification; empty if there were none."""
    tokens = _judge_tokens.get()
    return {JUDGE_USAGE_KEY: tokens} if tokens else {}


# ---- the verifier ----------------------------------------------------------------------------------------------------
def completing(verify: Handler) -> Handler:
    """Wrap a ``verify`` handler so that its verdicts are whole rollouts."""

    @wraps(verify)
    async def verify_completely(*values: Any, **named: Any) -> Any:
        token = _judge_tokens.set({})
        try:
            with uncaptured() if captured_mark() is not None else _NOTHING:
                verdict = await verify(*values, **named)
            added = judge_usage()
        finally:
            _judge_tokens.reset(token)
        lacking = {name for name in _ROLLOUT if not _has(verdict, name)}
        return _completed(verdict, lacking, added, (*values, *named.values())) if lacking or added else verdict

    return cast("Handler", verify_completely)


def _has(verdict: Any, name: str) -> bool:
    return name in verdict if isinstance(verdict, Mapping) else hasattr(verdict, name)


def _completed(verdict: Any, lacking: set[str], added: Mapping[str, Any], given: Sequence[Any]) -> Any:
    """The verdict with what it lacks and the request has, and with other fields; a response is left as it is."""
    if isinstance(verdict, BaseModel):
        verdict = verdict.model_dump(mode="json", by_alias=True)
    if not isinstance(verdict, Mapping):
        return verdict
    body = next((value for value in given if isinstance(value, BaseModel)), None)
    known = body.model_dump(mode="json", exclude_unset=True, include=lacking) if body is not None else {}
    return JsonResponse(encode_json({**known, **verdict, **added}))
