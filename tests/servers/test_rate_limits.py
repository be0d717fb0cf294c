"""What answers say about rate limits, in all the ways in which endpoints say it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from nemo_gym.servers.rate_limits import (
    is_exhausted,
    pause_asked_for,
    reset_header,
    seconds_until,
    speaks_of_limits,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EPOCH = NOON.timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1m30.951s", 90.951),
        ("1h2m3s", 3723),
        ("1d", 86_400),
        ("2m", 120),
        ("1s500ms", 1.5),
        ("12", 12),
        (" 0.5 ", 0.5),
        ("0", 0),
        (str(int(EPOCH) + 7), 7),
        (f"{EPOCH + 1.5}", 1.5),
        (str((int(EPOCH) + 9) * 1000), 9),
        ("2026-01-01T12:00:30Z", 30),
        ("2026-01-01T12:00:30.250000Z", 30.25),
        ("2026-01-01T14:00:05+02:00", 5),
        ("2026-01-01T12:00:05", 5),
        ("2026-01-01T11:59:50Z", -10),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("1e9", None),
        ("s", None),
        ("1s1m", None),
    ],
)
def test_every_way_to_say_when(text: str, seconds: float | None) -> None:
    assert seconds_until(text, NOON) == (None if seconds is None else pytest.approx(seconds, abs=1e-6))


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry-After": "3"}, 3),
        (503, {"retry-after": "Thu, 01 Jan 2026 12:00:20 GMT"}, 20),
        (529, {"retry-after-ms": "250"}, 0.25),
        (429, {}, 0),
        (429, {"Retry-After": "86400"}, 60),
        (500, {"Retry-After": "3"}, 0),
        (200, {"Retry-After": "3"}, 0),
        (200, {"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "1s"}, 1),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 60),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-requests": "9s"}, 0),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "soon"}, 0),
        (200, {"x-ratelimit-remaining-tokens": "0"}, 0),
        (200, {"x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "9s"}, 0),
        (200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(EPOCH) + 4)}, 4),
        (
            200,
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "20ms",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "2s",
            },
            2,
        ),
        (
            200,
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-01-01T12:00:08Z",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-requests-reset": "2026-01-01T12:00:30Z",
            },
            8,
        ),
        (200, {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "bad"}, 0),
        (
            200,
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-01-01T11:00:00Z",
            },
            0,
        ),
        # Retry-After is when to come back, reset is when the limit is whole again.
        (429, {"Retry-After": "2", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "50s"}, 2),
        (429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "50s"}, 50),
    ],
)
def test_the_pause_that_an_answer_asks_for(status: int, headers: dict[str, str], pause: float) -> None:
    assert pause_asked_for(status, CIMultiDict(headers), NOON) == pytest.approx(pause)


def test_names_tell_whether_limits_are_spoken_of() -> None:
    assert not speaks_of_limits([b"Content-Type", b"Date", b"x-ratelimit-limit-requests", b"Retry-After"])
    assert speaks_of_limits([b"Date", b"X-RateLimit-Remaining-Tokens"])
    assert speaks_of_limits([b"Date", b"ANTHROPIC-RATELIMIT-TOKENS-REMAINING"])


def test_only_a_header_that_says_zero_is_worth_a_closer_look() -> None:
    usual = [(b"Content-Type", b"application/json"), (b"Access-Control-Allow-Credentials", b"0")]

    assert not is_exhausted([])
    assert not is_exhausted(usual)
    assert not is_exhausted([*usual, (b"x-ratelimit-remaining-requests", b"10"), (b"x-ratelimit-limit-requests", b"0")])
    assert is_exhausted([*usual, (b"X-RateLimit-Remaining-Requests", b"0 ")])
    assert is_exhausted([*usual, (b"x-ratelimit-remaining", b"0")])
    assert is_exhausted([*usual, (b"anthropic-ratelimit-output-tokens-remaining", b"0")])


def test_what_remains_and_when_it_is_reset_belong_together() -> None:
    assert reset_header("X-RateLimit-Remaining-Tokens") == "x-ratelimit-reset-tokens"
    assert reset_header("anthropic-ratelimit-tokens-remaining") == "anthropic-ratelimit-tokens-reset"


@given(st.text(max_size=40) | st.from_regex(r"[0-9.]{1,20}(ms|s|m|h|d)?"))
def test_no_text_is_too_strange_or_closes_for_more_than_a_minute(text: str) -> None:
    headers = CIMultiDict({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": text})

    assert 0 <= pause_asked_for(200, headers, NOON) <= 60


@given(st.timedeltas(timedelta(0), timedelta(days=300)))
def test_dates_mean_the_time_until_then(wait: timedelta) -> None:
    assert seconds_until((NOON + wait).isoformat(), NOON) == pytest.approx(wait.total_seconds())
