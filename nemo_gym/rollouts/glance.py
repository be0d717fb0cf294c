"""The short way from an agent's answer to a line: told by a glance, without building what the answer holds.

Almost every answer is a plain scored rollout. It goes to the file as it came, with its key around it, if it is valid
JSON on one line and says nothing of its own about its key, its agent or a failure. Everything else takes the long way
(``classify``), so speed never changes a result.
"""

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta

from nemo_gym.rollouts.jsonl import encode
from nemo_gym.rollouts.outcome import Usage
from nemo_gym.rollouts.planned import Planned
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

_NAMES = {
    "task": TASK_INDEX_KEY_NAME,
    "rollout": ROLLOUT_INDEX_KEY_NAME,
    "agent": AGENT_REF_KEY_NAME,
    "skills": SKILLS_REF_KEY_NAME,
    "failure": NG_FAILURE_CLASS_KEY,
    "unsaved": NG_NO_PERSIST_KEY,
}


_Count = Annotated[int, Meta(ge=0)]


class _Cached(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = 0


class _Usage(msgspec.Struct, gc=False):
    input_tokens: _Count
    output_tokens: _Count
    input_tokens_details: _Cached | None = None


class _Response(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Glance(msgspec.Struct, gc=False, rename=_NAMES):
    reward: Any = None
    response: _Response | None = None
    task: Any = UNSET
    rollout: Any = UNSET
    agent: Any = UNSET
    skills: Any = UNSET
    failure: Any = UNSET
    unsaved: Any = UNSET


_LINE = f'{{"{TASK_INDEX_KEY_NAME}":%d,%b,"{AGENT_REF_KEY_NAME}":%b,"{ROLLOUT_INDEX_KEY_NAME}":%d}}'.encode()
_look = msgspec.json.Decoder(_Glance).decode


class PlainResult(NamedTuple):
    """A scored rollout, ready to be saved."""

    line: bytes
    reward: Any
    usage: Usage | None


def plain_result(planned: Planned, body: bytes) -> PlainResult | None:
    """The line that an answer amounts to and the reward it names; None if it takes a closer look."""
    if b"\n" in body or body[:1] != b"{" or body[-1:] != b"}" or SKILLS_REF_KEY_NAME in planned.row:
        return None
    try:
        str(body, "utf-8")  # the decoder does not look into strings that it skips
        seen = _look(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if seen != _Glance(seen.reward, seen.response) or len(body) == 2:
        return None
    key, agent = planned.key, encode(planned.row.get(AGENT_REF_KEY_NAME))
    return PlainResult(_LINE % (key.task, body[1:-1], agent, key.rollout), seen.reward, _usage(seen.response))


def _usage(response: _Response | None) -> Usage | None:
    usage = response.usage if response is not None else None
    if usage is None:
        return None
    cached = usage.input_tokens_details
    return Usage(usage.input_tokens, usage.output_tokens, (cached.cached_tokens or 0) if cached else 0)
