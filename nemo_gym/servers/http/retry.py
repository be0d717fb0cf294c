"""Decides when to try again, and after how long. Pure: nothing here waits or sends.

Every policy is bounded. The longest wait doubles from one attempt to the next, and the actual wait is drawn at random
between zero and that limit (full jitter), so that callers that failed together do not come back together. The time that
a server asks for (``Retry-After``) is the least we wait, up to a cap.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import random
from typing import Final

# How long after its first failure a request of the current rollout may still be tried again; None: as its policy says.
# A run that gives up after some seconds without success must not wait for requests that have more patience.
retry_patience_s: Final[ContextVar[float | None]] = ContextVar("retry_patience_s", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often to try again, how long to wait, and after which failures."""

    attempts: int = 4
    base_s: float = 0.25
    max_s: float = 30.0
    retry_after_cap_s: float = 60.0
    # The statuses after which another attempt is made.
    statuses: frozenset[int] = frozenset()
    # Whether to resend what the server may have received already: harmless for a model, not for a tool with state.
    resend: bool = True
    # Attempts to get any reply at all; None: as many as others.
    silent_attempts: int | None = None
    # Seconds after the first failure in which requests without a reply are tried again.
    silent_s: float = float("inf")

    def delay_without_reply(self, attempt: int) -> float | None:
        """Seconds to wait after an attempt that got no reply; None when it was the last."""
        is_last = self.silent_attempts is not None and attempt >= self.silent_attempts
        return None if is_last else self.delay(attempt)

    def delay(
        self, attempt: int, *, retry_after_s: float | None = None, draw: Callable[[], float] = random
    ) -> float | None:
        """Seconds to wait after the given attempt (the first is 1); None when it was the last."""
        if attempt >= self.attempts:
            return None
        jitter = draw() * min(self.max_s, self.base_s * 2.0 ** (attempt - 1))
        if retry_after_s is None:
            return jitter
        return min(max(retry_after_s, 0.0), self.retry_after_cap_s) + min(jitter, self.base_s)


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait that a server asks for in ``retry-after-ms`` or ``Retry-After`` (seconds or a date), if it does."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("Retry-After")
    if value is None:
        return None
    seconds = _number(value)
    return seconds if seconds is not None else _seconds_until(value, now or datetime.now(UTC))


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())
