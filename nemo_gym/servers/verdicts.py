"""Verdicts, the answers of ``verify``: completed with the rollout they refer to and the tokens of judges, and outlined.

A verifier may return only its scores; the saved rollout then still contains the request and the response, whichever
agent called it. The tokens of judges are added under their own key, because only the server that called a judge knows
them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache, wraps
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType
from pydantic import BaseModel

from nemo_gym.io.json import encode_json
from nemo_gym.schemas.responses import SPENT
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    JUDGE_USAGE_KEY,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
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


# ---- the text of a verdict -------------------------------------------------------------------------------------------
_NAMES: Final = {
    "params": RESPONSES_CREATE_PARAMS_KEY_NAME,
    "task": TASK_INDEX_KEY_NAME,
    "rollout": ROLLOUT_INDEX_KEY_NAME,
    "agent": AGENT_REF_KEY_NAME,
    "skills": SKILLS_REF_KEY_NAME,
    "failure": NG_FAILURE_CLASS_KEY,
    "unsaved": NG_NO_PERSIST_KEY,
    "judges": JUDGE_USAGE_KEY,
}
_Count = Annotated[int, Meta(ge=0)]


class _Cached(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = 0


class _Spent(msgspec.Struct, gc=False):
    input_tokens: _Count
    output_tokens: _Count
    cached_tokens: _Count


class _Usage(msgspec.Struct, gc=False):
    input_tokens: _Count
    output_tokens: _Count
    input_tokens_details: _Cached | None = None
    spent: _Spent | None = None


class ScoredResponse(msgspec.Struct, gc=False):
    """A response, of which only the tokens matter."""

    usage: _Usage | None = None


class VerdictOutline(msgspec.Struct, gc=False, rename=_NAMES):
    """What a rollout says about itself; everything else is skipped."""

    params: msgspec.Raw | UnsetType = UNSET  # only whether it is there matters
    response: ScoredResponse | UnsetType | None = UNSET
    reward: Any = None
    task: Any = UNSET
    rollout: Any = UNSET
    agent: Any = UNSET
    skills: Any = UNSET
    failure: Any = UNSET
    unsaved: Any = UNSET
    judges: Any = UNSET


class _Parts(msgspec.Struct, gc=False, rename={"params": RESPONSES_CREATE_PARAMS_KEY_NAME}):
    params: msgspec.Raw | UnsetType = UNSET
    response: msgspec.Raw | UnsetType = UNSET


_decode_outline = msgspec.json.Decoder(VerdictOutline).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode


@lru_cache(maxsize=1)  # an agent looks at a verdict, and the collector directly afterwards at the same one
def outline_of_verdict(text: bytes) -> VerdictOutline:
    """The outline of a rollout; raises msgspec's errors if it is not as expected."""
    return _decode_outline(text)


def completed(verdict: bytes, params: Mapping[str, Any], response: bytes) -> bytes:
    """The JSON of a verdict; a verifier that answers only with its scores gets request and response added."""
    try:
        seen = _parts_of(verdict)
    except (ValueError, msgspec.MsgspecError, RecursionError):  # the collector says what is wrong with it
        return verdict
    added = []
    if seen.params is UNSET:
        added.append(b'"responses_create_params":' + encode_json(params))
    if seen.response is UNSET:
        added.append(b'"response":' + response)
    if not added:
        return verdict
    said = verdict.strip()[1:-1].strip()
    return b"{" + b",".join([*added, said] if said else added) + b"}"


def _parts_of(verdict: bytes) -> VerdictOutline | _Parts:
    try:
        return outline_of_verdict(verdict)
    except msgspec.MsgspecError:  # token counts that make no sense, for example
        return _decode_parts(verdict)
