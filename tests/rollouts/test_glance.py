"""The short way to a line gives what the long way gives, or nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.classify import outcome_of_record
from nemo_gym.rollouts.glance import plain_result
from nemo_gym.rollouts.keyed import key_of
from nemo_gym.rollouts.outcome import Completed
from nemo_gym.rollouts.planned import Planned

PLANNED = Planned.of({"_ng_task_index": 7, "_ng_rollout_index": 2, "agent_ref": {"name": "alpha"}, "question": "why?"})
NAMES = st.sampled_from(
    ["reward", "answer", "_ng_task_index", "_ng_rollout_index", "agent_ref", "_ng_failure_class", "skills_ref", "é"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(record=st.dictionaries(NAMES | st.text(), VALUES), ascii_only=st.booleans(), spaces=st.booleans())
def test_both_ways_lead_to_the_same_line(record: dict[str, Any], ascii_only: bool, spaces: bool) -> None:
    body = json.dumps(record, ensure_ascii=ascii_only, separators=None if spaces else (",", ":")).encode(
        errors="replace"
    )
    short = plain_result(PLANNED, body)
    if short is None:
        return
    long = outcome_of_record(PLANNED, json.loads(body), 0.0)
    assert isinstance(long, Completed)
    assert json.loads(short.line) == json.loads(long.line)
    assert key_of(short.line + b"\n") == PLANNED.key
    assert short.reward == record.get("reward")


def test_a_plain_result_goes_to_the_file_as_it_came() -> None:
    body = b'{"reward": 1.0, "response": {"agent_ref": "inside is no concern of ours"}}'
    result = plain_result(PLANNED, body)
    assert result is not None
    assert body[1:-1] in result.line
    assert result.reward == 1.0


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"",
        b"{",
        b'{"reward": 1',
        b'{"reward": 1}\n',
        b'{\n"reward": 1}',
        b'{"reward": 1, "text": "\xff"}',
        b'{"reward": NaN}',
        b'{"reward": 1, "agent_ref": {"name": "beta"}}',
        b'{"reward": 1, "_ng_failure_class": "timeout"}',
        b'{"reward": 1, "_ng_no_persist": true}',
        b'{"reward": 1, "_ng_task_index": 3}',
        b'{"reward": 1, "\\u005fng_task_index": 3}',
    ],
    ids=repr,
)
def test_everything_else_takes_the_long_way(body: bytes) -> None:
    assert plain_result(PLANNED, body) is None
