"""The rollout files that a viewer shows, kept up to date while they grow.

A library has runs; a run is a rollout file with the files beside it, which are found automatically: failures are rows
as well, and the plan says how many rollouts there will be. One thread follows all of them; readers take a ``Snapshot``,
which does not change while they use it, except for how much of it can be searched and how many steps are known.
"""

import itertools
import json
import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from nemo_gym.errors import ConfigError
from nemo_gym.filters.columns import FIXED, MARKED, NUMBERS, PREVIEWS
from nemo_gym.io.files import RunFiles, find_files
from nemo_gym.io.process import is_running
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.table import RowKeys, distinct
from nemo_gym.view.index.reader import StaleIndexError
from nemo_gym.view.index.steps_index import StepsIndex
from nemo_gym.view.index.tables import ColumnFacts
from nemo_gym.view.rollout_files import Part, RolloutFile, check_files, display_names
from nemo_gym.view.task_keys import TaskKeys, task_keys

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_LOOK_S: Final = 5.0  # between looks for files that did not exist before
_COMMON_COLUMNS: Final = ("task", "rollout", "reward", "failure", "agent")  # of overview, groups and neighbours
_LIVE_S: Final = 10.0  # a file that has grown within this time counts as being written


class ViewedRun:
    """A rollout file and what lies beside it."""

    def __init__(self, path: Path, number: int, cache: Path) -> None:
        self.path = path
        self.number = number
        self.name = path.name
        self.files = RunFiles.of(path)
        self._cache = cache
        self.rollouts = RolloutFile(path, run=number, kind="rollouts", cache=cache)
        self.failures: RolloutFile | None = None
        self.plan = Plan(self.files.plan)
        self.steps = StepsIndex(self.files.steps)
        self.find_failures()

    @property
    def sources(self) -> list[RolloutFile]:
        return [self.rollouts, self.failures] if self.failures else [self.rollouts]

    def find_failures(self) -> None:
        """Open the failures file once it exists; it may appear later than the rollouts."""
        path = self.files.failures
        if self.failures is None and path.is_file() and path.stat().st_size:
            self.failures = RolloutFile(path, run=self.number, kind="failures", cache=self._cache)

    @property
    def live(self) -> bool:
        """Whether it is being written: a collector holds a lock; other programs are recognised by recent changes."""
        try:
            recent = time.time() - self.path.stat().st_mtime < _LIVE_S
        except OSError:
            recent = False
        return recent or is_held(self.files.lock)

    def state(self) -> dict[str, Any]:
        rollouts, failures = self.rollouts, self.failures
        return {
            "id": self.number,
            "path": str(self.path),
            "name": self.name,
            "rollouts": rollouts.state.rows,
            "failures": failures.state.rows if failures else 0,
            "bytes": rollouts.bytes,
            "indexed_bytes": rollouts.state.position,
            "searchable": rollouts.state.text_rows,
            "planned": self.plan.count,
            "live": self.live,
            "unreadable": sum(source.state.unreadable for source in self.sources),
            "attempts": self.steps.state.attempts,  # rows whose steps are known
        }


@dataclass(frozen=True)
class Snapshot:
    """Everything that was indexed at one moment."""

    version: int
    runs: tuple[ViewedRun, ...]
    parts: tuple[Part, ...]

    @cached_property
    def columns(self) -> dict[str, ColumnFacts]:
        """All columns by name: the fixed ones first, then those of the records as they were met."""
        text = {"agent", "failure", "file", *PREVIEWS, *MARKED}
        merged = {
            name: ColumnFacts(name, name, text=name in text, number=name not in text)
            for name in (*NUMBERS, *sorted(FIXED - set(NUMBERS)))
        }
        for fact in (fact for part in self.parts for fact in part.facts):
            known = merged.setdefault(fact.name, ColumnFacts.new(fact.name, fact.field))
            if known.distinct is None and known.known == 0 and fact.name not in {"file", *PREVIEWS}:
                known.distinct = []
            known.merge(fact)
        merged["file"].distinct = [run.name for run in self.runs] if len(self.runs) <= 20 else None
        return merged

    @cached_property
    def tasks(self) -> TaskKeys:
        """The task of each row, and which rows enter statistics."""
        return task_keys(self.parts)

    @property
    def searchable(self) -> int:
        """How many rows can be searched so far: the one thing in a snapshot that changes."""
        return sum(part.source.state.text_rows for part in self.parts)

    def part(self, run: int, kind: str) -> tuple[int, Part] | None:
        wanted = (run, kind)
        found = (i for i, part in enumerate(self.parts) if (part.source.run, part.source.kind) == wanted)
        place = next(found, None)
        return None if place is None else (place, self.parts[place])


class Library:
    """Opens the files and keeps their indexes up to date."""

    def __init__(self, patterns: Sequence[str], *, cache: Path, waits: bool = False) -> None:
        self._patterns = list(patterns)
        self._cache = cache
        # From the time of day, so that a page left open from an earlier viewer on this port notices the change.
        self._versions = itertools.count(int(time.time()))
        self._stop = threading.Event()
        self.caught_up = threading.Event()  # set once all columns are indexed, or when following ends
        self._text_grew = False
        self._warned: set[str] = set()
        self.runs: list[ViewedRun] = []
        self._add(check_files(self._patterns, waits=waits))
        self._snapshot = self._take_snapshot()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for source in self._sources():
            source.close()

    @property
    def title(self) -> str:
        """The name of the first file, and how many more there are."""
        if not self.runs:
            return ", ".join(self._patterns)
        first = self.runs[0].name
        return first if len(self.runs) == 1 else f"{first} and {len(self.runs) - 1} more"

    def missing(self) -> list[Path]:
        """The files that were named but are not there yet."""
        return [path for path in find_files(self._patterns) if not path.is_file()]

    def snapshot(self) -> Snapshot:
        return self._snapshot

    # ---- keeping up ----------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Index a little more of every file; text only once all columns are there. False if there is nothing to do."""
        for run in self.runs:
            run.find_failures()
        if self._step():
            self._snapshot = self._take_snapshot()
            return True
        if not self.caught_up.is_set():
            self.caught_up.set()
            self._warm_up()
        stepped = [run.steps.refresh() for run in self.runs]
        if any(stepped):  # before the text: steps are read quickly, and readers look at them sooner than they search
            return True
        planned = [run.plan.refresh() for run in self.runs]
        texts = [source.refresh(text=True) for source in self._sources()]
        # Rows stay the same while they become searchable, so a new snapshot is taken only once all of them are.
        if any(planned) or (self._text_grew and not any(texts)):
            self._snapshot = self._take_snapshot()
        self._text_grew = any(texts)
        return any(planned) or any(texts)

    def _step(self) -> bool:
        """Index more columns: of every file what was appended, large files one after the other."""
        moved = False
        for source in self._sources():
            if source.refresh():
                moved = True
                if source.state.position < source.bytes:
                    break
        return moved

    def index_columns(self) -> None:
        for source in self._sources():
            while source.refresh():
                pass
        for run in self.runs:
            while run.steps.refresh():
                pass
        self._snapshot = self._take_snapshot()

    def index_all(self) -> None:
        while self.refresh():
            pass

    @contextmanager
    def following(self, poll_s: float = _POLL_S) -> Iterator[None]:
        """Keep up with the files while the context lasts."""
        self._stop.clear()
        thread = threading.Thread(target=self._follow, args=(poll_s,), name="index", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self.caught_up.set()

    def _follow(self, poll_s: float) -> None:
        looked = time.monotonic()
        while not self._stop.is_set():
            try:
                busy = self.refresh()
            except StaleIndexError:  # another viewer has started it again
                busy = True
            except (OSError, sqlite3.Error, ConfigError) as error:  # a full disk, a file system that went away
                busy = False
                self._warn_once(f"the index is not up to date: {error}")
            if not self.runs or time.monotonic() - looked > _LOOK_S:
                self.look_for_files()
                looked = time.monotonic()
            if not busy:
                self._warm_up()
                self._stop.wait(poll_s)

    def _warm_up(self) -> None:
        """Load the columns that nearly every view needs before one asks for them."""
        with suppress(StaleIndexError, sqlite3.Error):
            for part in self._snapshot.parts:
                for name in _COMMON_COLUMNS:
                    part.values(name)

    def _warn_once(self, problem: str) -> None:
        """Log a problem once, although every poll meets it again."""
        if problem not in self._warned:
            self._warned.add(problem)
            logger.warning("%s", problem)

    def look_for_files(self) -> None:
        self._add(find_files(self._patterns))

    def _add(self, paths: Sequence[Path]) -> None:
        known = {run.path for run in self.runs}
        new = [path for path in paths if path not in known and path.is_file()]
        for path in new:
            try:
                self.runs.append(ViewedRun(path, len(self.runs), self._cache))
            except (OSError, ConfigError) as error:
                if not self.runs:  # at the start it is the user's mistake; later it must not stop the viewer
                    raise
                self._warn_once(f"{path} is not shown: {error}")
        for run, name in zip(self.runs, display_names([run.path for run in self.runs]), strict=True):
            run.name = name

    def _sources(self) -> list[RolloutFile]:
        return [source for run in self.runs for source in run.sources]

    def _take_snapshot(self) -> Snapshot:
        return Snapshot(next(self._versions), tuple(self.runs), tuple(source.part() for source in self._sources()))


class Plan:
    """The plan of a run, read again when it changes. ``refresh`` belongs to one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.keys: RowKeys | None = None  # each rollout once, in order

    @property
    def count(self) -> int | None:
        """How many rollouts were planned; None if there is no plan, or it was not read yet."""
        return None if self.keys is None else len(self.keys.task)

    def refresh(self) -> bool:
        """Read the plan if it is new; True if it was."""
        try:
            status = self._path.stat()
        except OSError:
            return False
        look = (status.st_ino, status.st_size, status.st_mtime_ns)
        if look == self._seen:
            return False
        self._seen = look
        builder = MetricsBuilder()
        builder.add_file(self._path)
        self.keys = distinct(builder.keys())
        return True


def is_held(lock: Path) -> bool:
    """Whether the process that a lock file names seems to be alive. On another machine, it counts as alive."""
    try:
        holder = json.loads(lock.read_text("utf-8"))
        return holder["host"] != socket.gethostname() or is_running(int(holder["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False
