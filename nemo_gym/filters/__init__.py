"""Filters over rollouts: a small language that people type, shared by the viewer and the exporters.

    reward < 0.5 and tool_calls > 3
    agent in ["math", "code"] and not (failure is null)
    question contains "weather" or judge.score >= 0.8

A filter is parsed, never evaluated as a program. It becomes a condition in SQL for an index, or a test of a record;
both give the same result (a property test compares them). Errors name the position and what was expected there.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nemo_gym.errors import did_you_mean
from nemo_gym.filters.columns import record_fields
from nemo_gym.filters.parser import parse
from nemo_gym.filters.sql import Columns, Sql, to_sql
from nemo_gym.filters.syntax import Fields, FilterError, Node, Test, columns_in, to_test
from nemo_gym.schemas.record import Record

__all__ = ["Filter", "FilterError", "parse_filter"]


@dataclass(frozen=True)
class Filter:
    """A parsed filter. The empty filter matches everything."""

    text: str
    node: Node | None

    def __bool__(self) -> bool:
        return self.node is not None

    @cached_property
    def test(self) -> Test:
        """A function that tests the fields of a record, as returned by ``record_fields``."""
        return to_test(self.node) if self.node is not None else lambda _: True

    def matches(self, record: Record, **more: Any) -> bool:
        """Whether a record matches; ``more`` are columns that are not in the record, such as its file."""
        fields: Fields = {**record_fields(record), **more}
        return self.node is None or self.test(fields)

    def sql(self, columns: Columns) -> Sql:
        """The condition for a database that has these columns."""
        return to_sql(self.node, columns) if self.node is not None else Sql("1")

    @property
    def columns(self) -> list[str]:
        return [] if self.node is None else list(dict.fromkeys(column.name for column in columns_in(self.node)))


def parse_filter(text: str, columns: Collection[str] | None = None) -> Filter:
    """Read a filter. With ``columns``, an unknown name is an error that suggests the nearest one."""
    node = parse(text)
    for column in columns_in(node) if node is not None and columns is not None else ():
        if column.name not in (columns or ()):
            hint = did_you_mean(column.name, columns or (), available="columns are")
            raise FilterError(f"no column '{column.name}'", position=column.position, hint=hint)
    return Filter(text, node)
