"""The databases and questions of ``questions.yaml``."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

FILE: Final = Path(__file__).with_name("questions.yaml")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table and the values that its rows draw from."""

    name: str
    kind: str
    values: list[Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its ``id`` counts by itself."""

    name: str
    columns: list[Column]

    def ddl(self) -> str:
        """The statement that creates it."""
        columns = ["id INTEGER PRIMARY KEY", *(f"{column.name} {column.kind}" for column in self.columns)]
        return f"CREATE TABLE {self.name} ({', '.join(columns)});"

    def rows(self, rng: Random, count: int) -> str:
        """The statement that fills it."""
        drawn = [[number, *(rng.choice(column.values) for column in self.columns)] for number in range(1, count + 1)]
        values = ", ".join(f"({', '.join(map(_literal, row))})" for row in drawn)
        return f"INSERT INTO {self.name} VALUES {values};"  # noqa: S608 - the values are those of the file


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a database and the query that answers it; both have the same blanks."""

    level: int
    text: str
    query: str
    blanks: dict[str, list[Any]]
    ordered: bool


@dataclass(frozen=True, slots=True)
class Domain:
    """A few tables and questions about them."""

    tables: list[Table]
    questions: list[Question]

    def ddl(self) -> str:
        """The schema, as the model sees it."""
        return "\n".join(table.ddl() for table in self.tables)

    def database(self, rng: Random) -> str:
        """The schema and some rows."""
        return self.ddl() + "\n" + "\n".join(table.rows(rng, rng.randint(8, 14)) for table in self.tables)


def load_domains(file: Path = FILE) -> list[Domain]:
    """All domains of the file."""
    content = yaml.safe_load(file.read_text("utf-8"))
    lists = {name: _values(values, {}) for name, values in content["lists"].items()}
    return [_domain(domain, lists) for domain in content["domains"].values()]


def _domain(content: dict[str, Any], lists: dict[str, list[Any]]) -> Domain:
    tables = [
        Table(name, [Column(column, kind, _values(values, lists)) for column, (kind, values) in columns.items()])
        for name, columns in content["tables"].items()
    ]
    questions = [
        Question(
            level=each["level"],
            text=each["text"],
            query=each["query"],
            blanks={name: _values(values, lists) for name, values in each["blanks"].items()},
            ordered=each.get("ordered", False),
        )
        for each in content["questions"]
    ]
    return Domain(tables, questions)


def _values(written: Any, lists: dict[str, list[Any]]) -> list[Any]:
    if isinstance(written, str):
        return lists[written]
    if isinstance(written, dict):
        return list(range(written["from"], written["to"], written["step"]))
    return list(written)


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else "NULL" if value is None else str(value)
