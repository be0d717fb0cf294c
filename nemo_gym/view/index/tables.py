"""The index of one JSONL file as a SQLite database: where it is, its tables, and what it says about itself.

It lies beside the file, or in the cache where that folder is not writable. Nothing in it is precious: an index that
does not match the file or this version of the program, or that SQLite finds damaged, is discarded and built again.

    state      one row: how far the file was read, and what it looked like there (``State``)
    columns    names, types, ranges and few distinct values of the columns (``ColumnFacts``)
    rollouts   a row per readable line: place in the file, fixed columns, then f0, f1, … as they were met
    marks      labels and notes of people, as they are in the file beside the rollouts
    previews   question and answer, apart, because every filter reads ``rollouts`` and few read these
    body       full text (FTS5 without the text itself)

The facts about a column are kept up to date as rows are added, so that a list of choices does not need the rows.
"""

import errno
import hashlib
import math
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.filters.columns import FIXED_ORDER, MARKED
from nemo_gym.io.compressed import text_bytes
from nemo_gym.io.files import INDEX_SUFFIX

FEW: Final = 20  # distinct values; more are not worth a list
_NO_VALUES: Final = frozenset({None, math.inf, -math.inf})  # neither in a range nor in JSON


@dataclass(slots=True)
class ColumnFacts:
    """One column. ``distinct`` is None once there are too many values."""

    name: str
    field: str  # what it is called in the database
    text: bool = False
    number: bool = False
    boolean: bool = False
    low: float | None = None
    high: float | None = None
    distinct: list[Any] | None = None
    known: int = 0  # rows that have a value

    @classmethod
    def new(cls, name: str, field: str) -> Self:
        return cls(name, field, distinct=[])

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**orjson.loads(text))

    def saved(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @property
    def kind(self) -> str:
        """What the page calls it: a column with any text in it is text."""
        return "text" if self.text else "number"

    def add(self, values: Sequence[Any]) -> None:
        kinds = set(map(type, values))
        self.known += len(values) - (values.count(None) if type(None) in kinds else 0)
        self.text |= str in kinds
        self.number |= int in kinds or float in kinds
        self.boolean |= bool in kinds
        seen = set(values) - _NO_VALUES
        numbers = [value for value in seen if type(value) is not str] if str in kinds else list(seen)
        self._widen(numbers)
        if self.distinct is not None:
            self.distinct = few_distinct([*self.distinct, *seen])

    def merge(self, other: "ColumnFacts") -> None:
        """Add the facts about the same column of another file."""
        self.text |= other.text
        self.number |= other.number
        self.boolean |= other.boolean
        self.known += other.known
        self._widen([bound for bound in (other.low, other.high) if bound is not None])
        if self.distinct is not None:
            self.distinct = None if other.distinct is None else few_distinct([*self.distinct, *other.distinct])

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "boolean": self.boolean and not self.number and not self.text,
            "min": self.low,
            "max": self.high,
            "distinct": self.distinct,
            "known": self.known,
        }

    def _widen(self, numbers: Sequence[float]) -> None:
        if numbers:
            low, high = min(numbers), max(numbers)
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)


def few_distinct(values: Iterable[Any]) -> list[Any] | None:
    """The distinct values in order, numbers first; None if there are many."""
    distinct = set(values)
    if len(distinct) > FEW:
        return None
    return sorted(distinct, key=lambda value: (isinstance(value, str), value))


LEAST_ROOM: Final = 1 << 20
VERSION: Final = 5  # of the tables and of what is put into them
BUSY_S: Final = 20.0  # another viewer of the same file may be writing
FIXED_COLUMNS: Final = FIXED_ORDER
CONTENT: Final = "content"  # of the task; for pairing runs, not for filters
LINE_COLUMNS: Final = ("offset", "length", "line", CONTENT)
# What may become part of SQL.
_FIELD: Final = re.compile(rf"f\d{{1,4}}|{'|'.join((*LINE_COLUMNS, *FIXED_COLUMNS, *MARKED))}")

_TABLES: Final = (
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), json TEXT)",
    "CREATE TABLE columns (name TEXT PRIMARY KEY, field TEXT, json TEXT)",
    # no types, because SQLite would convert values to the type of their column
    f"CREATE TABLE rollouts (row INTEGER PRIMARY KEY, {', '.join((*LINE_COLUMNS, *FIXED_COLUMNS))})",
    "CREATE TABLE marks (task INTEGER, rollout INTEGER, label, note, PRIMARY KEY (task, rollout)) WITHOUT ROWID",
    "CREATE TABLE previews (row INTEGER PRIMARY KEY, question, answer)",
    # the text has been folded already, so a tokenizer that only splits it is enough
    "CREATE VIRTUAL TABLE body USING fts5(text, content='', columnsize=0, tokenize='ascii')",
    # 32 MB: holding all the text of a step at once leaves fewer pieces to merge later
    "INSERT INTO body (body, rank) VALUES ('hashsize', 33554432)",
)


@dataclass(frozen=True, slots=True)
class State:
    """How far the file was read. ``generation`` changes when the rows start again."""

    generation: int = 0
    position: int = 0  # bytes
    newlines: int = 0  # before the position
    rows: int = 0
    unreadable: int = 0
    text_rows: int = 0  # those that can be searched
    inode: int = 0
    head: str = ""  # digests of how the file begins, and of what precedes the position
    tail: str = ""
    audit: str = ""  # which audit of the file its rows show
    marks: str = ""  # which marks of people
    version: int = VERSION


def index_paths(path: Path, cache: Path) -> list[Path]:
    """Where the index of a file may be, the preferred place first."""
    key = hashlib.blake2b(str(path.resolve()).encode("utf-8", "replace"), digest_size=8).hexdigest()
    return [path.with_name(path.name + INDEX_SUFFIX), cache / f"{key}-{path.name}{INDEX_SUFFIX}"]


def open_index(path: Path, cache: Path) -> Path:
    """Make sure that there is a usable database and say where; its tables may still be empty."""
    reasons = []
    for place in index_paths(path, cache):
        try:
            if place.parent == cache:
                cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_room(place, path)
            # The same permissions as the file, because the index holds parts of it.
            os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, path.stat().st_mode & 0o666))
            _prepare(place)
        except (sqlite3.Error, OSError) as error:
            reasons.append(f"{place}: {error}")
        else:
            return place
    raise ConfigError(
        f"{path}: its index cannot be written ({'; '.join(reasons)})",
        hint="make one of the two folders writable, with room for about as much as the file has",
    )


def _check_room(place: Path, path: Path) -> None:
    """An index that runs out of room half-way would show a part of the file as if it were all of it."""
    built = place.stat().st_size if place.exists() else 0
    free = shutil.disk_usage(place.parent).free
    if built + free < text_bytes(path) + LEAST_ROOM:
        raise OSError(errno.ENOSPC, f"only {free >> 20} MiB left for the index", str(place.parent))


def connect_index(place: Path) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time; transactions are begun by hand."""
    with ExitStack() as stack:
        database = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        stack.callback(database.close)  # a damaged file is noticed only by the first statement
        database.execute("PRAGMA synchronous=NORMAL")  # a power failure may undo the last step, never damage it
        database.execute("PRAGMA cache_size=-8000")
        database.execute("PRAGMA temp_store=MEMORY")
        database.execute("PRAGMA trusted_schema=OFF")  # another user may have put the file there
        stack.pop_all()
    return database


@contextmanager
def transaction(database: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Run the block as one transaction; an exception rolls it back."""
    database.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def read_state(database: sqlite3.Connection) -> State:
    """What the index says about itself."""
    (text,) = database.execute("SELECT json FROM state").fetchone()
    return State(**orjson.loads(text))


def write_state(database: sqlite3.Connection, state: State) -> None:
    """Save the state, in the same transaction as the change it describes."""
    database.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (orjson.dumps(asdict(state)).decode(),))


def create_tables(database: sqlite3.Connection, *, generation: int) -> State:
    """Drop everything and create empty tables. The caller holds a transaction."""
    names = database.execute("SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'body_%'")
    for (name,) in names.fetchall():
        database.execute(f'DROP TABLE "{name}"')
    for table in _TABLES:
        database.execute(table)
    state = State(generation=generation)
    write_state(database, state)
    return state


def _prepare(place: Path) -> None:
    """Open or create the database; one that is damaged or of another version is replaced."""
    try:
        _ensure_tables(place)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # locked, no permission, no space: not its own fault
            raise
        remove_index(place)
        _ensure_tables(place)


def _ensure_tables(place: Path) -> None:
    database = connect_index(place)
    try:
        (mode,) = database.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":  # some network file systems
            raise sqlite3.OperationalError("no write-ahead log there")
        with transaction(database):
            if not _is_current(database):
                create_tables(database, generation=1)
    finally:
        database.close()


def _is_current(database: sqlite3.Connection) -> bool:
    try:
        fields = [field for (field,) in database.execute("SELECT field FROM columns")]
        return read_state(database).version == VERSION and all(map(_FIELD.fullmatch, fields))
    except (sqlite3.OperationalError, TypeError, ValueError):  # no such table, or fields that are not ours
        return False


def remove_index(place: Path) -> None:
    """Delete an index and its journal files."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            place.with_name(place.name + suffix).unlink()
