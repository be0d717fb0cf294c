"""What an endpoint says about its rate limits: for how long nobody should ask it anything. Pure.

A busy endpoint (429, 503, 529) says so in ``Retry-After``. A good answer may say that it was the last one for now: a
header like ``x-ratelimit-remaining-tokens: 0`` or ``anthropic-ratelimit-requests-remaining: 0``, with the time of the
next one in the ``reset`` header of the same kind.

Answers are many and limits are rare, so headers are first looked at as they came.

The gate before an endpoint: how much all model servers of a Gym send there at once, and from when on.

Whoever sends goes through a door, one for each role (policy, judge, …). The gate lets in at most ``limit`` at a time;
those who wait are let in by turns, a role after the other, so that no role starves another. An endpoint that asks for
a pause (see ``rate_limits``) closes the gate for all roles. The gate is passed once an attempt: who waits for another
attempt holds no place.

``Turns`` decides and knows neither tasks nor clocks; ``Gate`` waits. An open gate without a limit need not be passed at
all. Of answers it looks at the names of the headers, and at the rest only where a name is of interest.
"""

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

from yarl import URL

from nemo_gym.servers.http.retry import retry_after_seconds

logger = logging.getLogger(__name__)


BUSY: Final = frozenset({429, 503, 529})
MAX_PAUSE_S: Final = 60.0
OPENAI: Final = "x-ratelimit-remaining"
ANTHROPIC: Final = "anthropic-ratelimit"
_PREFIXES: Final = (OPENAI.encode(), ANTHROPIC.encode())
# A number this large is a moment and not a duration, in seconds or in milliseconds since 1970.
_EPOCH_S: Final = 1e9
_EPOCH_MS: Final = 1e11
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,15})?")
_DURATION: Final = re.compile(r"(?:{0}d)?(?:{0}h)?(?:{0}m)?(?:{0}s)?(?:{0}ms)?".format(r"(\d{1,9}(?:\.\d{1,15})?)"))
_UNITS_S: Final = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)


def speaks_of_limits(names: Iterable[bytes]) -> bool:
    """Whether any of the headers of these names may say that nothing remains."""
    return any(name.lower().startswith(_PREFIXES) for name in names)


def is_exhausted(raw_headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a header says that nothing remains."""
    return any(value.strip() == b"0" and name.lower().startswith(_PREFIXES) for name, value in raw_headers)


def pause_asked_for(status: int, headers: Mapping[str, str], now: datetime) -> float:
    """Seconds for which nobody should ask, at most a minute; 0 if the answer says nothing of that kind.

    An endpoint that names a time in ``Retry-After`` knows best; ``reset`` is when a limit is whole again.
    """
    asked = retry_after_seconds(headers, now) if status in BUSY else None
    if asked is None:
        resets = [headers.get(reset_header(name)) for name, left in headers.items() if _is_used_up(name, left)]
        asked = max((seconds_until(reset, now) or 0.0 for reset in resets if reset), default=0.0)
    return min(max(asked, 0.0), MAX_PAUSE_S)


def reset_header(name: str) -> str:
    """The header that says when there is more of what another header counts."""
    return name.lower().replace("-remaining", "-reset", 1)


def seconds_until(text: str, now: datetime) -> float | None:
    """Read ``1s``, ``6m0s``, ``20ms``, ``1.5`` (seconds), seconds or milliseconds since 1970, or an RFC 3339 date."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return _from_now(float(text), now)
    if text and (duration := _DURATION.fullmatch(text)):
        return math.fsum(float(part) * unit for part, unit in zip(duration.groups("0"), _UNITS_S, strict=True))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()


def _from_now(number: float, now: datetime) -> float:
    if number < _EPOCH_S:
        return number
    return (number / 1000 if number >= _EPOCH_MS else number) - now.timestamp()


def _is_used_up(name: str, left: str) -> bool:
    name = name.lower()
    counts = name.startswith(OPENAI) or (name.startswith(ANTHROPIC) and name.endswith("-remaining"))
    return counts and left.strip() == "0"


Waiter = TypeVar("Waiter", bound=Hashable)

NAME: Final = itemgetter(0)
REMEMBERED: Final = 64


class EndpointAnswer(Protocol):
    """What a gate looks at."""

    @property
    def status(self) -> int:
        """The status."""

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers as they came."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers decoded; names in any case."""


class Turns(Generic[Waiter]):
    """Who may go when. Pure: times are passed in, and those who wait are tickets of any kind."""

    __slots__ = ("_waiting", "busy", "closed_until", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.busy = 0
        self.closed_until: float | None = None
        # The role whose turn it is comes first; roles without tickets are not in it.
        self._waiting: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()

    @property
    def has_waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def restrict(self, limit: int | None) -> None:
        """Take over a limit, unless there is a lower one."""
        if limit is not None:
            self.limit = limit if self.limit is None else min(limit, self.limit)

    def enter(self, now: float) -> bool:
        """Go in at once, if nobody was there before."""
        if self._waiting or not self._has_room(now):
            return False
        self.busy += 1
        return True

    def wait(self, role: str, waiter: Waiter) -> None:
        """Wait behind the others of the role."""
        self._waiting.setdefault(role, OrderedDict())[waiter] = None

    def forget(self, role: str, waiter: Waiter) -> None:
        """Wait no longer; nothing if the ticket's turn has come already."""
        waiters = self._waiting.get(role)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[role]

    def admit(self, now: float) -> Waiter | None:
        """Let the next one in, if there is one and the time has come."""
        if not self._waiting or not self._has_room(now):
            return None
        role, waiters = next(iter(self._waiting.items()))
        waiter, _ = waiters.popitem(last=False)
        if waiters:
            self._waiting.move_to_end(role)
        else:
            del self._waiting[role]
        self.busy += 1
        return waiter

    def leave(self) -> None:
        """Give a place back."""
        self.busy -= 1

    def close(self, until: float) -> None:
        """Let nobody in before this time, or before a later one that was said earlier."""
        self.closed_until = until if self.closed_until is None else max(until, self.closed_until)

    def _has_room(self, now: float) -> bool:
        if self.closed_until is not None:
            if now < self.closed_until:
                return False
            self.closed_until = None
        return self.limit is None or self.busy < self.limit


class Gate:
    """One endpoint's gate; all who wait at it share an event loop."""

    def __init__(self, endpoint: str) -> None:
        self.turns: Turns[asyncio.Future[None]] = Turns()
        self.pauses = 0
        self._endpoint = endpoint
        # An endpoint sends the same headers again and again: whether they speak of limits, by their names.
        self._speaks: dict[tuple[bytes, ...], bool] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Go in at once if possible; otherwise ``wait``."""
        return self.turns.enter(time.monotonic())

    async def wait(self, role: str) -> None:
        """Go in when it is our turn."""
        waiter = asyncio.get_running_loop().create_future()
        self.turns.wait(role, waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # its turn came at the same moment
                self.leave()
            self.turns.forget(role, waiter)
            self._set_timer()
            raise

    def leave(self) -> None:
        """Come out again."""
        self.turns.leave()
        if self.turns.has_waiting:
            # Not now: the answer that was brought along may ask for a pause.
            asyncio.get_running_loop().call_soon(self._admit)

    def note_answer(self, answer: EndpointAnswer) -> None:
        """Close the gate if the answer asks for it."""
        if answer.status not in BUSY and not self._is_exhausted(answer.raw_headers):
            return
        seconds = pause_asked_for(answer.status, answer.headers, datetime.now(UTC))
        if seconds > 0:
            self.turns.close(time.monotonic() + seconds)
            self._count_pause(seconds)

    def _is_exhausted(self, raw_headers: tuple[tuple[bytes, bytes], ...]) -> bool:
        names = tuple(map(NAME, raw_headers))
        speaks = self._speaks.get(names)
        if speaks is None:
            speaks = speaks_of_limits(names)
            if len(self._speaks) < REMEMBERED:
                self._speaks[names] = speaks
        return speaks and is_exhausted(raw_headers)

    def _admit(self) -> None:
        now = time.monotonic()
        while (waiter := self.turns.admit(now)) is not None:
            if waiter.cancelled():
                self.turns.leave()
            else:
                waiter.set_result(None)
        self._set_timer()

    def _set_timer(self) -> None:
        """Wake up when the gate opens, if anybody waits for that."""
        until = self.turns.closed_until if self.turns.has_waiting else None
        if until is None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif until is not None and self._timer is None:
            seconds = max(0.0, until - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self._admit()

    def _count_pause(self, seconds: float) -> None:
        self.pauses += 1
        if self.pauses == 10 ** (len(str(self.pauses)) - 1):
            logger.warning("%s: pause %d for all requests, %.3g s, as it asks", self._endpoint, self.pauses, seconds)


class Door:
    """The way of one role through a gate."""

    __slots__ = ("_turns", "gate", "leave", "note_answer", "role")

    def __init__(self, gate: Gate, role: str) -> None:
        self.gate = gate
        self.role = role
        self._turns = gate.turns
        self.leave: Final = gate.leave
        # To be called right after leaving, before anything else can happen.
        self.note_answer: Final = gate.note_answer

    @property
    def is_free(self) -> bool:
        """Whether there is nothing to observe: anybody may go in uncounted, and need not leave."""
        return self._turns.limit is None and self._turns.closed_until is None

    async def enter(self) -> None:
        """Go in, when it is our turn."""
        if not self.gate.enter():
            await self.gate.wait(self.role)


class Gates:
    """The gates of a Gym: one for each endpoint, made when it is first asked for."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def door(self, base_url: str, role: str, *, limit: int | None = None) -> Door:
        """A role's door to the endpoint of a URL; of all limits that are given for an endpoint the lowest counts."""
        endpoint = origin(base_url)
        gate = self._gates.setdefault(endpoint, Gate(endpoint))
        gate.turns.restrict(limit)
        return Door(gate, role)


def origin(base_url: str) -> str:
    """What URLs of an endpoint have in common: scheme, host and port. No login, so it can be shown."""
    try:
        url = URL(base_url)
        # Older releases of yarl leave capitals and the usual port as they are.
        return str(url.with_port(None).origin() if url.is_default_port() else url.origin()).lower()
    except ValueError:
        return base_url.rpartition("@")[2]  # nothing can be sent there; whoever tries will say so


def gates_of(client: object) -> Gates:
    """The gates that a server's client brings along; a server without a Gym has its own."""
    gates = getattr(client, "gates", None)
    return gates if isinstance(gates, Gates) else Gates()
