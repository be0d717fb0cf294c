"""The gate before an endpoint: limits how many requests all model servers of a Gym send at once, and pauses them.

Every request enters in a role (policy, judge, …). The gate admits at most ``limit`` requests at a time. Waiting
requests are admitted in turn, one role after the other, so that no role starves another. The gate is entered once per
attempt: a request that waits before its next attempt holds no place.

An endpoint that asks for a pause closes the gate for all roles. A busy endpoint (429, 503, 529) does so in
``Retry-After``. A successful reply may say that it was the last one for now, with a header like
``x-ratelimit-remaining-tokens: 0`` or ``anthropic-ratelimit-requests-remaining: 0`` and the time of the next one in the
matching ``reset`` header.

``AdmissionQueue`` decides, without tasks or clocks; ``Gate`` waits. An open gate without a limit is not entered at all.
"""

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import Final, Generic, Protocol, TypeVar

from yarl import URL

from nemo_gym.servers.http.retry import retry_after_seconds

logger = logging.getLogger(__name__)


BUSY: Final = frozenset({429, 503, 529})
MAX_PAUSE_S: Final = 60.0
OPENAI: Final = "x-ratelimit-remaining"
ANTHROPIC: Final = "anthropic-ratelimit"
# A number this large is a point in time and not a duration, in seconds or in milliseconds since 1970.
_EPOCH_S: Final = 1e9
_EPOCH_MS: Final = 1e11
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,15})?")
_DURATION: Final = re.compile(r"(?:{0}d)?(?:{0}h)?(?:{0}m)?(?:{0}s)?(?:{0}ms)?".format(r"(\d{1,9}(?:\.\d{1,15})?)"))
_UNITS_S: Final = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)


def requested_pause(status: int, headers: Mapping[str, str], now: datetime) -> float:
    """The pause that a reply asks for, in seconds and at most a minute; 0 if it asks for none.

    ``Retry-After`` takes precedence, because ``reset`` is only the time at which the limit is fully restored.
    """
    pause = retry_after_seconds(headers, now) if status in BUSY else None
    if pause is None:
        resets = [headers.get(reset_header(name)) for name, left in headers.items() if _is_used_up(name, left)]
        pause = max((seconds_until(reset, now) or 0.0 for reset in resets if reset), default=0.0)
    return min(max(pause, 0.0), MAX_PAUSE_S)


def reset_header(name: str) -> str:
    """The name of the ``reset`` header that belongs to a ``remaining`` header."""
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
    return counts and left == "0"


Waiter = TypeVar("Waiter", bound=Hashable)


class EndpointReply(Protocol):
    """The parts of a reply that a gate looks at."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The decoded headers, with case-insensitive names."""


class AdmissionQueue(Generic[Waiter]):
    """Decides who may enter and when. Pure: times are passed in, and waiters are any hashable objects."""

    __slots__ = ("_waiting", "busy", "closed_until", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.busy = 0
        self.closed_until: float | None = None
        # The role whose turn is next comes first; roles without waiters are not listed.
        self._waiting: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def restrict(self, limit: int | None) -> None:
        """Apply a limit, unless a lower one is set."""
        if limit is not None:
            self.limit = limit if self.limit is None else min(limit, self.limit)

    def enter(self, now: float) -> bool:
        """Enter at once if there is room and nobody is waiting."""
        if self._waiting or not self._has_room(now):
            return False
        self.busy += 1
        return True

    def wait(self, role: str, waiter: Waiter) -> None:
        """Add a waiter behind the others of its role."""
        self._waiting.setdefault(role, OrderedDict())[waiter] = None

    def forget(self, role: str, waiter: Waiter) -> None:
        """Remove a waiter; does nothing if it has already been admitted."""
        waiters = self._waiting.get(role)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[role]

    def admit(self, now: float) -> Waiter | None:
        """Admit the next waiter, if there is one and there is room."""
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
        """Give up a place."""
        self.busy -= 1

    def close(self, until: float) -> None:
        """Admit no request before this time, or before a later time set earlier."""
        self.closed_until = until if self.closed_until is None else max(until, self.closed_until)

    def _has_room(self, now: float) -> bool:
        if self.closed_until is not None:
            if now < self.closed_until:
                return False
            self.closed_until = None
        return self.limit is None or self.busy < self.limit


class Gate:
    """The gate of one endpoint. All its waiters must share an event loop."""

    def __init__(self, endpoint: str) -> None:
        self.queue: AdmissionQueue[asyncio.Future[None]] = AdmissionQueue()
        self.pauses = 0
        self._endpoint = endpoint
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Enter at once if possible; if this returns False, ``wait``."""
        return self.queue.enter(time.monotonic())

    async def wait(self, role: str) -> None:
        """Enter when it is our turn."""
        waiter = asyncio.get_running_loop().create_future()
        self.queue.wait(role, waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was admitted at the same moment
                self.leave()
            self.queue.forget(role, waiter)
            self._set_timer()
            raise

    def leave(self) -> None:
        """Give up the place, and admit others."""
        self.queue.leave()
        if self.queue.has_waiting:
            # Not immediately, because the reply has not been examined yet and may ask for a pause.
            asyncio.get_running_loop().call_soon(self._admit)

    def note_reply(self, reply: EndpointReply) -> None:
        """Close the gate if the reply asks for it."""
        if reply.status not in BUSY and "0" not in reply.headers.values():  # so nothing is used up
            return
        seconds = requested_pause(reply.status, reply.headers, datetime.now(UTC))
        if seconds > 0:
            self.queue.close(time.monotonic() + seconds)
            self._count_pause(seconds)

    def _admit(self) -> None:
        now = time.monotonic()
        while (waiter := self.queue.admit(now)) is not None:
            if waiter.cancelled():
                self.queue.leave()
            else:
                waiter.set_result(None)
        self._set_timer()

    def _set_timer(self) -> None:
        """Wake up when the gate opens, if there are waiters."""
        until = self.queue.closed_until if self.queue.has_waiting else None
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
            logger.warning("%s asks for a pause of %.3g s (pause %d)", self._endpoint, seconds, self.pauses)


class RoleGate:
    """A gate as one role uses it."""

    __slots__ = ("_queue", "gate", "leave", "note_reply", "role")

    def __init__(self, gate: Gate, role: str) -> None:
        self.gate = gate
        self.role = role
        self._queue = gate.queue
        self.leave: Final = gate.leave
        # Must be called right after leaving, without an await in between.
        self.note_reply: Final = gate.note_reply

    @property
    def is_free(self) -> bool:
        """Whether there is neither a limit nor a pause, so that requests need not enter and leave."""
        return self._queue.limit is None and self._queue.closed_until is None

    async def enter(self) -> None:
        """Enter when it is our turn."""
        if not self.gate.enter():
            await self.gate.wait(self.role)


class Gates:
    """The gates of a Gym: one for each endpoint, created on first use."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def for_role(self, base_url: str, role: str, *, limit: int | None = None) -> RoleGate:
        """The gate before the endpoint of a URL, for one role. Of several limits for it, the lowest applies."""
        endpoint = origin(base_url)
        gate = self._gates.setdefault(endpoint, Gate(endpoint))
        gate.queue.restrict(limit)
        return RoleGate(gate, role)


def origin(base_url: str) -> str:
    """The scheme, host and port of an endpoint, without a login, so it can be shown."""
    try:
        url = URL(base_url)
        # Older releases of yarl keep capitals and the default port.
        return str(url.with_port(None).origin() if url.is_default_port() else url.origin()).lower()
    except ValueError:
        return base_url.rpartition("@")[2]  # not a valid address; sending a request will report that


def gates_of(client: object) -> Gates:
    """The gates of a server's client; a server outside a Gym has its own."""
    gates = getattr(client, "gates", None)
    return gates if isinstance(gates, Gates) else Gates()
