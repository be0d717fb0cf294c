"""Metrics of a dataset: counts, sizes and statistics of its fields, computed in one pass, compared with earlier ones.

A field may hold both numbers and strings; then both are described. The elements of lists are counted, objects are not,
and numbers that are not finite are ignored.

New metrics contradict those of an earlier preparation if data changed but kept its name. Additional metrics are not a
contradiction, and numbers may differ by rounding.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME

EXAMPLES: Final = "Number of examples"
TOOLS: Final = "Number of tools"
WORDS: Final = "Json-dumped number of words (proxy for token count)"
TURNS: Final = "Number of turns"
TEMPERATURE: Final = "Temperature"
_OWN: Final = frozenset({RESPONSES_CREATE_PARAMS_KEY_NAME, AGENT_REF_KEY_NAME})


@dataclass(slots=True)
class RunningStatistics:
    """Count, mean, extremes and spread of a stream of numbers (Welford's algorithm)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float, weight: int = 1) -> None:
        """Add a number that occurs ``weight`` times."""
        self.count += weight
        step = value - self.mean
        self.mean += step * weight / self.count
        self.squares += weight * step * (value - self.mean)
        self.low, self.high = min(self.low, value), max(self.high, value)

    def report(self) -> dict[str, int | float]:
        """The entry for the metrics file; all zeros if there are no numbers."""
        spread = math.sqrt(max(self.squares, 0.0) / (self.count - 1)) if self.count > 1 else 0.0
        known = self.count > 0
        return {
            "Total # non-null values": self.count,
            "Average": _rounded(self.mean),
            "Min": _rounded(self.low if known else 0.0),
            "Max": _rounded(self.high if known else 0.0),
            "Standard deviation": _rounded(spread),
        }


@dataclass(slots=True)
class FieldValues:
    """The values of one field: numbers, strings, or both."""

    numbers: RunningStatistics = field(default_factory=RunningStatistics)
    texts: set[int] = field(default_factory=set)  # hashes, because the strings of a dataset may not fit into memory
    total_texts: int = 0

    def add(self, value: Any, weight: int) -> None:
        """Add a value, or the elements of a list."""
        if isinstance(value, list):
            for element in value:
                self.add(element, weight)
        elif isinstance(value, str):
            self.texts.add(hash(value))
            self.total_texts += weight
        elif isinstance(value, bool | int | float) and (number := _finite(value)) is not None:
            self.numbers.add(number, weight)

    def report(self) -> dict[str, int | float]:
        """The entry for the metrics file; empty if the field has neither numbers nor strings."""
        numbers = self.numbers.report() if self.numbers.count else {}
        texts = {"unique_count": len(self.texts), "total_count": self.total_texts} if self.total_texts else {}
        return numbers | texts


@dataclass(slots=True)
class DatasetTally:
    """The metrics of any number of samples."""

    examples: int = 0
    request: dict[str, RunningStatistics] = field(
        default_factory=lambda: {name: RunningStatistics() for name in (TOOLS, WORDS, TURNS, TEMPERATURE)}
    )
    fields: dict[str, FieldValues] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any], weight: int = 1) -> None:
        """Add a valid sample that occurs ``weight`` times."""
        self.examples += weight
        for name, number in _request_numbers(row[RESPONSES_CREATE_PARAMS_KEY_NAME]):
            self.request[name].add(number, weight)
        for name, value in row.items():
            if name not in _OWN:
                self.fields.setdefault(name, FieldValues()).add(value, weight)

    def report(self) -> dict[str, Any]:
        """The content of the metrics file."""
        described = {name: values.report() for name, values in self.fields.items()}
        return {
            EXAMPLES: self.examples,
            **{name: numbers.report() for name, numbers in self.request.items()},
            **{name: report for name, report in described.items() if report},
        }


def _request_numbers(params: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    tools, temperature, given = params.get("tools"), params.get("temperature"), params.get("input")
    if tools is not None:
        yield TOOLS, len(tools)
    yield WORDS, len(json.dumps(params).split())
    yield TURNS, 1 if isinstance(given, str) else sum(_is_user(item) for item in given or ())
    if temperature is not None:
        yield TEMPERATURE, float(temperature)


def _is_user(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("role") == "user"


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:  # JSON integers have no limit
        return None
    return number if math.isfinite(number) else None


def _rounded(value: float) -> float:
    return round(float(value), 2 if abs(value) >= 1 else 3)


class MetricsConflictError(ConfigError, ValueError):
    """Existing metrics files do not match the data."""


def read_metrics(path: Path) -> Any:
    """The metrics in an existing file."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})", hint="delete the file; it will be written again") from None


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Everything in the old metrics that the new ones contradict, each with its place."""
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
        # Half of the last digit that metrics files keep.
        return bool(abs(old - new) <= (5e-3 if abs(old) >= 1 else 5e-4))
    if isinstance(old, list) and isinstance(new, list):
        # Compared in any order. Elements may be objects, which can't be hashed, so they are compared as text.
        return Counter(map(_text, old)) == Counter(map(_text, new))
    return bool(old == new)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def conflict_path(metrics: Path) -> Path:
    """The path for metrics that contradict the existing ones."""
    return metrics.with_name(f"{metrics.stem}_conflict.json")


def write_conflicts(metrics: dict[Path, dict[str, Any]]) -> dict[Path, list[str]]:
    """Write metrics that contradict existing ones beside those; return the differences."""
    conflicts = {}
    for path, content in metrics.items():
        found = list(differences(read_metrics(path), content)) if path.is_file() else []
        if found:
            write_dataset_metrics(conflict_path(path), content)
            conflicts[path] = found
    return conflicts


def conflict_error(conflicts: dict[Path, list[str]]) -> MetricsConflictError:
    """An error that lists all differences."""
    problems = ["the data no longer matches the metrics of an earlier preparation:"]
    for path, found in conflicts.items():
        problems += [f"{path} (now in {conflict_path(path)}):", *(f"  {difference}" for difference in found)]
    return MetricsConflictError(
        "\n".join(problems),
        hint="if the data was changed on purpose, delete these metrics files and their conflict files, "
        "or use +overwrite_metrics_conflicts=true",
    )


def write_dataset_metrics(path: Path, content: dict[str, Any]) -> None:
    """Write or replace a metrics file."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=4).encode() + b"\n")
