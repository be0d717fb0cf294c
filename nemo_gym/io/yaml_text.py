"""Reads YAML that somebody else may have written: plain data only, within limits that no honest file comes near.

A few lines of aliases can stand for billions of values, brackets can be nested deeper than any parser recurses, and
Python refuses to convert very long numbers. All of that is found before anything is built, in one pass over the events
of the file, and reported like any other mistake in it.
"""

import re
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 100
MAX_ALIASED: Final = 100_000  # values that all aliases of a file stand for together
MAX_DIGITS: Final = 4_000  # of a number; Python refuses to convert 4,300
# libyaml is many times faster, but an optional part of PyYAML.
_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_LONG_NUMBER: Final = re.compile(rf"[-+]?[0-9][0-9_]{{{MAX_DIGITS},}}")


def read_yaml(text: str) -> Any:
    """The data of a document. What is wrong with it is a ``yaml.YAMLError``."""
    check_yaml(text)
    return yaml.safe_load(text)


def check_yaml(text: str) -> type[yaml.Event] | None:
    """Refuse what exceeds a limit; the event that the content begins with, None if there is none or it is malformed."""
    first: type[yaml.Event] | None = None
    sizes = _Sizes()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            sizes.add(event)
            if first is None and isinstance(event, yaml.NodeEvent):
                first = type(event)
    except YamlLimitError:
        raise
    except yaml.YAMLError:  # whoever builds the data reports it, in words that do not depend on libyaml
        return None
    return first


class YamlLimitError(yaml.MarkedYAMLError):
    """A document exceeds a limit."""


class _Sizes:
    """Counts what the nodes of a document hold with all aliases followed."""

    def __init__(self) -> None:
        self._open: list[tuple[str | None, int]] = []  # the anchor of each open node, and the count before it
        self._anchored: dict[str, int] = {}
        self._count = self._aliased = 0

    def add(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._add_alias(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._count))
            self._count += 1
            if len(self._open) > MAX_DEPTH:
                raise _refusal(event, f"more than {MAX_DEPTH} levels of nesting")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            self._remember(anchor, self._count - before)
        elif isinstance(event, yaml.ScalarEvent):
            self._count += 1
            self._remember(event.anchor, 1)
            if event.implicit[0] and _LONG_NUMBER.fullmatch(event.value):
                raise _refusal(event, f"a number of more than {MAX_DIGITS} digits")

    def _remember(self, anchor: str | None, size: int) -> None:
        if anchor is not None:
            self._anchored[anchor] = size

    def _add_alias(self, event: yaml.AliasEvent) -> None:
        if any(anchor == event.anchor for anchor, _ in self._open):
            raise _refusal(event, "an alias inside the value that it stands for")
        size = self._anchored.get(event.anchor or "", 1)  # the parser itself reports one that is not defined
        self._count += size
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            raise _refusal(event, f"aliases that stand for more than {MAX_ALIASED} values")


def _refusal(event: yaml.Event, problem: str) -> YamlLimitError:
    return YamlLimitError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]  # libyaml's
