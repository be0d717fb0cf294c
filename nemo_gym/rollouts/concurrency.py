"""How many rollouts may run at once: a fixed number, or one found by measuring. Pure: time and outcomes are passed in.

Three facts are enough to find it. More rollouts at once give more throughput only up to a point; beyond that point they
only wait for each other, so latency rises instead; and an endpoint that says "too many" (429, timeouts) means it.

    climb    double the limit as long as throughput grows with it
    hold     stay, and now and then
    probe      try a little more, or a little less, and keep it only if throughput improves

By Little's law the point is where ``rate * latency of an idle endpoint`` rollouts are in flight; the climb ends there,
and no probe goes below it. A reply "too many" cuts the limit at once, and the limit that was too high is remembered.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Literal, NamedTuple, Protocol

from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome
from nemo_gym.schemas.rows import FailureClass


class Limit(Protocol):
    """Decides how many may run. It observes every outcome and is consulted before every start."""

    @property
    def adaptive(self) -> bool:
        """Whether it looks for the number."""
        ...

    def allowed(self, now: float) -> int:
        """How many may be in flight at this time."""
        ...

    def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None:
        """Learn from an outcome; ``in_flight`` is how many were running until it came."""
        ...

    def next_change(self, now: float) -> float | None:
        """When to look again although nothing has ended; None if only outcomes change the limit."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLimit:
    """The same number at all times."""

    number: int
    adaptive: ClassVar[bool] = False

    def allowed(self, now: float) -> int:  # noqa: ARG002 - the protocol's parameter
        return self.number

    def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None:
        """Nothing to do: the number is fixed."""

    def next_change(self, now: float) -> float | None:  # noqa: ARG002 - the protocol's parameter
        return None


FIRST: Final = 8
HEADROOM: Final = 1.15  # above what Little's law says, so that a request is always waiting
PROPORTION: Final = 0.4  # share of the limit's growth by which throughput must grow to justify it
NO_LOSS: Final = 0.97  # share of the throughput that a lower limit must keep
CUT: Final = 0.9
DEEP_CUT: Final = 0.7  # when the last cut did not help
FIRST_LIFT: Final = 1.25
FIRST_PATIENCE: Final = 2
LAST_PATIENCE: Final = 16
CALM: Final = 12  # times the pause, or the latency: how long to wait after trouble before probing again
LONGEST_PAUSE_S: Final = 60.0
TROUBLE: Final = frozenset({FailureClass.RATE_LIMITED, FailureClass.TIMEOUT})


def limit_for(parallel: int | Literal["auto"] | None, *, window: int) -> Limit:
    """A number is a fixed limit; None and 0 stand for the window; ``auto`` finds a limit within the window."""
    if parallel == "auto":
        return AdaptiveLimit(largest=window)
    return FixedLimit(parallel if parallel and parallel > 0 else window)


class Measurement(NamedTuple):
    """What was measured at one limit."""

    limit: int
    rate: float  # completed rollouts a second
    latency: float


class ThroughputMeter:
    """Measures at one limit. It first lets the change take effect, and counts only while the limit is fully used.

    Rollouts tend to end in bursts, so a measurement begins and ends between two bursts.
    """

    def __init__(self, limit: int, samples: int) -> None:
        self._limit = limit
        self._samples = samples
        self._skip = limit // 2  # these started under the previous limit
        self._since = self._last = float("-inf")
        self._clear()

    def add(self, seconds: float, in_flight: int, now: float) -> Measurement | None:
        """Count one completed rollout; returns a reading as soon as there is enough for one."""
        if self._skip > 0 or now == self._since:
            self._skip -= 1
            self._since = self._last = now
            return None
        reading = self._read() if self._count >= self._samples and now > self._last else None
        self._count += 1
        self._seconds += seconds
        # Near the end of a run, or behind a slow plan, fewer run than may. That says nothing about the limit.
        self._busy += in_flight >= 0.8 * self._limit
        self._last = now
        return reading

    def _read(self) -> Measurement | None:
        rate, latency = self._count / (self._last - self._since), self._seconds / self._count
        made_use = self._busy >= 0.8 * self._count
        self._since = self._last
        self._clear()
        return Measurement(self._limit, rate, latency) if made_use else None

    def _clear(self) -> None:
        self._count = self._busy = 0
        self._seconds = 0.0


class _Phase(Enum):
    CLIMB = "climb"
    HOLD = "hold"
    PROBE = "probe"


class AdaptiveLimit:
    """A limit that follows throughput."""

    adaptive: ClassVar[bool] = True

    def __init__(self, *, first: int = FIRST, largest: int) -> None:
        self._limit = min(first, largest)
        self._largest = largest
        self._ceiling: float = largest  # the limit at which there was trouble
        self._lift = FIRST_LIFT
        self._phase = _Phase.CLIMB
        self._before: Measurement | None = None  # what to compare the next reading with
        self._idle_latency: float | None = None
        self._patience = self._wait = FIRST_PATIENCE
        self._rate_to_keep = 0.0
        self._changed_at = float("-inf")
        self._paused_until = float("-inf")
        self._trouble_until = float("-inf")
        self._calm_until = float("-inf")
        self._meter = self._new_meter()

    # ---- what dispatch calls -----------------------------------------------------------------------------------------
    def allowed(self, now: float) -> int:
        """The limit, or nothing while an endpoint wants us to wait."""
        return 0 if now < self._paused_until else self._limit

    def next_change(self, now: float) -> float | None:
        """The end of the wait."""
        return self._paused_until if now < self._paused_until else None

    def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None:
        """Learn from an outcome. Failures that say nothing about load are ignored."""
        if isinstance(outcome, Completed):
            self.on_completed(outcome.seconds, in_flight=in_flight, now=now)
        elif isinstance(outcome, Failed) and outcome.failure.kind in TROUBLE:
            self.on_trouble(outcome.seconds, retry_after_s=outcome.failure.retry_after_s, now=now)

    def on_completed(self, seconds: float, *, in_flight: int, now: float) -> None:
        """Learn from a rollout that completed after ``seconds``, while ``in_flight`` were running."""
        reading = self._meter.add(seconds, in_flight, now)
        if reading is None:
            return
        self._note_latency(reading.latency)
        {_Phase.CLIMB: self._climb, _Phase.HOLD: self._hold, _Phase.PROBE: self._judge}[self._phase](reading, now)

    def on_trouble(self, seconds: float, *, retry_after_s: float | None, now: float) -> None:
        """An endpoint replied "too many". What started under an earlier limit says nothing about this one."""
        if now - seconds < self._changed_at:
            return
        pause = min(retry_after_s or 0.0, LONGEST_PAUSE_S)
        # Trouble soon after trouble: the last cut was not enough.
        again, unit = now < self._trouble_until, max(pause, self._idle_latency or seconds)
        self._paused_until = max(self._paused_until, now + pause)
        self._trouble_until, self._calm_until = now + pause + 10 * unit, now + CALM * unit
        target = self._limit * (DEEP_CUT if again else CUT)
        if self._idle_latency is None:  # before anything was measured it may just be a cold start
            self._change(target, now)
            return
        self._ceiling, self._lift = self._limit, FIRST_LIFT
        self._patience, self._rate_to_keep = FIRST_PATIENCE, 0.0
        self._settle(target, now)

    def _note_latency(self, latency: float) -> None:
        """Note a latency. Readings are noisy: one that is lower than all before it is half luck."""
        if self._idle_latency is None:
            self._idle_latency = latency
        elif latency < self._idle_latency:
            self._idle_latency = (self._idle_latency + latency) / 2

    # ---- what follows from a reading ---------------------------------------------------------------------------------
    def _climb(self, reading: Measurement, now: float) -> None:
        before, self._before = self._before, reading
        if before is not None and not _pays(before, reading):
            self._settle(max(before.limit, min(reading.limit, self._enough(max(before, reading, key=_rate)))), now)
        elif (target := self._higher(reading, step=2.0)) > reading.limit:
            self._change(target, now)
        else:
            self._settle(reading.limit, now)

    def _hold(self, reading: Measurement, now: float) -> None:
        self._wait -= 1
        enough = self._enough(reading)
        if (self._wait > 0 and reading.limit <= 2 * enough) or now < self._calm_until:
            return
        target = self._lower(reading) if reading.limit > enough else self._higher(reading)
        if target == reading.limit:
            self._lift_ceiling()
            self._settle(reading.limit, now)
            return
        self._phase, self._before = _Phase.PROBE, reading
        self._change(target, now)

    def _judge(self, reading: Measurement, now: float) -> None:
        before = self._before
        assert before is not None
        if reading.limit < before.limit:
            # Several steps down are compared with where they began; otherwise each could lose a little unnoticed.
            self._rate_to_keep = max(self._rate_to_keep, before.rate)
            pays = reading.rate >= NO_LOSS * self._rate_to_keep
        else:
            pays = _pays(before, reading)
        if not pays:
            if reading.limit < before.limit:  # nothing was waiting, so this is the latency of an idle endpoint
                self._idle_latency = max(self._idle_latency or 0.0, reading.latency)
            self._give_up_probing(before.limit, now)
            return
        self._patience = FIRST_PATIENCE
        if reading.limit > before.limit:
            self._phase, self._before = _Phase.CLIMB, reading
            self._change(self._higher(reading), now)
        else:
            self._settle(reading.limit, now)

    def _give_up_probing(self, limit: int, now: float) -> None:
        # A probe costs throughput. The more of them fail, the rarer they get.
        self._patience = min(2 * self._patience, LAST_PATIENCE)
        self._rate_to_keep = 0.0
        self._settle(limit, now)

    # ---- limits to go to ---------------------------------------------------------------------------------------------
    def _enough(self, reading: Measurement) -> float:
        """As many as an endpoint with this throughput can be busy with."""
        return reading.rate * (self._idle_latency or reading.latency) * HEADROOM

    def _lower(self, reading: Measurement) -> int:
        target = min(0.85 * reading.limit, max(0.5 * reading.limit, self._enough(reading)))
        return max(1, round(target))

    def _higher(self, reading: Measurement, step: float = 1.25) -> int:
        """A step up, but only half the way to where there was trouble."""
        target = max(step * reading.limit, reading.limit + 1)
        if self._ceiling < self._largest:
            target = min(target, (reading.limit + self._ceiling) / 2)
        return min(round(target), self._largest)

    def _lift_ceiling(self) -> None:
        """Raise the ceiling in growing steps: a limit that was too high before may be right now."""
        self._ceiling = min(self._ceiling * self._lift, self._largest)
        self._lift = min(self._lift**2, 4.0)

    def _settle(self, limit: float, now: float) -> None:
        self._phase, self._before, self._wait = _Phase.HOLD, None, self._patience
        self._change(limit, now)

    def _change(self, limit: float, now: float) -> None:
        self._limit = max(1, min(self._largest, round(limit)))
        self._changed_at = now
        self._meter = self._new_meter()

    def _new_meter(self) -> ThroughputMeter:
        # A climb is in a hurry, and its steps are so large that a rough reading will do.
        hurried = self._phase is _Phase.CLIMB
        return ThroughputMeter(self._limit, max(self._limit, 8) if hurried else max(2 * self._limit, 48))


def _rate(reading: Measurement) -> float:
    return reading.rate


def _pays(before: Measurement, after: Measurement) -> bool:
    """Whether throughput grew with the limit."""
    return after.rate / before.rate - 1 >= PROPORTION * (after.limit / before.limit - 1)
