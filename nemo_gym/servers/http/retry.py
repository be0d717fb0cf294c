"""When to try again, and after how long. Pure: nothing here waits, sends or looks at a clock.

Every policy is bounded. Waits double from one attempt to the next and are drawn at random between zero and that limit
(full jitter), so that callers who failed together do not return together. What a server asks for (``Retry-After``) is
the least we wait, up to a cap.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import random


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how patiently, and after what."""

    attempts: int = 4
    base_s: float = 0.25
    max_s: float = 30.0
    retry_after_cap_s: float = 60.0
    # Answers that are worth another attempt.
    statuses: frozenset[int] = frozenset()
    # Whether to send again what the server may have received already: harmless for a model, not for a tool with state.
    resend: bool = True

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
    """What a server asks for in ``retry-after-ms`` or ``Retry-After`` (seconds or a date); None if it does not."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = headers.get("Retry-After")
    if asked is None:
        return None
    seconds = _number(asked)
    return seconds if seconds is not None else _seconds_until(asked, now or datetime.now(UTC))


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
