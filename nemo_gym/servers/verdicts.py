"""Completes the answers of ``verify`` handlers with the rollout they refer to and the tokens of judges they called.

A verifier may return only its scores; the saved rollout then still contains the request and the response, whichever
agent called it. The tokens of judges are added under their own key, because only the server that called a judge knows
them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

from nemo_gym.io.json import encode_json
from nemo_gym.schemas.responses import SPENT
from nemo_gym.schemas.rows import JUDGE_USAGE_KEY, RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME
from nemo_gym.servers.direct.replies import JsonResponse

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
TokenCounts = dict[str, Any]  # a usage of the Responses API

_ROLLOUT: Final = frozenset({RESPONSES_CREATE_PARAMS_KEY_NAME, RESPONSE_KEY_NAME})
_asked: ContextVar[dict[str, TokenCounts] | None] = ContextVar("judges_asked", default=None)


def count_judge(server: str, usage: Mapping[str, Any] | BaseModel | None) -> None:
    """Add the tokens of one judge call to those of the current verification, if there is one."""
    asked = _asked.get()
    if asked is None or usage is None:
        return
    used = usage.model_dump(mode="json") if isinstance(usage, BaseModel) else usage
    if isinstance(spent := used.get(SPENT), Mapping):  # the tokens paid for, if they differ from those used
        used = {**spent, "input_tokens_details": spent}
    details = used.get("input_tokens_details") or used.get("prompt_tokens_details") or {}
    before = asked.setdefault(server, usage_of_tokens(0, 0, 0))
    asked[server] = usage_of_tokens(
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
    return _usage_of(_asked.get())


def _usage_of(asked: dict[str, TokenCounts] | None) -> dict[str, Any]:
    return {JUDGE_USAGE_KEY: asked} if asked else {}


def completing(verify: Handler) -> Handler:
    """Wrap a ``verify`` handler so that its answers are whole rollouts."""

    @wraps(verify)
    async def verify_completely(*values: Any, **named: Any) -> Any:
        asked: dict[str, TokenCounts] = {}
        token = _asked.set(asked)  # the tokens of judges that are called meanwhile
        try:
            verdict = await verify(*values, **named)
        finally:
            _asked.reset(token)
        lacking = _lacking(verdict)
        if not lacking and not asked:
            return verdict
        return _completed(verdict, lacking, asked, (*values, *named.values()))

    return cast("Handler", verify_completely)


def _lacking(verdict: Any) -> frozenset[str]:
    """The parts of the rollout that the verdict lacks."""
    lacking = _lacked_by(verdict.__class__)
    return _ROLLOUT - verdict.keys() if lacking is None else lacking


@cache  # because asking a class for its fields takes longer than a handler that has nothing to complete
def _lacked_by(kind: type) -> frozenset[str] | None:
    """The parts of the rollout that all verdicts of a class lack; None if they may differ in that."""
    if issubclass(kind, Mapping):
        return None
    return _ROLLOUT - kind.model_fields.keys() if issubclass(kind, BaseModel) else frozenset()


def _completed(verdict: Any, lacking: frozenset[str], asked: dict[str, TokenCounts], given: Sequence[Any]) -> Any:
    """The verdict with what it lacks and the request has, and with the tokens of judges."""
    body = next((value for value in given if isinstance(value, BaseModel)), None)
    missing = {name for name in lacking if hasattr(body, name)}
    fields = _fields(verdict) if missing or asked else None
    if fields is None:
        return verdict
    known = body.model_dump(mode="json", exclude_unset=True, include=missing) if body is not None else {}
    return JsonResponse(encode_json({**known, **fields, **_usage_of(asked)}))


def _fields(verdict: Any) -> dict[str, Any] | None:
    if isinstance(verdict, BaseModel):
        return verdict.model_dump(mode="json", by_alias=True)
    return dict(verdict) if isinstance(verdict, Mapping) else None
