"""What replies say about rate limits, in all the ways in which endpoints say it.

The gate before an endpoint: who goes when, and that no place is ever lost.
"""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from nemo_gym.servers.http.client import RequestSettings, request, stream
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.http.gate import (
    AdmissionQueue,
    Gate,
    Gates,
    RoleGate,
    gates_of,
    origin,
    requested_pause,
    reset_header,
    seconds_until,
)
from nemo_gym.servers.http.request_errors import RequestFailedError
from nemo_gym.servers.http.retry import RetryPolicy

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
    assert requested_pause(status, CIMultiDict(headers), NOON) == pytest.approx(pause)


def test_what_remains_and_when_it_is_reset_belong_together() -> None:
    assert reset_header("X-RateLimit-Remaining-Tokens") == "x-ratelimit-reset-tokens"
    assert reset_header("anthropic-ratelimit-tokens-remaining") == "anthropic-ratelimit-tokens-reset"


@given(st.text(max_size=40) | st.from_regex(r"[0-9.]{1,20}(ms|s|m|h|d)?"))
def test_no_text_is_too_strange_or_closes_for_more_than_a_minute(text: str) -> None:
    headers = CIMultiDict({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": text})

    assert 0 <= requested_pause(200, headers, NOON) <= 60


@given(st.timedeltas(timedelta(0), timedelta(days=300)))
def test_dates_mean_the_time_until_then(wait: timedelta) -> None:
    assert seconds_until((NOON + wait).isoformat(), NOON) == pytest.approx(wait.total_seconds())


def admitted(turns: AdmissionQueue[str], now: float = 0.0) -> list[str]:
    """All who may go in now."""
    found = []
    while (waiter := turns.admit(now)) is not None:
        found.append(waiter)
    return found


def queued(turns: AdmissionQueue[str], *waiters: str) -> AdmissionQueue[str]:
    """Tickets wait; the letter is the role."""
    for waiter in waiters:
        turns.wait(waiter[0], waiter)
    return turns


# Turns: traces


def test_without_a_limit_everybody_goes_at_once() -> None:
    turns: AdmissionQueue[str] = AdmissionQueue()

    assert all(turns.enter(0.0) for _ in range(1000))
    assert turns.busy == 1000


def test_the_limit_holds_until_somebody_leaves() -> None:
    turns: AdmissionQueue[str] = AdmissionQueue(2)

    assert [turns.enter(0.0) for _ in range(3)] == [True, True, False]
    turns.leave()
    assert turns.enter(0.0)


def test_roles_take_turns_and_keep_their_own_order() -> None:
    turns = queued(AdmissionQueue(), "a1", "a2", "a3", "a4", "b1", "b2", "c1")

    assert admitted(turns) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_role_that_comes_late_waits_for_one_turn_and_not_for_a_queue() -> None:
    turns = queued(AdmissionQueue(1), *(f"a{number}" for number in range(100)))
    first = turns.admit(0.0)
    queued(turns, "b0")
    order = []
    for _ in range(3):
        turns.leave()
        order += admitted(turns)

    assert first == "a0"
    assert order == ["a1", "b0", "a2"]


def test_nobody_overtakes_those_who_wait() -> None:
    turns = queued(AdmissionQueue(1), "a1")

    assert not turns.enter(0.0)
    assert admitted(turns) == ["a1"]


def test_a_closed_gate_lets_nobody_in_before_its_time() -> None:
    turns = queued(AdmissionQueue(), "a1", "b1")
    turns.close(10.0)

    assert not turns.enter(9.9)
    assert admitted(turns, 9.9) == []
    assert admitted(turns, 10.0) == ["a1", "b1"]
    assert turns.closed_until is None
    assert turns.enter(10.0)


def test_the_longest_pause_counts() -> None:
    turns: AdmissionQueue[str] = AdmissionQueue()
    turns.close(10.0)
    turns.close(5.0)

    assert not turns.enter(7.0)
    turns.close(12.0)
    assert not turns.enter(11.0)
    assert turns.enter(12.0)


def test_a_gate_that_opens_still_has_its_limit() -> None:
    turns = queued(AdmissionQueue(2), "a1", "a2", "b1")
    turns.close(1.0)

    assert admitted(turns, 1.0) == ["a1", "b1"]


def test_who_waits_no_longer_is_forgotten() -> None:
    turns = queued(AdmissionQueue(), "a1", "a2", "b1")
    turns.forget("a", "a1")
    turns.forget("b", "b1")
    turns.forget("b", "b1")
    turns.forget("c", "never there")

    assert admitted(turns) == ["a2"]
    assert not turns.has_waiting


@pytest.mark.parametrize(("given", "limit"), [([None], None), ([None, 4, None], 4), ([8, 3, 5], 3)])
def test_the_lowest_limit_wins(given: list[int | None], limit: int | None) -> None:
    turns: AdmissionQueue[str] = AdmissionQueue()
    for one in given:
        turns.restrict(one)

    assert turns.limit == limit


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc")),
        st.tuples(st.just("leave"), st.just("")),
        st.tuples(st.just("close"), st.integers(0, 5).map(str)),
        st.tuples(st.just("pass"), st.integers(0, 5).map(str)),
    ),
    max_size=80,
)


@dataclass
class Trace:
    """Plays moves and looks at every step whether the rules hold."""

    limit: int | None
    now: float = 0.0
    closed_until: float = 0.0
    busy: int = 0
    asked: int = 0
    turns: AdmissionQueue[str] = field(init=False)
    waiting: list[str] = field(default_factory=list)
    # How many of other roles went in before a ticket that waits, and how many of its own were before it.
    overtaken: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = AdmissionQueue(self.limit)

    def play(self, move: str, what: str) -> None:
        if move == "ask":
            self.ask(what)
        elif move == "leave" and self.busy:
            self.queue.leave()
            self.busy -= 1
        elif move == "close":
            self.queue.close(self.now + int(what))
            self.closed_until = max(self.closed_until, self.now + int(what))
        elif move == "pass":
            self.now += int(what)
        for waiter in admitted(self.queue, self.now):
            self.admit(waiter)
        assert self.queue.busy == self.busy
        assert self.limit is None or self.busy <= self.limit
        if self.waiting:
            assert self.now < self.closed_until or self.busy == self.limit, "a place stays empty"

    def ask(self, role: str) -> None:
        self.asked += 1
        waiter = f"{role}{self.asked}"
        if self.queue.enter(self.now):
            assert not self.waiting
            self.busy += 1
            assert self.now >= self.closed_until
            return
        self.ahead[waiter] = sum(other[0] == role for other in self.waiting)
        self.overtaken[waiter] = 0
        self.queue.wait(role, waiter)
        self.waiting.append(waiter)

    def admit(self, waiter: str) -> None:
        assert self.now >= self.closed_until
        assert waiter == next(other for other in self.waiting if other[0] == waiter[0])
        assert self.overtaken[waiter] <= 2 * (1 + self.ahead[waiter]), "two other roles take one turn each"
        self.waiting.remove(waiter)
        self.busy += 1
        for other in self.waiting:
            self.overtaken[other] += other[0] != waiter[0]


@given(st.none() | st.integers(1, 3), MOVES)
def test_the_rules_hold_on_every_trace(limit: int | None, moves: list[tuple[str, str]]) -> None:
    trace = Trace(limit)
    for move, what in moves:
        trace.play(move, what)


# Gates: with tasks


@dataclass
class Noted:
    """As much of a reply as a gate looks at."""

    status: int = 200
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", CIMultiDict(self.said))


def role_gates(*roles: str, limit: int | None = None) -> list[RoleGate]:
    gates = Gates()
    return [gates.for_role("http://host/v1", role, limit=limit) for role in roles]


class Endpoint(ThreadingHTTPServer):
    """An endpoint that notes who called, and replies what the call asks for."""

    received: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Obliging(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        wanted = json.loads(self.headers["X-Reply"])
        self.send_response(wanted["status"])
        for name, value in {**wanted["headers"], "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), Obliging) as server:
        server.received = []
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture
async def calls(endpoint: Endpoint) -> AsyncIterator[Endpoint]:
    yield endpoint
    await close_http_client()


async def through(entrance: RoleGate, name: str, at: Endpoint, reply: Noted | None = None) -> None:
    """A request of the real client that has to pass the gate."""
    wanted = reply or Noted()
    headers = {"X-Reply": json.dumps({"status": wanted.status, "headers": dict(wanted.said)})}
    await request("POST", at.url, data=name, headers=headers, gate=entrance, retries=RetryPolicy(attempts=1))


async def test_two_roles_share_one_place_by_turns(calls: Endpoint) -> None:
    policy, judge = role_gates("policy", "judge", limit=1)
    many = [through(policy, "p", calls) for _ in range(4)]
    few = [through(judge, "j", calls) for _ in range(2)]

    await asyncio.gather(*many, *few)

    assert "".join(calls.received) == "ppjpjp"
    assert policy.gate is judge.gate
    assert policy.gate.queue.busy == 0


async def test_a_pause_holds_back_every_role_until_it_is_over(calls: Endpoint) -> None:
    policy, judge = role_gates("policy", "judge")
    started = time.monotonic()
    await through(judge, "j", calls, Noted(429, {"Retry-After": "0.05"}))

    assert not policy.is_free
    await asyncio.gather(through(policy, "p", calls), through(judge, "j", calls))
    assert time.monotonic() - started >= 0.05
    assert calls.received[0] == "j"
    assert sorted(calls.received[1:]) == ["j", "p"]  # both were let in at once
    assert policy.is_free


@pytest.mark.parametrize(
    ("said", "is_free"),
    [
        ({}, True),
        ({"Access-Control-Allow-Credentials": "0"}, True),
        ({"x-ratelimit-limit-requests": "0", "x-ratelimit-reset-requests": "1s"}, True),
        ({"X-RateLimit-Remaining-Requests": "10", "x-ratelimit-reset-requests": "1s"}, True),
        ({"X-RateLimit-Remaining-Requests": "0", "x-ratelimit-reset-requests": "1s"}, False),
        ({"ANTHROPIC-RATELIMIT-TOKENS-REMAINING": "0", "anthropic-ratelimit-tokens-reset": "1s"}, False),
    ],
)
async def test_only_a_reply_after_which_nothing_remains_closes_the_gate(said: dict[str, str], is_free: bool) -> None:
    (entrance,) = role_gates("policy")
    entrance.note_reply(Noted(200, said))
    assert entrance.is_free is is_free


async def test_a_pause_that_is_prolonged_while_others_wait(calls: Endpoint) -> None:
    (entrance,) = role_gates("policy")
    started = time.monotonic()
    await entrance.enter()
    entrance.note_reply(Noted(429, {"Retry-After": "0.4"}))  # long enough for a machine that stalls
    waiting = [asyncio.create_task(through(entrance, "p", calls)) for _ in range(3)]
    await asyncio.sleep(0)
    entrance.leave()
    entrance.note_reply(Noted(200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "500ms"}))
    await asyncio.gather(*waiting)

    assert time.monotonic() - started >= 0.5
    assert calls.received == ["p", "p", "p"]


async def test_the_next_in_line_heeds_the_answer_of_the_one_before(calls: Endpoint) -> None:
    (entrance,) = role_gates("policy", limit=1)
    first = asyncio.create_task(through(entrance, "first", calls, Noted(429, {"Retry-After": "30"})))
    second = asyncio.create_task(through(entrance, "second", calls))
    await first
    for _ in range(5):
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)

    assert calls.received == ["first"]
    assert entrance.gate.queue.busy == 0


async def test_who_is_cancelled_while_waiting_holds_nobody_up(calls: Endpoint) -> None:
    (entrance,) = role_gates("policy", limit=1)
    await entrance.enter()
    gone = [asyncio.create_task(through(entrance, "gone", calls)) for _ in range(3)]
    stays = asyncio.create_task(through(entrance, "stays", calls))
    await asyncio.sleep(0)
    entrance.leave()
    for task in gone:
        task.cancel()  # they know of it only after the next one was let in
    await stays
    await asyncio.gather(*gone, return_exceptions=True)

    assert calls.received == ["stays"]
    assert entrance.gate.queue.busy == 0


async def test_who_is_cancelled_the_moment_the_turn_comes_gives_the_place_back(calls: Endpoint) -> None:
    (entrance,) = role_gates("policy", limit=1)
    await entrance.enter()
    gone = asyncio.create_task(through(entrance, "gone", calls))
    stays = asyncio.create_task(through(entrance, "stays", calls))
    await asyncio.sleep(0)
    entrance.leave()
    await asyncio.sleep(0)
    gone.cancel()  # it was let in, and does not know yet
    await stays

    assert gone.cancelled()
    assert calls.received == ["stays"]
    assert entrance.gate.queue.busy == 0


def test_a_gate_outlives_the_loop_whose_tasks_waited_at_it(endpoint: Endpoint) -> None:
    (entrance,) = role_gates("policy")

    async def give_up() -> None:
        await through(entrance, "first", endpoint, Noted(503, {"Retry-After": "0.05"}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(through(entrance, "never", endpoint), 0.001)
        await close_http_client()

    async def go_on() -> None:
        await through(entrance, "second", endpoint)
        await close_http_client()

    asyncio.run(give_up())
    asyncio.run(go_on())

    assert endpoint.received == ["first", "second"]


async def test_pauses_are_counted_and_logged_without_a_flood(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate("https://host")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            gate.note_reply(Noted(429, {"Retry-After": "7"}))
        gate.note_reply(Noted(429))

    assert gate.pauses == 20
    assert caplog.messages == [
        "https://host asks for a pause of 7 s (pause 1)",
        "https://host asks for a pause of 7 s (pause 10)",
    ]


async def test_what_is_remembered_of_headers_is_their_names_and_not_what_they_say() -> None:
    gate = Gate("https://host")
    for number in range(200):  # more than are remembered
        gate.note_reply(Noted(200, {f"x-{number}": "0"}))
    for left in ("2", "1", "0"):
        gate.note_reply(Noted(200, {"x-ratelimit-remaining-tokens": left, "x-ratelimit-reset-tokens": "5s"}))
        assert gate.pauses == (left == "0")
    other = Gate("https://other")
    for left in ("1", "0"):
        other.note_reply(Noted(200, {"x-ratelimit-remaining-tokens": left, "x-ratelimit-reset-tokens": "5s"}))
        assert other.pauses == (left == "0")


# Which gate


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://host/v1", "http://host"),
        ("http://HOST:80/v2/", "http://host"),
        ("https://host:8443/v1", "https://host:8443"),
        ("https://name:secret@host/v1", "https://host"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("no url", "no url"),
        ("http://name:secret@host:port/v1", "host:port/v1"),
    ],
)
def test_an_endpoint_is_scheme_host_and_port(url: str, endpoint: str) -> None:
    assert origin(url) == endpoint


def test_roles_of_one_endpoint_share_a_gate_with_the_lowest_limit() -> None:
    gates = Gates()
    policy = gates.for_role("http://host/v1", "policy", limit=8)
    judge = gates.for_role("http://host:80/other", "judge", limit=3)
    other = gates.for_role("https://host/v1", "policy")

    assert policy.gate is judge.gate
    assert policy.gate.queue.limit == 3
    assert other.gate is not policy.gate
    assert other.gate.queue.limit is None


def test_a_server_without_a_gym_has_gates_of_its_own() -> None:
    assert gates_of(object()) is not gates_of(object())


@pytest.mark.parametrize("how", ["read", "streamed", "left early", "refused", "raised inside"])
async def test_a_place_is_given_back_once_however_a_request_ends(how: str, calls: Endpoint) -> None:
    (entrance,) = role_gates("policy", limit=1)
    headers = {"X-Reply": json.dumps({"status": 200, "headers": {}})}
    address = "http://127.0.0.1:1/" if how == "refused" else calls.url
    settings = RequestSettings(headers=headers, gate=entrance, retries=RetryPolicy(attempts=2, base_s=0.001))
    for _ in range(3):
        with contextlib.suppress(RequestFailedError, ZeroDivisionError):
            if how in ("read", "refused"):
                await request("POST", address, data="x", settings=settings)
                continue
            async with stream("POST", address, data="x", settings=settings) as reply:
                assert entrance.gate.queue.busy == 1
                if how == "streamed":
                    await reply.read()
                elif how == "raised inside":
                    raise ZeroDivisionError
        assert entrance.gate.queue.busy == 0


async def test_a_busy_endpoint_is_tried_again_with_a_new_place_each_time(calls: Endpoint) -> None:
    (entrance,) = role_gates("policy", limit=1)
    headers = {"X-Reply": json.dumps({"status": 503, "headers": {}})}
    policy = RetryPolicy(attempts=3, base_s=0.001, statuses=frozenset({503}))
    for open_it in (request, None):
        if open_it is not None:
            reply = await open_it("POST", calls.url, data="x", headers=headers, gate=entrance, retries=policy)
            assert reply.status == 503
        else:
            async with stream("POST", calls.url, data="x", headers=headers, gate=entrance, retries=policy) as streamed:
                assert streamed.status == 503
        assert entrance.gate.queue.busy == 0
    assert len(calls.received) == 6
