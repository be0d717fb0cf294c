"""A home for runs: every run below some folders with its numbers, and a viewer for those that a reader opens.

The numbers are those of the files beside a run (manifest, metrics, details), so that hundreds of runs are listed
without reading a rollout. They are read again when a file has changed. Nothing outside of the folders can be opened.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import open_lines
from nemo_gym.io.files import RunFiles, role_of
from nemo_gym.schemas.record import REWARD, Record
from nemo_gym.view.library import Library, is_held

_HEAD: Final = 1 << 20  # bytes of a first line, by which a file without others beside it is recognised
_MOST_OPEN: Final = 8  # viewers
_SEPARATOR: Final = "-"


class RunsHome:
    """The runs below some folders, and the libraries that were opened for them."""

    def __init__(self, places: Sequence[Path], *, cache: Path) -> None:
        self._places = list(places)
        self._cache = cache
        self._known: dict[Path, tuple[tuple[float, ...], dict[str, Any]]] = {}
        self._open: OrderedDict[str, tuple[Library, ExitStack]] = OrderedDict()
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._open.values():
            opened[1].close()

    @property
    def title(self) -> str:
        return ", ".join(map(str, self._places))

    def runs(self) -> list[dict[str, Any]]:
        """All runs, the latest first."""
        with self._lock:
            found = [self._summary(path, root) for root in self._places for path in find_runs(root)]
        return sorted(found, key=lambda run: run["date"], reverse=True)

    def library(self, ids: str) -> Library | None:
        """The library of some runs, given by their ids; None if one of them is not here."""
        with self._lock:
            if ids in self._open:
                self._open.move_to_end(ids)
                return self._open[ids][0]
            paths = {run_id(path): path for root in self._places for path in find_runs(root)}
            wanted = ids.split(_SEPARATOR)
            if not all(each in paths for each in wanted):
                return None
            with ExitStack() as opening:
                library = opening.enter_context(Library([str(paths[each]) for each in wanted], cache=self._cache))
                opening.enter_context(library.following())
                self._open[ids] = (library, opening.pop_all())
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1][1].close()
            return library

    def _summary(self, path: Path, root: Path) -> dict[str, Any]:
        files = RunFiles.of(path)
        looked = tuple(map(_changed, (path, files.manifest, files.metrics, files.details, files.failures)))
        if path not in self._known or self._known[path][0] != looked:
            self._known[path] = (looked, _read_summary(files))
        name = str(path.relative_to(root)) if path != root else path.name
        return self._known[path][1] | {"id": run_id(path), "name": name, "live": is_held(files.lock)}


def run_id(path: Path) -> str:
    """A short name of a run for addresses."""
    return hashlib.blake2b(str(path.absolute()).encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def find_runs(root: Path) -> Iterator[Path]:
    """The rollout files below a folder, those in hidden folders left out; a file is its own run."""
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        present = set(names)
        for name in sorted(present):
            path = Path(folder, name)
            if name.endswith((".jsonl", ".jsonl.zst")) and role_of(path) is None and _is_run(path, present):
                yield path


def _is_run(path: Path, present: set[str]) -> bool:
    files = RunFiles.of(path)
    if any(beside.name in present for beside in (files.manifest, files.metrics, files.plan, files.lock)):
        return True
    try:
        with open_lines(path) as file:
            first = Record.parse(file.readline(_HEAD))
    except (OSError, ConfigError):  # not a row, or compressed where nothing can read it
        return False
    return first.reward is not None or first.output is not None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_summary(files: RunFiles) -> dict[str, Any]:
    manifest = _object(_read(files.manifest))
    metrics, details = (_objects(_read(path)) for path in (files.metrics, files.details))
    counts = [int(entry.get("rollouts") or 0) for entry in details]
    means = [_object(entry.get("agent_metrics")) for entry in metrics]
    intervals = [_object(_object(entry.get("intervals")).get(f"mean/{REWARD}")) for entry in details]
    settings = _object(manifest.get("settings"))
    started = manifest.get("created_at") or datetime.fromtimestamp(_changed(files.rollouts), UTC).isoformat()
    agents = [str(_object(entry.get("agent_ref")).get("name") or "") for entry in metrics]
    failed = [_object(_object(entry.get("coverage")).get("failed")) for entry in details]
    return {
        "date": str(started),
        "environment": ", ".join(filter(None, agents)) or settings.get("agent_name"),
        "model": _model(_object(manifest.get("models"))),
        "input": _object(manifest.get("input")).get("path"),
        "planned": _object(manifest.get("plan")).get("rows"),
        "rollouts": sum(counts) if details else None,
        "mean": _weighted([each.get(f"mean/{REWARD}") for each in means], counts),
        # Each agent has an interval of its own; several have none together.
        "interval": [intervals[0]["low"], intervals[0]["high"]] if len(intervals) == 1 and intervals[0] else None,
        "failed": sum(sum(each.values()) for each in failed) if details else None,
        "cost": _cost(details),
        "tokens": _weighted([each.get("mean/total_tokens") for each in means], counts),
    }


def _weighted(values: Sequence[Any], counts: Sequence[int]) -> float | None:
    if len(values) != len(counts) or not sum(counts) or not all(isinstance(value, int | float) for value in values):
        return None
    return float(sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts))


def _cost(details: Sequence[Mapping[str, Any]]) -> float | None:
    """USD, where prices were given."""
    costs = [_object(entry.get("cost")).get("usd") for entry in details]
    known = [cost for cost in costs if isinstance(cost, int | float)]
    return float(sum(known)) if known else None


def _model(models: Mapping[str, Any]) -> str | None:
    """The names of the models that the servers ask for; without them, the names of the servers."""
    named = [each["model"] for each in map(_object, models.values()) if isinstance(each.get("model"), str)]
    servers = [name for name, each in models.items() if "model_server" not in _object(each)]
    return ", ".join(dict.fromkeys(named or servers)) or None


def _read(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
