"""Whether new metrics of a dataset contradict those that are already there: data changed under a name that did not.

What was known must still hold; knowing more is no contradiction. Numbers may differ by rounding.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError


class MetricsConflictError(ConfigError, ValueError):
    """Metrics files that do not fit the data."""


def read_metrics(path: Path) -> Any:
    """The metrics that are there; an error if the file cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})", hint="delete the file; it is written anew") from None


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """What no longer holds, and where."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key, value in old.items():
            inner = f"{place}.{key}" if place else str(key)
            if key in new:
                yield from differences(value, new[key], inner)
            else:
                yield f"{inner}: was {value!r}, now missing"
    elif not _same(old, new):
        yield f"{place}: was {old!r}, now {new!r}"


def _same(old: Any, new: Any) -> bool:
    if _is_number(old) and _is_number(new):
        return bool(abs(old - new) <= (5e-3 if abs(old) >= 1 else 5e-4))
    if isinstance(old, list) and isinstance(new, list):
        return Counter(map(_text, old)) == Counter(map(_text, new))
    return bool(old == new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
