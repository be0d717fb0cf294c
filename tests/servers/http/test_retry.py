"""Retries are bounded, jittered, and do what the server asks for."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.servers.http.client import request
from nemo_gym.servers.http.request_errors import RequestFailedError
from nemo_gym.servers.http.retry import RetryPolicy, retry_after_seconds, retry_patience_s
from tests.servers.http.raw_server import playing, replies, reply

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def delays(policy: RetryPolicy, draw: float) -> list[float | None]:
    return [policy.delay(attempt, draw=lambda: draw) for attempt in range(1, policy.attempts + 1)]


def test_waits_double_up_to_the_limit_and_end() -> None:
    assert delays(RetryPolicy(attempts=5, base_s=1, max_s=5), draw=1.0) == [1, 2, 4, 5, None]


def test_one_attempt_means_no_retry() -> None:
    assert delays(RetryPolicy(attempts=1), draw=1.0) == [None]


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_a_wait_is_never_longer_than_the_limit(draw: float, attempt: int) -> None:
    delay = RetryPolicy(attempts=20_000, base_s=0.5, max_s=30).delay(min(attempt, 1000), draw=lambda: draw)

    assert delay is not None
    assert 0 <= delay <= 30


def test_what_the_server_asks_for_is_the_least_and_is_capped() -> None:
    policy = RetryPolicy(attempts=3, base_s=0.5, retry_after_cap_s=60)

    assert policy.delay(1, retry_after_s=7, draw=lambda: 0.0) == 7
    assert policy.delay(1, retry_after_s=7, draw=lambda: 1.0) == 7.5
    assert policy.delay(1, retry_after_s=86_400, draw=lambda: 0.0) == 60
    assert policy.delay(3, retry_after_s=7) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"Retry-After": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:30 -0000"}, 30.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"retry-after-ms": "x", "Retry-After": "1"}, 1.0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=NOON) == seconds


async def test_a_rollout_without_patience_does_not_try_a_request_again() -> None:
    async with playing(replies(b"", hang_up=True)) as server:
        retry_patience_s.set(0.0)
        with pytest.raises(RequestFailedError, match=r"closed the connection without a reply$"):
            await request("POST", server.url, retries=RetryPolicy(attempts=9, base_s=30))
        assert len(server.heads) == 1
        retry_patience_s.set(60.0)
        with pytest.raises(RequestFailedError, match="3 attempts"):
            await request("POST", server.url, retries=RetryPolicy(attempts=3, base_s=0.001))


async def test_silence_is_tried_for_a_limited_time_and_busy_endpoints_for_longer() -> None:
    policy = RetryPolicy(attempts=3, base_s=0.001, silent_s=0.0, statuses=frozenset({503}))
    async with playing(replies(b"", hang_up=True)) as server:
        with pytest.raises(RequestFailedError, match=r"closed the connection without a reply$"):
            await request("POST", server.url, retries=policy)
    async with playing(replies(reply(b"{}", "503 Busy"))) as server:
        assert (await request("POST", server.url, retries=policy)).status == 503
        assert len(server.heads) == 3
