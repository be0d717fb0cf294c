"""The gate before an endpoint: who goes when, and that no place is ever lost."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from nemo_gym.servers.gate import Door, Gate, Gates, Turns, gates_of, origin


def admitted(turns: Turns[str], now: float = 0.0) -> list[str]:
    """All who may go in now."""
    found = []
    while (ticket := turns.admit(now)) is not None:
        found.append(ticket)
    return found


def queued(turns: Turns[str], *tickets: str) -> Turns[str]:
    """Tickets wait; the letter is the role."""
    for ticket in tickets:
        turns.wait(ticket[0], ticket)
    return turns


# Turns: traces


def test_without_a_limit_everybody_goes_at_once() -> None:
    turns: Turns[str] = Turns()

    assert all(turns.enter(0.0) for _ in range(1000))
    assert turns.busy == 1000


def test_the_limit_holds_until_somebody_leaves() -> None:
    turns: Turns[str] = Turns(2)

    assert [turns.enter(0.0) for _ in range(3)] == [True, True, False]
    turns.leave()
    assert turns.enter(0.0)


def test_roles_take_turns_and_keep_their_own_order() -> None:
    turns = queued(Turns(), "a1", "a2", "a3", "a4", "b1", "b2", "c1")

    assert admitted(turns) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_role_that_comes_late_waits_for_one_turn_and_not_for_a_queue() -> None:
    turns = queued(Turns(1), *(f"a{number}" for number in range(100)))
    first = turns.admit(0.0)
    queued(turns, "b0")
    order = []
    for _ in range(3):
        turns.leave()
        order += admitted(turns)

    assert first == "a0"
    assert order == ["a1", "b0", "a2"]


def test_nobody_overtakes_those_who_wait() -> None:
    turns = queued(Turns(1), "a1")

    assert not turns.enter(0.0)
    assert admitted(turns) == ["a1"]


def test_a_closed_gate_lets_nobody_in_before_its_time() -> None:
    turns = queued(Turns(), "a1", "b1")
    turns.close(10.0)

    assert not turns.enter(9.9)
    assert admitted(turns, 9.9) == []
    assert admitted(turns, 10.0) == ["a1", "b1"]
    assert turns.closed_until is None
    assert turns.enter(10.0)


def test_the_longest_pause_counts() -> None:
    turns: Turns[str] = Turns()
    turns.close(10.0)
    turns.close(5.0)

    assert not turns.enter(7.0)
    turns.close(12.0)
    assert not turns.enter(11.0)
    assert turns.enter(12.0)


def test_a_gate_that_opens_still_has_its_limit() -> None:
    turns = queued(Turns(2), "a1", "a2", "b1")
    turns.close(1.0)

    assert admitted(turns, 1.0) == ["a1", "b1"]


def test_who_waits_no_longer_is_forgotten() -> None:
    turns = queued(Turns(), "a1", "a2", "b1")
    turns.forget("a", "a1")
    turns.forget("b", "b1")
    turns.forget("b", "b1")
    turns.forget("c", "never there")

    assert admitted(turns) == ["a2"]
    assert not turns.has_waiting


@pytest.mark.parametrize(("given", "limit"), [([None], None), ([None, 4, None], 4), ([8, 3, 5], 3)])
def test_the_lowest_limit_wins(given: list[int | None], limit: int | None) -> None:
    turns: Turns[str] = Turns()
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
    turns: Turns[str] = field(init=False)
    waiting: list[str] = field(default_factory=list)
    # How many of other roles went in before a ticket that waits, and how many of its own were before it.
    overtaken: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = Turns(self.limit)

    def play(self, move: str, what: str) -> None:
        if move == "ask":
            self.ask(what)
        elif move == "leave" and self.busy:
            self.turns.leave()
            self.busy -= 1
        elif move == "close":
            self.turns.close(self.now + int(what))
            self.closed_until = max(self.closed_until, self.now + int(what))
        elif move == "pass":
            self.now += int(what)
        for ticket in admitted(self.turns, self.now):
            self.admit(ticket)
        assert self.turns.busy == self.busy
        assert self.limit is None or self.busy <= self.limit
        if self.waiting:
            assert self.now < self.closed_until or self.busy == self.limit, "a place stays empty"

    def ask(self, role: str) -> None:
        self.asked += 1
        ticket = f"{role}{self.asked}"
        if self.turns.enter(self.now):
            assert not self.waiting
            self.busy += 1
            assert self.now >= self.closed_until
            return
        self.ahead[ticket] = sum(other[0] == role for other in self.waiting)
        self.overtaken[ticket] = 0
        self.turns.wait(role, ticket)
        self.waiting.append(ticket)

    def admit(self, ticket: str) -> None:
        assert self.now >= self.closed_until
        assert ticket == next(other for other in self.waiting if other[0] == ticket[0])
        assert self.overtaken[ticket] <= 2 * (1 + self.ahead[ticket]), "two other roles take one turn each"
        self.waiting.remove(ticket)
        self.busy += 1
        for other in self.waiting:
            self.overtaken[other] += other[0] != ticket[0]


@given(st.none() | st.integers(1, 3), MOVES)
def test_the_rules_hold_on_every_trace(limit: int | None, moves: list[tuple[str, str]]) -> None:
    trace = Trace(limit)
    for move, what in moves:
        trace.play(move, what)


# Gates: with tasks


@dataclass
class Answer:
    """As much of an answer as a gate looks at."""

    status: int = 200
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", CIMultiDict(self.said))

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return tuple((name.encode(), value.encode()) for name, value in self.said.items())


def doors(*roles: str, limit: int | None = None) -> list[Door]:
    gates = Gates()
    return [gates.door("http://host/v1", role, limit=limit) for role in roles]


async def through(door: Door, name: str, log: list[str], answer: Answer | None = None) -> None:
    """Go in, stay for a moment, come out."""
    await door.enter()
    try:
        log.append(name)
        await asyncio.sleep(0.001)
    finally:
        door.leave()
    door.heed(answer or Answer())


async def test_two_roles_share_one_place_by_turns() -> None:
    policy, judge = doors("policy", "judge", limit=1)
    log: list[str] = []
    many = [through(policy, "p", log) for _ in range(4)]
    few = [through(judge, "j", log) for _ in range(2)]

    await asyncio.gather(*many, *few)

    assert "".join(log) == "ppjpjp"
    assert policy.gate is judge.gate
    assert policy.gate.turns.busy == 0


async def test_a_pause_holds_back_every_role_until_it_is_over() -> None:
    policy, judge = doors("policy", "judge")
    log: list[str] = []
    started = time.monotonic()
    await through(judge, "j", log, Answer(429, {"Retry-After": "0.05"}))

    assert not policy.is_free
    await asyncio.gather(through(policy, "p", log), through(judge, "j", log))
    assert time.monotonic() - started >= 0.05
    assert log == ["j", "p", "j"]
    assert policy.is_free


async def test_a_pause_that_is_prolonged_while_others_wait() -> None:
    (door,) = doors("policy")
    log: list[str] = []
    started = time.monotonic()
    await door.enter()
    door.heed(Answer(429, {"Retry-After": "0.02"}))
    waiting = [asyncio.create_task(through(door, "p", log)) for _ in range(3)]
    await asyncio.sleep(0)
    door.leave()
    door.heed(Answer(200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}))
    await asyncio.gather(*waiting)

    assert time.monotonic() - started >= 0.12
    assert log == ["p", "p", "p"]


async def test_the_next_in_line_heeds_the_answer_of_the_one_before() -> None:
    (door,) = doors("policy", limit=1)
    log: list[str] = []
    first = asyncio.create_task(through(door, "first", log, Answer(429, {"Retry-After": "30"})))
    second = asyncio.create_task(through(door, "second", log))
    await first
    for _ in range(5):
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)

    assert log == ["first"]
    assert door.gate.turns.busy == 0


async def test_who_is_cancelled_while_waiting_holds_nobody_up() -> None:
    (door,) = doors("policy", limit=1)
    log: list[str] = []
    await door.enter()
    gone = [asyncio.create_task(through(door, "gone", log)) for _ in range(3)]
    stays = asyncio.create_task(through(door, "stays", log))
    await asyncio.sleep(0)
    door.leave()
    for task in gone:
        task.cancel()  # they know of it only after the next one was let in
    await stays
    await asyncio.gather(*gone, return_exceptions=True)

    assert log == ["stays"]
    assert door.gate.turns.busy == 0


async def test_who_is_cancelled_the_moment_the_turn_comes_gives_the_place_back() -> None:
    (door,) = doors("policy", limit=1)
    log: list[str] = []
    await door.enter()
    gone = asyncio.create_task(through(door, "gone", log))
    stays = asyncio.create_task(through(door, "stays", log))
    await asyncio.sleep(0)
    door.leave()
    await asyncio.sleep(0)
    gone.cancel()  # it was let in, and does not know yet
    await stays

    assert gone.cancelled()
    assert log == ["stays"]
    assert door.gate.turns.busy == 0


def test_a_gate_outlives_the_loop_whose_tasks_waited_at_it() -> None:
    (door,) = doors("policy")
    log: list[str] = []

    async def give_up() -> None:
        await through(door, "first", log, Answer(503, {"Retry-After": "0.05"}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(through(door, "never", log), 0.001)

    asyncio.run(give_up())
    asyncio.run(through(door, "second", log))

    assert log == ["first", "second"]


async def test_pauses_are_counted_and_logged_without_a_flood(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate("https://host")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            gate.heed(Answer(429, {"Retry-After": "7"}))
        gate.heed(Answer(429))

    assert gate.pauses == 20
    assert caplog.messages == [
        "https://host: pause 1 for all requests, 7 s, as it asks",
        "https://host: pause 10 for all requests, 7 s, as it asks",
    ]


async def test_what_is_remembered_of_headers_is_their_names_and_not_what_they_say() -> None:
    gate = Gate("https://host")
    for number in range(200):  # more than are remembered
        gate.heed(Answer(200, {f"x-{number}": "0"}))
    for left in ("2", "1", "0"):
        gate.heed(Answer(200, {"x-ratelimit-remaining-tokens": left, "x-ratelimit-reset-tokens": "5s"}))
        assert gate.pauses == (left == "0")
    other = Gate("https://other")
    for left in ("1", "0"):
        other.heed(Answer(200, {"x-ratelimit-remaining-tokens": left, "x-ratelimit-reset-tokens": "5s"}))
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
    policy = gates.door("http://host/v1", "policy", limit=8)
    judge = gates.door("http://host:80/other", "judge", limit=3)
    other = gates.door("https://host/v1", "policy")

    assert policy.gate is judge.gate
    assert policy.gate.turns.limit == 3
    assert other.gate is not policy.gate
    assert other.gate.turns.limit is None


def test_a_server_without_a_gym_has_gates_of_its_own() -> None:
    assert gates_of(object()) is not gates_of(object())
