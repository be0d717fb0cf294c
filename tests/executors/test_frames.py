"""What travels between collector and workers arrives as it was sent, whatever is in it."""

import pytest

from nemo_gym.executors.frames import LENGTHS, Frame, decode_outcome, encode_outcome
from nemo_gym.io.json import decode
from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.store.outcome import Failure, PlannedRollout


def received(data: bytes) -> Frame:
    head, body = LENGTHS.unpack_from(data)
    start = LENGTHS.size
    return Frame(decode(data[start : start + head]), data[start + head : start + head + body])


@pytest.mark.parametrize("text", ["plain", "umlaut ü", "half a pair \ud83d", "\udc80 and \0"])
def test_a_failure_survives_the_trip_whatever_its_text_is(text: str) -> None:
    planned = PlannedRollout.of({"_ng_task_index": 1, "_ng_rollout_index": 2, "agent_ref": {"name": "a"}})
    sent = failed(planned, Failure.of("connection", text, http_body=text), 0.5)
    assert decode_outcome(received(encode_outcome(7, sent)), planned) == sent
