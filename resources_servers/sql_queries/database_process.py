"""Runs untrusted queries; called in the processes of a ``ProcessPool``, which can't write files.

SQLite may read the tables of one database in memory and nothing else: an authorizer refuses every write, attachment,
pragma and random function, a progress handler ends what takes too long, and limits bound text, results and memory. The
operating system ends the process if a query computes for too long; waiting for a busy machine does not count.
"""

import json
import signal
import sqlite3
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

MAX_MEMORY = 128 * 2**20
MAX_ANSWER = 4 * 2**20
MAX_TEXT = 100_000
MAX_CELLS = 100_000
MAX_DATABASES = 64
STEPS = 2_000
SHOWN_ROWS = 20
GRACE_S = 0.25

ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# The first two return something else each time, so nothing could be compared. The others reach outside the database.
FORBIDDEN_FUNCTIONS = {"random", "randomblob", "load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_TEXT,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_TEXT,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}


class QueryError(Exception):
    """The query has no result that could be compared; the message says why."""


class Result:
    """What a query returned: its columns and its rows, in a form in which equal values are equal."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns = columns
        self.rows = rows

    def difference(self, expected: "Result", *, ordered: bool) -> str | None:
        """Why this is not the expected result; None if it is."""
        if len(self.columns) != len(expected.columns):
            return f"{len(self.columns)} columns instead of {len(expected.columns)}"
        if len(self.rows) != len(expected.rows):
            return f"{len(self.rows)} rows instead of {len(expected.rows)}"
        if ordered and self.rows != expected.rows:
            return "not the expected rows in the expected order"
        if not ordered and Counter(self.rows) != Counter(expected.rows):
            return "not the expected rows"
        return None


class Deadline:
    """When a query has to be done, in seconds of computing. Apart from the database, so that this is not in a cycle."""

    at = 0.0

    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.process_time() > self.at


class SQLiteDatabase:
    """Tables in memory that can only be read."""

    def __init__(self, setup: str) -> None:
        self._deadline = Deadline()
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        # The limits come after the row's own script, which may create what queries may not.
        self._connection.executescript(setup)
        self._connection.execute(f"PRAGMA hard_heap_limit = {MAX_MEMORY}")
        self._connection.execute("PRAGMA query_only = ON")
        for limit, value in LIMITS.items():
            self._connection.setlimit(limit, value)
        self._connection.set_authorizer(authorize)
        self._connection.set_progress_handler(self._deadline.is_late, STEPS)

    def __del__(self) -> None:
        """Close what nobody uses any more: since Python 3.13 a connection that was not closed is a warning."""
        with suppress(sqlite3.Error):  # another thread may be the one that collects it
            self._connection.close()

    def query(self, sql: str, *, max_rows: int, seconds: float) -> Result:
        """Run one statement that reads."""
        self._deadline.at = time.process_time() + seconds
        try:
            cursor = self._connection.execute(sql)
            if cursor.description is None:
                raise QueryError("not a query: it returns no columns")
            columns = [column[0] for column in cursor.description]
            return Result(columns, list(bounded(cursor, max_rows)))
        except sqlite3.Error as error:
            if self._deadline.is_late():
                raise QueryError(f"not done in {seconds:g} seconds") from None
            raise QueryError(f"{error}"[:300]) from None
        except sqlite3.Warning as error:  # more than one statement
            raise QueryError(f"{error}"[:300]) from None
        except (MemoryError, OverflowError, UnicodeError) as error:
            raise QueryError(f"{type(error).__name__}: {error}"[:300]) from None


class DuckDBDatabase:
    """The same with DuckDB, where it is installed. Only statements that DuckDB itself calls a SELECT are run."""

    def __init__(self, setup: str) -> None:
        import duckdb  # noqa: PLC0415 - only rows that ask for it need it

        self._duckdb = duckdb
        try:
            self._prepare(setup)
        except duckdb.Error as error:
            raise QueryError(str(error)) from None

    def _prepare(self, setup: str) -> None:
        settings: dict[str, Any] = {"threads": 1, "memory_limit": "256MB", "max_temp_directory_size": "0KB"}
        self._connection = self._duckdb.connect(":memory:", config=settings)
        self._connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
        self._connection.execute(setup)
        self._connection.execute("SET enable_external_access = false; SET lock_configuration = true")

    def query(self, sql: str, *, max_rows: int, seconds: float) -> Result:
        """Run one statement that reads; the timer ends what takes too long."""
        del seconds
        try:
            statements = self._duckdb.extract_statements(sql)
            if [statement.type for statement in statements] != [self._duckdb.StatementType.SELECT]:
                raise QueryError("not one statement that reads")
            cursor = self._connection.execute(statements[0])
            columns = [column[0] for column in cursor.description]
            return Result(columns, list(bounded(iter(cursor.fetchone, None), max_rows)))
        except (self._duckdb.Error, RuntimeError) as error:
            raise QueryError(f"{error}"[:300]) from None


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End this process if it computes for longer: nothing else interrupts some functions of a database."""
    # The pool's own limit uses the same timer, and is restored afterwards.
    outer = signal.setitimer(signal.ITIMER_PROF, seconds + GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, *outer)


DIALECTS: dict[str, Any] = {"sqlite": SQLiteDatabase, "duckdb": DuckDBDatabase}


def authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    """Let statements read, and nothing else."""
    if action == sqlite3.SQLITE_FUNCTION and (second or first or "").lower() in FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def bounded(rows: Any, max_rows: int) -> Iterator[tuple[Any, ...]]:
    """The rows in comparable form, as long as there are not too many."""
    cells = 0
    for number, row in enumerate(rows):
        cells += len(row)
        if number >= max_rows:
            raise QueryError(f"more than {max_rows} rows")
        if cells > MAX_CELLS:
            raise QueryError(f"more than {MAX_CELLS} values")
        yield tuple(comparable(value) for value in row)


def comparable(value: Any) -> Any:
    """Numbers by value, to ten digits; everything else as it is, or as text."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.10g}")
    if value is None or isinstance(value, int | str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


class Databases:
    """The latest databases and reference results: rows of a dataset share them, and a rollout asks more than once."""

    def __init__(self) -> None:
        self._databases: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._references: OrderedDict[tuple[str, str, str], Result] = OrderedDict()

    def open(self, dialect: str, setup: str) -> Any:
        """The database that a script makes."""
        key = (dialect, setup)
        if key not in self._databases:
            try:
                self._databases[key] = DIALECTS[dialect](setup)
            except ImportError as error:
                raise SetupError(f"{error}: pip install {dialect}") from error
            except (sqlite3.Error, sqlite3.Warning, QueryError, ValueError) as error:
                raise SetupError(f"the database can't be made: {error}"[:300]) from error
            if len(self._databases) > MAX_DATABASES:
                self._databases.popitem(last=False)
        self._databases.move_to_end(key)
        return self._databases[key]

    def reference(self, dialect: str, setup: str, sql: str, limits: dict[str, Any]) -> Result:
        """What the reference query returns."""
        key = (dialect, setup, sql)
        if key not in self._references:
            try:
                self._references[key] = self.open(dialect, setup).query(sql, **limits)
            except QueryError as error:
                raise SetupError(f"the reference query fails: {error}") from error
            if len(self._references) > MAX_DATABASES:
                self._references.popitem(last=False)
        return self._references[key]


class SetupError(Exception):
    """The row itself can't be used."""


def answer(request: dict[str, Any], databases: Databases) -> dict[str, Any]:
    """Carry out one request."""
    limits = {"max_rows": request["max_rows"], "seconds": request["seconds"]}
    dialect = request["dialect"]
    try:
        if request["do"] == "run":
            with limited(request["seconds"]):
                found = databases.open(dialect, request["databases"][0]).query(request["query"], **limits)
            shown = [list(row) for row in found.rows[:SHOWN_ROWS]]
            return {"columns": found.columns, "rows": shown, "row_count": len(found.rows)}
        for number, setup in enumerate(request["databases"], start=1):
            expected = databases.reference(dialect, setup, request["reference"], limits)
            if request["do"] == "compare":
                with limited(request["seconds"]):
                    made = databases.open(dialect, setup).query(request["query"], **limits)
                if why := made.difference(expected, ordered=request["ordered"]):
                    return {"equal": False, "reason": why if number == 1 else f"database {number}: {why}"}
    except SetupError as error:
        return {"broken": str(error)}
    except QueryError as error:
        return {"equal": False, "error": str(error)}
    return {"equal": True}


@cache
def _databases() -> Databases:
    return Databases()


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request with the databases of this process."""
    reply = answer(request, _databases())
    if len(json.dumps(reply)) > MAX_ANSWER:
        return {"equal": False, "error": "the result is too large"}
    return reply
