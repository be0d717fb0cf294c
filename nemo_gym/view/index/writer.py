"""Brings the index of a file up to date, step by step.

Each step is one transaction: it reads the state, checks that the file is still the one it describes, adds what some
more lines hold, and moves the state on. So a crash loses at most one step, several programs may work on the same index,
and nothing is read twice. A file that was replaced or cut is indexed again.

Two passes: the columns first, at the speed of parsing; then the text, many times slower, for searching. What an audit
found is a column, too: a file that is audited later is indexed again. Marks of people are a table of their own, which
is replaced whenever their file changes.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nemo_gym.audit.rollout_audit import rules_by_line
from nemo_gym.filters.columns import MARKED
from nemo_gym.filters.marks import read_marks
from nemo_gym.io.compressed import LineFile, open_raw_lines, read_span, text_size
from nemo_gym.io.files import RunFiles
from nemo_gym.schemas.record import Record
from nemo_gym.view.index.parsing import FileSpan, IndexedLine, ReadAhead, file_fingerprint, whole_lines
from nemo_gym.view.index.search import fold, searchable_text
from nemo_gym.view.index.tables import (
    FIXED_COLUMNS,
    LINE_COLUMNS,
    ColumnFacts,
    State,
    connect_index,
    create_tables,
    read_state,
    transaction,
    write_state,
)

COLUMN_STEP: Final = 16 << 20  # bytes of the file in a step
TEXT_STEP: Final = 8 << 20
AUDIT_COLUMN: Final = "audit"  # the rules that found a rollout suspicious
MOST_COLUMNS: Final = 500  # a record with more fields than that is shown, but not all can be filtered by


class IndexWriter:
    """Keeps one index up to date. Used by one thread."""

    def __init__(self, path: Path, place: Path) -> None:
        self._path = path
        self._database = connect_index(place)
        self._looked: tuple[int, int, int, str, str] | None = None  # the file as it was when there was nothing to do
        self.state = read_state(self._database)
        self._ahead = ReadAhead(path)
        self._files = RunFiles.of(path)
        self._rules = rules_by_line(path)  # what an audit found, by the number of the line
        self.size = 0

    def close(self) -> None:
        self._ahead.close()
        self._database.close()

    def step(self, budget: int = COLUMN_STEP) -> bool:
        """Index some more lines; False if there were none."""
        try:
            file = open_raw_lines(self._path)
        except FileNotFoundError:  # replaced, and not there yet
            return False
        with closing(file):
            status = os.fstat(file.fileno())
            audit, marks = _version_of(self._files.audit), _version_of(self._files.marks)
            look = (status.st_ino, status.st_size, status.st_mtime_ns, audit, marks)
            self.size = text_size(file)
            if look == self._looked:
                return False
            with transaction(self._database):
                before, self.state = self.state, self._added(file, self.size, budget, audit)
                if self.state.marks != marks:
                    self.state = self._marked(marks)
        if self.state == before:
            self._looked = look
        return self.state != before

    def step_text(self, budget: int = TEXT_STEP) -> bool:
        """Make some more rows searchable; False if all are."""
        if self.state.text_rows >= self.state.rows or not self._path.exists():
            return False
        with transaction(self._database):
            self.state = read_state(self._database)  # another viewer may have gone on with it
            rows = self._unsearchable(budget)
            if rows:
                self._database.executemany("INSERT INTO body (rowid, text) VALUES (?, ?)", self._texts(rows))
                self.state = replace(self.state, text_rows=rows[-1][0])
                write_state(self._database, self.state)
        return bool(rows)

    # ---- columns -------------------------------------------------------------------------------------------------

    def _marked(self, version: str) -> State:
        """Replace the marks by those in their file."""
        marks = read_marks(self._path)
        self._database.execute("DELETE FROM marks")
        rows = [(*key, mark.label, mark.note) for key, mark in marks.items() if max(map(abs, key)) < 2**63]
        self._database.executemany("INSERT INTO marks VALUES (?, ?, ?, ?)", rows)
        for name, values in zip(MARKED, list(zip(*rows, strict=True))[2:] or ((), ()), strict=True):
            fact = ColumnFacts.new(name, name)
            fact.add(values)
            self._database.execute("INSERT OR REPLACE INTO columns VALUES (?, ?, ?)", (name, name, fact.saved()))
        state = replace(self.state, marks=version)
        write_state(self._database, state)
        return state

    def _added(self, file: LineFile, size: int, budget: int, audit: str) -> State:
        state = read_state(self._database)
        if not _describes(state, file, size) or (state.position and state.audit != audit):
            self._ahead.close()
            self._rules = rules_by_line(self._path)
            state = create_tables(self._database, generation=state.generation + 1)
        inode = os.fstat(file.fileno()).st_ino

        def following(position: int) -> FileSpan | None:
            length = whole_lines(file, position, budget)
            return FileSpan(position, length, inode) if length else None

        span = following(state.position)
        parsed = self._ahead.parsed(span, following, left=size - state.position) if span else None
        if span is None or parsed is None:
            return state
        self._insert(parsed.lines, first=state.rows + 1, line=state.newlines)
        position = span.position + span.length
        seen = file_fingerprint(file, position)
        state = replace(
            state,
            position=position,
            newlines=state.newlines + parsed.newlines,
            rows=state.rows + len(parsed.lines),
            unreadable=state.unreadable + parsed.unreadable,
            inode=seen.inode,
            head=seen.head,
            tail=seen.tail,
            audit=audit,
        )
        write_state(self._database, state)
        return state

    def _insert(self, lines: list[IndexedLine], *, first: int, line: int) -> None:
        if not lines:
            return
        for each in lines if self._rules else ():
            if line + each.line in self._rules:
                each.own[AUDIT_COLUMN] = self._rules[line + each.line]
        facts = self._columns({name: None for each in lines for name in each.own})
        # The first fact is about the length of the line, which is not among the fixed columns.
        own = [fact.name for fact in facts[len(FIXED_COLUMNS) + 1 :]]
        rows = [
            (number, each.offset, each.length, line + each.line, each.content, *each.fixed, *map(each.own.get, own))
            for number, each in enumerate(lines, first)
        ]
        marks = ", ".join("?" * len(rows[0]))
        self._database.executemany(f"INSERT INTO rollouts VALUES ({marks})", rows)  # noqa: S608 - question marks only
        self._database.executemany(
            "INSERT INTO previews VALUES (?, ?, ?)",
            [(number, each.question, each.answer) for number, each in enumerate(lines, first)],
        )
        _, _, lengths, _, _, *values = zip(*rows, strict=True)
        for fact, column in zip(facts, (lengths, *values), strict=True):
            fact.add(column)
        saved = [(fact.name, fact.field, fact.saved()) for fact in facts]
        self._database.executemany("INSERT OR REPLACE INTO columns VALUES (?, ?, ?)", saved)

    def _columns(self, own: Mapping[str, Any]) -> list[ColumnFacts]:
        """The facts about all columns in the order of the table (the length first), including new columns."""
        facts = {fact.field: fact for fact in read_columns(self._database)}
        fixed = [
            facts.get(field) or ColumnFacts.new(name, field)
            for name, field in (("bytes", "length"), *zip(FIXED_COLUMNS, FIXED_COLUMNS, strict=True))
        ]
        ours = {*FIXED_COLUMNS, *LINE_COLUMNS, *MARKED}
        known = {fact.name: fact for field, fact in facts.items() if field not in ours}
        for name in own:
            if name not in known and len(known) < MOST_COLUMNS:
                known[name] = ColumnFacts.new(name, f"f{len(known)}")
                self._database.execute(f"ALTER TABLE rollouts ADD COLUMN {known[name].field}")
        # By their numbers, which is the order of the table's columns: rows are inserted without naming them.
        return [*fixed, *sorted(known.values(), key=lambda fact: int(fact.field[1:]))]

    # ---- text ----------------------------------------------------------------------------------------------------

    def _unsearchable(self, budget: int) -> list[tuple[int, int, int]]:
        rows, total = [], 0
        query = "SELECT row, offset, length FROM rollouts WHERE row > ? ORDER BY row"
        for row in self._database.execute(query, (self.state.text_rows,)):
            rows.append(row)
            total += row[2]
            if total >= budget:
                break
        return rows

    def _texts(self, rows: list[tuple[int, int, int]]) -> Iterator[tuple[int, str]]:
        with open_raw_lines(self._path) as file:
            for row, offset, length in rows:
                try:
                    yield row, fold(searchable_text(Record.parse(read_span(file, length, offset)).fields))
                except ValueError:  # the file was replaced meanwhile: the next step notices
                    yield row, ""


def _version_of(path: Path) -> str:
    """Stands for the content of a file beside the rollouts; empty if there is none."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def read_columns(database: sqlite3.Connection) -> list[ColumnFacts]:
    """The facts about all columns."""
    query = "SELECT name, field, json FROM columns"
    return [replace(ColumnFacts.read(text), name=name, field=field) for name, field, text in database.execute(query)]


def _describes(state: State, file: LineFile, size: int) -> bool:
    if size < state.position:
        return False
    seen = file_fingerprint(file, state.position)
    return state.position == 0 or (seen.inode, seen.head, seen.tail) == (state.inode, state.head, state.tail)
