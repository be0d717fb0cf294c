"""The controller on traces, and in the loop with simulated endpoints."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from nemo_gym.rollouts.concurrency import AdaptiveLimit, FixedLimit, limit_for
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout
from nemo_gym.schemas.rows import RolloutKey

ANY = PlannedRollout(RolloutKey(0, 0), "a", {}, 1, 99)
Latency = Callable[[random.Random], float]
Finish = Callable[[float, bool], None]  # (when, whether it worked)


# ---- endpoints -------------------------------------------------------------------------------------------------------
class Endpoint(Protocol):
    def arrive(self, now: float, chance: random.Random, finish: Finish) -> None: ...

    def leave(self, now: float, chance: random.Random) -> None: ...


@dataclass
class Slots:
    """Serves so many at once; the others queue."""

    slots: int
    latency: Latency
    busy: int = 0
    queue: list[Finish] = field(default_factory=list)

    def arrive(self, now: float, chance: random.Random, finish: Finish) -> None:
        if self.busy < self.slots:
            self.busy += 1
            finish(now + self.latency(chance), True)
        else:
            self.queue.append(finish)

    def leave(self, now: float, chance: random.Random) -> None:
        if self.queue:
            self.queue.pop(0)(now + self.latency(chance), True)
        else:
            self.busy -= 1


@dataclass
class Knee:
    """Beyond so many in flight everybody takes longer."""

    knee: int
    latency: Latency
    present: int = 0

    def arrive(self, now: float, chance: random.Random, finish: Finish) -> None:
        self.present += 1
        finish(now + self.latency(chance) * max(1.0, self.present / self.knee), True)

    def leave(self, now: float, chance: random.Random) -> None:
        self.present -= 1


@dataclass
class RateLimited:
    """Answers 429 with Retry-After: 1 above so many a second."""

    per_second: float
    latency: Latency
    tokens: float = 0.0
    filled_at: float = 0.0

    def arrive(self, now: float, chance: random.Random, finish: Finish) -> None:
        self.tokens = min(self.per_second, self.tokens + (now - self.filled_at) * self.per_second)
        self.filled_at = now
        if self.tokens < 1:
            finish(now + 0.002, False)
        else:
            self.tokens -= 1
            finish(now + self.latency(chance), True)

    def leave(self, now: float, chance: random.Random) -> None: ...


# ---- the loop --------------------------------------------------------------------------------------------------------
class Simulation:
    """As many rollouts in flight as the limit allows, until the work is done."""

    def __init__(self, limit: FixedLimit | AdaptiveLimit, endpoint: Endpoint, work: int) -> None:
        self.limit, self.endpoint, self.work = limit, endpoint, work
        self.chance = random.Random(1)
        self.now = 0.0
        self.in_flight = 0
        self.order = 0
        self.events: list[tuple[float, int, float, bool]] = []
        self.put_off: list[float] = []
        self.completed: list[float] = []

    def run(self) -> float:
        """Completed rollouts a second, in the second half of the work."""
        self._admit()
        while self.events or self.put_off:
            moments = [self.events[0][0]] if self.events else []
            if self.put_off and self.in_flight < self.limit.allowed(self.now):
                moments.append(self.put_off[0])
            if (change := self.limit.next_change(self.now)) is not None:
                moments.append(change)
            self.now = max(self.now, min(moments))
            self._end_all(self.in_flight)
            self._admit()
        half = len(self.completed) // 2
        return half / (self.completed[-1] - self.completed[-half - 1])

    def _admit(self) -> None:
        while self.in_flight < self.limit.allowed(self.now):
            if self.put_off and self.put_off[0] <= self.now:
                heapq.heappop(self.put_off)
            elif self.work:
                self.work -= 1
            else:
                return
            self.in_flight += 1
            self._start(self.now)

    def _start(self, started: float) -> None:
        def finish(when: float, worked: bool) -> None:
            self.order += 1
            heapq.heappush(self.events, (when, self.order, started, worked))

        self.endpoint.arrive(started, self.chance, finish)

    def _end_all(self, level: int) -> None:
        while self.events and self.events[0][0] <= self.now:
            _, _, started, worked = heapq.heappop(self.events)
            self.in_flight -= 1
            self.endpoint.leave(self.now, self.chance)
            self.limit.observe(_outcome(self.now - started, worked), in_flight=level, now=self.now)
            if worked:
                self.completed.append(self.now)
            else:
                heapq.heappush(self.put_off, self.now + self.chance.uniform(1.0, 1.5))


def _outcome(seconds: float, worked: bool) -> Outcome:
    if worked:
        return Completed(ANY, b"", seconds, 1.0)
    return Failed(ANY, b"", seconds, Failure(kind="rate_limited", message="", transient=True, retry_after_s=1.0))


def always(seconds: float) -> Latency:
    return lambda chance: seconds


def spread(seconds: float) -> Latency:
    return lambda chance: seconds * chance.lognormvariate(0, 0.5)


CASES: dict[str, tuple[Callable[[], Endpoint], int, int]] = {  # endpoint, best fixed limit, work
    "16 slots": (lambda: Slots(16, always(0.05)), 16, 3000),
    "100 slots, spread latency": (lambda: Slots(100, spread(0.2)), 110, 8000),
    "2 slots, slow": (lambda: Slots(2, always(2.0)), 2, 300),
    "a knee at 32": (lambda: Knee(32, always(0.05)), 32, 5000),
    "a knee at 100, spread latency": (lambda: Knee(100, spread(0.1)), 100, 8000),
    "200 a second": (lambda: RateLimited(200, always(0.05)), 10, 8000),
    "50 a second, spread latency": (lambda: RateLimited(50, spread(0.5)), 27, 5000),
}


@pytest.mark.parametrize("name", CASES)
def test_it_settles_within_15_percent_of_the_best_fixed_limit(name: str) -> None:
    endpoint, best, work = CASES[name]
    fixed = max(
        Simulation(FixedLimit(n), endpoint(), work // 2).run() for n in (best - best // 10, best, best + best // 10)
    )
    found = Simulation(AdaptiveLimit(largest=1024), endpoint(), work).run()
    assert found >= 0.85 * fixed


# ---- traces ----------------------------------------------------------------------------------------------------------
def feed(limit: AdaptiveLimit, *, rate: float, count: int, start: float, latency: float = 0.1) -> float:
    """So many rollouts complete at an even pace; returns the time at the end."""
    now = start
    for _ in range(count):
        now += 1 / rate
        limit.on_completed(latency, in_flight=limit.allowed(now), now=now)
    return now


def test_it_grows_while_throughput_grows() -> None:
    limit, now = AdaptiveLimit(largest=1024), 0.0
    for _ in range(4):
        before = limit.allowed(now)
        now = feed(limit, rate=before * 10, count=2 * before, start=now)
        assert limit.allowed(now) == 2 * before


def test_it_stops_growing_when_throughput_does() -> None:
    limit = AdaptiveLimit(largest=1024)
    now = feed(limit, rate=100, count=5000, start=0.0)
    assert limit.allowed(now) < 40


def test_it_never_exceeds_its_largest() -> None:
    limit, now = AdaptiveLimit(largest=20), 0.0
    for _ in range(20):
        now = feed(limit, rate=limit.allowed(now) * 10, count=200, start=now)
        assert 1 <= limit.allowed(now) <= 20


def test_it_does_not_learn_from_a_run_that_has_nothing_left_to_start() -> None:
    limit, now = AdaptiveLimit(largest=1024), 0.0
    for _ in range(200):
        now += 0.1
        limit.on_completed(0.1, in_flight=1, now=now)
    assert limit.allowed(now) == 8


def test_too_many_means_fewer_and_a_pause_as_long_as_asked_for() -> None:
    limit = AdaptiveLimit(first=100, largest=1024)
    limit.on_trouble(0.1, retry_after_s=2.0, now=10.0)
    assert limit.allowed(10.0) == limit.allowed(11.9) == 0
    assert limit.next_change(10.0) == 12.0
    assert limit.allowed(12.0) == 90
    assert limit.next_change(12.0) is None


def test_a_storm_counts_once_and_the_next_one_cuts_deeper() -> None:
    limit = AdaptiveLimit(first=100, largest=1024)
    for n in range(50):
        limit.on_trouble(0.1, retry_after_s=None, now=10.0 + n / 1000)
    assert limit.allowed(10.1) == 90, "the others were started before the cut"
    limit.on_trouble(0.1, retry_after_s=None, now=10.5)
    assert limit.allowed(10.5) == 63


def test_no_pause_is_endless() -> None:
    limit = AdaptiveLimit(largest=1024)
    limit.on_trouble(0.1, retry_after_s=1e9, now=0.0)
    assert limit.allowed(60.0) > 0


def test_failures_that_say_nothing_about_load_change_nothing() -> None:
    limit = AdaptiveLimit(largest=1024)
    for kind in ("agent_error", "verifier_error", "legitimate"):
        limit.observe(Failed(ANY, b"", 0.1, Failure(kind=kind, message="")), in_flight=8, now=1.0)
    assert limit.allowed(1.0) == 8


@pytest.mark.parametrize(("setting", "number"), [(5, 5), (0, 77), (None, 77), (-3, 77)])
def test_a_number_is_a_fixed_limit_and_nothing_means_the_window(setting: int | None, number: int) -> None:
    assert limit_for(setting, window=77) == FixedLimit(number)


def test_auto_finds_its_own_limit_within_the_window() -> None:
    limit = limit_for("auto", window=4)
    assert isinstance(limit, AdaptiveLimit)
    assert limit.allowed(0.0) == 4
