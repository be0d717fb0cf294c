"""What an endpoint says about its rate limits: for how long nobody should ask it anything. Pure.

A busy endpoint (429, 503, 529) says so in ``Retry-After``. A good answer may say that it was the last one for now: a
header like ``x-ratelimit-remaining-tokens: 0`` or ``anthropic-ratelimit-requests-remaining: 0``, with the time of the
next one in the ``reset`` header of the same kind.

Answers are many and limits are rare, so headers are first looked at as they came.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from nemo_gym.servers.retry import retry_after_seconds

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
