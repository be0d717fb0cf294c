"""What an attempt is called that is not scored: judged by what was seen, in a fixed order."""

from typing import Any

import pytest

from nemo_gym.capture.gateway import AttemptReport, CallFailure, Refusal
from nemo_gym.programs.endings import AnswerError, Masking, answer_in, judge
from nemo_gym.programs.keeper import Ended

REFUSED = [Refusal(status=422, path="/v1/responses", message="x is not an option")]
DOWN = CallFailure(kind="connection", message="refused")


def seen(calls: int = 2, answered: int = 2, **more: Any) -> AttemptReport:
    return AttemptReport(calls=calls, answered=answered, **more)


@pytest.mark.parametrize(
    ("ended", "calls", "kind"),
    [
        (Ended(exit_code=0), seen(), None),
        (Ended(exit_code=1, limit="time"), seen(last_failure=DOWN, refused=REFUSED), "connection"),
        (Ended(exit_code=0), seen(calls=0, answered=0), "agent_start"),
        (Ended(error="FileNotFoundError"), seen(calls=0, answered=0), "agent_start"),
        (Ended(exit_code=-9, limit="time"), seen(calls=0, answered=0), "agent_start"),
        (Ended(exit_code=-9, limit="time"), seen(refused=REFUSED), "agent_timeout"),
        (Ended(exit_code=-9, limit="memory"), seen(), "agent_memory"),
        (Ended(exit_code=1), seen(refused=REFUSED), "gateway_refused"),
        (Ended(exit_code=0), seen(refused=REFUSED), "gateway_refused"),
        (Ended(exit_code=1), seen(), "agent_crash"),
        (Ended(exit_code=-9, limit="processes"), seen(), "agent_crash"),
        (Ended(exit_code=0), seen(answered=0), "agent_crash"),
        (Ended(limit="stopped", error="its keeper ended"), seen(), "worker_died"),
    ],
)
def test_the_first_thing_that_was_seen_decides(ended: Ended, calls: AttemptReport, kind: str | None) -> None:
    ending = judge(ended, calls, timeout_s=10, memory_mb=100)
    assert (ending.kind if ending else None) == kind


def test_the_message_has_the_last_lines() -> None:
    ended = Ended(exit_code=2, stderr="".join(f"line {number}\n" for number in range(50)))
    ending = judge(ended, seen(), timeout_s=10, memory_mb=None)
    assert ending is not None
    assert ending.message.startswith("exit code 2; it wrote: line 42\n")
    assert ending.message.endswith("line 49")


def test_keys_are_masked() -> None:
    mask = Masking({"OPENAI_API_KEY": "sk-1234567890", "PATH": "/usr/bin:/bin"}, ["attempt-secret-1"])
    assert mask("key sk-1234567890 and attempt-secret-1 in /usr/bin:/bin") == "key **** and **** in /usr/bin:/bin"


def test_answers_are_found_in_json() -> None:
    assert answer_in('{"result": "yes", "n": [1, {"a/b": 2}]}', "/result") == "yes"
    assert answer_in('log\n{"result": {"x": 1}}\n', "/result") == '{"x": 1}'
    assert answer_in('{"n": [1, {"a/b": 2}]}', "/n/1/a~1b") == "2"
    for text, pointer in (("no json", ""), ("{}", "/result"), ("[1]", "/5")):
        with pytest.raises(AnswerError):
            answer_in(text, pointer)
