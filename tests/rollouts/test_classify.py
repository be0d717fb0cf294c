"""Every reply and every error of an attempt becomes an outcome."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.classify import (
    failed,
    failure_of_error,
    failure_of_status,
    outcome_of_record,
    outcome_of_reply,
)
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout, Vanished
from nemo_gym.rollouts.store.saved_lines import key_in_line
from nemo_gym.schemas.record import Usage
from nemo_gym.schemas.rows import FailureClass

PLANNED = PlannedRollout.of(
    {"_ng_task_index": 7, "_ng_rollout_index": 2, "agent_ref": {"name": "alpha"}, "question": "why?"}
)
NAMES = st.sampled_from(
    ["reward", "answer", "_ng_task_index", "_ng_rollout_index", "agent_ref", "_ng_failure_class", "skills_ref", "é"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(record=st.dictionaries(NAMES | st.text(), VALUES), ascii_only=st.booleans(), spaces=st.booleans())
def test_a_reply_is_saved_whole_with_its_key(record: dict[str, Any], ascii_only: bool, spaces: bool) -> None:
    separators = None if spaces else (",", ":")
    body = json.dumps(record, ensure_ascii=ascii_only, separators=separators).encode(errors="surrogatepass")
    outcome = outcome_of_reply(PLANNED, 200, {}, body, 0.0)
    stamped = {"_ng_task_index": 7, "_ng_rollout_index": 2, "agent_ref": {"name": "alpha"}}
    assert json.loads(outcome.line) == {**record, **stamped}
    assert key_in_line(outcome.line + b"\n") == PLANNED.key
    assert b"\n" not in outcome.line


def test_numbers_keep_all_their_digits() -> None:
    outcome = outcome_of_reply(PLANNED, 200, {}, b'{"reward": 1.0, "exact": 123456789012345678901234567890}', 0.0)
    assert b"123456789012345678901234567890" in outcome.line


Make = Callable[..., PlannedRollout]


def answer(planned: PlannedRollout, record: Any, status: int = 200) -> Outcome:
    return outcome_of_reply(planned, status, {}, json.dumps(record).encode(), 0.5)


def test_a_scored_answer_is_completed_and_stamped_with_what_was_planned(planned: Make) -> None:
    outcome = answer(planned(3, 1), {"reward": 1, "_ng_task_index": 77, "agent_ref": {"name": "liar"}})
    assert isinstance(outcome, Completed)
    assert outcome.reward == 1.0
    assert outcome.record == {
        "reward": 1,
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "agent_ref": {"name": "alpha"},
    }


def test_a_status_of_400_is_a_failure_whatever_the_body_says(planned: Make) -> None:
    outcome = answer(planned(), {"reward": 1.0, "detail": {"error": {"message": "no such tool"}}}, status=400)
    assert isinstance(outcome, Failed)
    assert outcome.failure.message == "HTTP 400: no such tool"
    assert isinstance(answer(planned(), {"reward": 1.0}, status=399), Completed)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(408, "timeout"), (429, "rate_limited"), (502, "connection"), (503, "connection"), (504, "timeout")],
)
def test_a_status_says_what_kind_of_failure_it_is(planned: Make, status: int, kind: str) -> None:
    outcome = answer(planned(), {}, status=status)
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == kind


def test_the_message_of_a_failure_is_the_body_if_that_holds_no_text(planned: Make) -> None:
    for body, message in ((b"plain text", "plain text"), (b'{"detail": [{"loc": 1}]}', '{"detail": [{"loc": 1}]}')):
        outcome = outcome_of_reply(planned(), 500, {}, body, 0.5)
        assert isinstance(outcome, Failed)
        assert outcome.failure.message == f"HTTP 500: {message}"


def test_the_tokens_of_judges_count(planned: Make) -> None:
    used = {"input_tokens": 5, "output_tokens": 3}
    record = {"reward": 1.0, "response": {"usage": used}, "_ng_judge_usage": {"judge": used}}
    outcome = outcome_of_reply(planned(), 200, {}, json.dumps(record).encode(), 1.0)
    assert isinstance(outcome, Completed)
    assert outcome.usage == Usage(5, 3, judges=[("judge", Usage(5, 3))])


def test_a_rollout_without_a_number_as_reward_is_completed_all_the_same(planned: Make) -> None:
    for reward in (None, "high", [1]):
        outcome = answer(planned(), {"reward": reward})
        assert isinstance(outcome, Completed)
        assert outcome.reward is None


def test_the_skills_of_the_row_stay_with_the_rollout(planned: Make) -> None:
    one = planned()
    one.row["skills_ref"] = {"hash": "abc"}
    assert answer(one, {"reward": 0, "skills_ref": "other"}).record["skills_ref"] == {"hash": "abc"}


@pytest.mark.parametrize("kind", ["legitimate", ""])
def test_an_agent_may_say_that_it_failed(planned: Make, kind: str) -> None:
    said = {"reward": 0.0, "_ng_failure_class": kind, "error_message": "boom"}
    outcome = answer(planned(last=3), said)
    assert isinstance(outcome, Failed)
    assert (outcome.failure.kind, outcome.failure.message) == (kind, "boom")
    assert not outcome.will_retry, "it is owed again when the run is resumed, not at once"
    assert {name: outcome.record[name] for name in said} == said
    assert "_ng_attempt" not in outcome.record


def test_from_the_second_attempt_on_an_agents_failure_says_which_it_was(planned: Make) -> None:
    assert answer(planned(attempt=2, last=3), {"_ng_failure_class": "transient"}).record["_ng_attempt"] == 2


def test_a_terminal_failure_is_final(planned: Make) -> None:
    outcome = answer(planned(last=3), {"_ng_failure_class": "skipped", "_ng_failure_terminal": True})
    assert isinstance(outcome, Failed)
    assert outcome.failure.terminal


def test_what_must_not_be_stored_vanishes(planned: Make) -> None:
    outcome = answer(planned(), {"_ng_failure_class": "kill_shaped", "_ng_no_persist": True})
    assert isinstance(outcome, Vanished)
    assert outcome.kind == "kill_shaped"
    assert isinstance(outcome_of_record(planned(), {"_ng_no_persist": 1}, 0), Vanished)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"text"', b'{"reward": 1'])
def test_an_answer_that_is_no_object_is_an_invalid_response(planned: Make, body: bytes) -> None:
    outcome = outcome_of_reply(planned(last=2), 200, {}, body, 0.5)
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == FailureClass.INVALID_RESPONSE
    assert outcome.will_retry
    assert outcome.record["_ng_http_body"] == body.decode()


@pytest.mark.parametrize(
    ("status", "kind", "transient"),
    [
        (500, FailureClass.AGENT_ERROR, False),
        (422, FailureClass.AGENT_ERROR, False),
        (404, FailureClass.AGENT_ERROR, False),
        (429, FailureClass.RATE_LIMITED, True),
        (408, FailureClass.TIMEOUT, True),
        (503, FailureClass.CONNECTION, True),
        (504, FailureClass.TIMEOUT, True),
    ],
)
def test_without_better_knowledge_the_status_decides(status: int, kind: FailureClass, transient: bool) -> None:
    failure = failure_of_status(status, {}, b"oops")
    assert (failure.kind, failure.transient, failure.http_status) == (kind, transient, status)
    assert "oops" in failure.message


def test_a_server_that_knows_why_says_so_in_a_header() -> None:
    headers = CIMultiDict({"x-ng-failure-class": "rate_limited", "retry-after": "7"})
    failure = failure_of_status(500, headers, b'"Hit an exception"')
    assert (failure.kind, failure.transient, failure.retry_after_s) == ("rate_limited", True, 7.0)


def test_or_in_the_body() -> None:
    body = {"_ng_failure_class": "verifier_error", "_ng_failure_terminal": True, "detail": "no judge"}
    failure = failure_of_status(500, {}, json.dumps(body).encode())
    assert (failure.kind, failure.terminal, failure.transient) == ("verifier_error", True, False)
    assert failure.message == "HTTP 500: no judge"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\"ValueError('bad')\"", "ValueError('bad')"),
        (b'{"error": {"message": "overloaded", "type": "server_error"}}', "overloaded"),
        (b'{"detail": [{"loc": ["body"]}]}', "loc"),
        (b"\xff\xfe", "\ufffd"),
    ],
)
def test_the_message_holds_the_words_of_the_body(body: bytes, words: str) -> None:
    assert words in failure_of_status(500, {}, body).message


def test_a_long_body_is_kept_in_part() -> None:
    failure = failure_of_status(500, {}, b"x" * 100_000)
    assert len(failure.http_body or "") == 4000
    assert len(failure.message) == 500


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), FailureClass.TIMEOUT),
        (aiohttp.ServerDisconnectedError(), FailureClass.CONNECTION),
        (ConnectionRefusedError(111, "refused"), FailureClass.CONNECTION),
        (aiohttp.ClientPayloadError("cut"), FailureClass.CONNECTION),
        (RolloutError("no tools"), FailureClass.AGENT_ERROR),
    ],
)
def test_errors_of_the_transport(error: Exception, kind: FailureClass) -> None:
    failure = failure_of_error(error)
    assert failure.kind == kind
    assert failure.message


def test_an_error_status_that_was_raised_is_read_like_an_answer() -> None:
    error = aiohttp.ClientResponseError(None, (), status=429, headers=CIMultiDict({"Retry-After": "2"}))  # type: ignore[arg-type]
    error.response_content = b"slow down"  # type: ignore[attr-defined]
    failure = failure_of_error(error)
    assert (failure.kind, failure.retry_after_s, failure.http_body) == ("rate_limited", 2.0, "slow down")


def test_a_recorded_failure_holds_what_is_known_and_no_reward(planned: Make) -> None:
    failure = Failure(kind="timeout", message="no reply within 5 s", transient=True)
    outcome = failed(planned(2, 1, attempt=2, last=3), failure, 5.01234)
    assert outcome.record == {
        "_ng_task_index": 2,
        "_ng_failure_class": "timeout",
        "error_message": "no reply within 5 s",
        "_ng_attempt": 2,
        "_ng_duration_s": 5.012,
        "agent_ref": {"name": "alpha"},
        "_ng_rollout_index": 1,
    }
    assert outcome.will_retry
    assert not failed(planned(attempt=3, last=3), failure, 0).will_retry


def test_cancellation_is_no_failure() -> None:
    from nemo_gym.rollouts.classify import expected_errors

    assert not issubclass(asyncio.CancelledError, expected_errors())


@pytest.mark.parametrize("body", [b"{}", b"{ }", b"{\t}", b"{  \r }"])
def test_an_empty_answer_becomes_a_valid_line(planned: Make, body: bytes) -> None:
    outcome = outcome_of_reply(planned(), 200, {}, body, 0.0)
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.line)["_ng_task_index"] == 0


@pytest.mark.parametrize("depth", [300, 1000, 1020, 5000])
def test_an_answer_that_is_nested_deeply_is_saved_whole_or_recorded(planned: Make, depth: int) -> None:
    body = b'{"reward": 1.0, "_ng_task_index": 7, "deep": ' + b"[" * depth + b"]" * depth + b"}"
    outcome = outcome_of_reply(planned(), 200, {}, body, 0.0)
    if isinstance(outcome, Failed):
        assert outcome.failure.kind == "invalid_response"
    else:
        assert outcome.line.count(b"[") == depth
