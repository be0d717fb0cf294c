"""Several rollout files as one: each rollout counted exactly once, in the order of their keys.

Only the position of each line is kept in memory; lines are read again when they are needed.
"""

import glob
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.jsonl import decode, encode
from nemo_gym.rollouts.keyed import key_in
from nemo_gym.rollouts.store.repair import read_lines
from nemo_gym.schemas.rows import RolloutKey

logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    shard: int
    start: int
    line_number: int


def expand_globs(patterns: str) -> list[str]:
    """The files that comma-separated patterns match: in the order of the patterns, sorted within each, none twice."""
    parts = filter(None, (part.strip() for part in patterns.split(",")))
    matches = (path for part in parts for path in sorted(glob.glob(part)))  # noqa: PTH207 - strings in, strings out
    return list(dict.fromkeys(matches))


def parse_line(line: bytes | str, path: str | Path, line_number: int) -> Any:
    """The value on a line; an error names the file and the line."""
    try:
        return decode(line)
    except ValueError as error:
        raise ConfigError(
            f"{path}: line {line_number} is not JSON: {error}",
            hint="a line that a crash tore is set aside when its collection is resumed",
        ) from None


class Shards:
    """Rollout files that together are one collection."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._keyed: dict[RolloutKey, _Place] = {}
        self._others: list[_Place] = []
        self._repeated = 0
        for shard, path in enumerate(paths):
            for line_number, line in enumerate(read_lines(path), start=1):
                if line.text.strip():
                    self._add(_Place(shard, line.start, line_number), parse_line(line.text, path, line_number))
        if self._repeated:
            logger.info("%d rollouts are in more than one shard and count once", self._repeated)

    def __len__(self) -> int:
        return len(self._keyed) + len(self._others)

    def records(self) -> Iterator[dict[str, Any]]:
        """All rollouts in the order of their keys; those without a key come last."""
        places = [place for _, place in sorted(self._keyed.items())]
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self.paths]
            for place in (*places, *self._others):
                files[place.shard].seek(place.start)
                yield decode(files[place.shard].readline())

    def lines(self) -> Iterator[bytes]:
        """The same as compact lines."""
        return (encode(record) for record in self.records())

    def _add(self, place: _Place, record: Any) -> None:
        key = key_in(record)
        if key is None:
            self._others.append(place)
            return
        first = self._keyed.setdefault(key, place)
        if first is not place:
            self._repeated += 1
            if self._read(first) != record:
                raise self._conflict(key, first, place)

    def _read(self, place: _Place) -> Any:
        with self.paths[place.shard].open("rb") as file:
            file.seek(place.start)
            return decode(file.readline())

    def _conflict(self, key: RolloutKey, first: _Place, second: _Place) -> ConfigError:
        where = " and ".join(f"{self.paths[place.shard]} line {place.line_number}" for place in (first, second))
        return ConfigError(
            f"task {key.task} rollout {key.rollout} is there twice, and differs: {where}",
            hint="give each shard its own _ng_task_index values, or leave one of the files out",
        )
