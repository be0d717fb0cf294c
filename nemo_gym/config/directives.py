"""Inheritance inside a merged configuration: ``_inherit_from``, ``_copy``, ``_delete_key``.

Works on plain, unresolved data and never changes its input. Sources are always looked up in the data as it was before
any directive ran, but a source that itself has directives is expanded first, so chains work in any order.

    {_inherit_from: a.b, x: 1}     the block at a.b with x set on top; a.b itself is removed
    {_copy: a.b, x: 1}             the same, but a.b stays
    {_delete_key: "x, y"}          the block without x and y, whether they are its own or inherited

The short forms ``${inherit_from:a.b}`` and ``${copy:a.b}`` are rewritten to the long ones before files are merged,
so that a later file can put keys on top of them.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.config.keys import COPY, DELETE_KEY, INHERIT_FROM, MISSING
from nemo_gym.config.locate import Locator, segments
from nemo_gym.errors import ConfigError, DeleteKeyNotFoundError, InheritPathNotFoundError, did_you_mean

# The path itself may contain interpolations, which have braces too.
_SHORT_FORM: Final = re.compile(r"^\$\{\s*(inherit_from|copy)\s*:\s*([^{}]+?|.*\$\{.*\}.*?)\s*\}$")
_EMBEDDED: Final = re.compile(r"\$\{\s*(inherit_from|copy)\s*:")
_DIRECTIVES: Final = frozenset({INHERIT_FROM, COPY, DELETE_KEY})
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Expanded:
    """A configuration with its directives carried out, and where each moved block went."""

    data: dict[Any, Any]
    moved: Mapping[str, list[str]]


def expand_short_forms(data: Any) -> Any:
    """Rewrite ``${inherit_from:path}`` and ``${copy:path}`` to ``{_inherit_from: path}`` and ``{_copy: path}``."""
    if isinstance(data, dict):
        return {key: expand_short_forms(value) for key, value in data.items()}
    if isinstance(data, list):
        return [expand_short_forms(value) for value in data]
    if isinstance(data, str) and (short := _SHORT_FORM.match(data)):
        return {f"_{short[1]}": short[2].strip("'\"")}
    return data


def expand(data: dict[Any, Any], *, locator: Locator, interpolate: Callable[[str], str] = str) -> Expanded:
    """Apply all directives. ``interpolate`` resolves ``${...}`` in the path of a source."""
    run = _Expansion(data, locator, interpolate)
    result = run.expand(data, "")
    if not isinstance(result, dict):
        raise ConfigError("the top level inherits something that is not a mapping", hint=f"correct '{INHERIT_FROM}'")
    # Only now, because several blocks may inherit from the same source.
    for path in run.moved:
        _remove(result, segments(path))
    return Expanded(result, run.moved)


@dataclass(slots=True)
class _Expansion:
    snapshot: dict[Any, Any]
    locator: Locator
    interpolate: Callable[[str], str]
    moved: dict[str, list[str]] = field(default_factory=dict)
    active: list[str] = field(default_factory=list)

    def expand(self, value: Any, key: str, below: Any = _ABSENT) -> Any:
        """The value at ``key`` with its directives carried out, merged onto the inherited value ``below``."""
        if isinstance(value, dict):
            return self._mapping(value, key, below)
        if isinstance(value, list):
            return [self.expand(item, f"{key}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, str) and _EMBEDDED.search(value):
            raise ConfigError(
                f"{self.locator.at(key)}'{key}' mixes ${{inherit_from:...}} or ${{copy:...}} with other text",
                hint="make it the whole value, or use a plain ${...}",
            )
        return below if value == MISSING and below is not _ABSENT else value

    def _mapping(self, value: dict[Any, Any], key: str, below: Any) -> Any:
        own = {name: child for name, child in value.items() if name not in _DIRECTIVES}
        source = self._source(value, key)
        if source == MISSING:
            return MISSING
        base = below if source is _ABSENT else merge(below, source)
        if source is not _ABSENT and not isinstance(source, dict):
            return self._scalar(source, own, key)
        inherited = base if isinstance(base, dict) else {}
        result = dict(inherited)
        for name, child in own.items():
            result[name] = self.expand(child, f"{key}.{name}" if key else str(name), inherited.get(name, _ABSENT))
        self._delete(result, value.get(DELETE_KEY), key)
        return result

    def _scalar(self, source: Any, own: dict[Any, Any], key: str) -> Any:
        if own:
            raise ConfigError(
                f"{self.locator.at(key)}'{key or '(top level)'}' inherits a plain value and can't add keys to it",
                hint=f"remove {', '.join(map(repr, own))}, or inherit a mapping",
            )
        return source

    def _delete(self, result: dict[Any, Any], names: Any, key: str) -> None:
        for name in _names(names):
            if name not in result:
                place = f"{key}.{DELETE_KEY}" if key else DELETE_KEY
                raise DeleteKeyNotFoundError(
                    f"{self.locator.at(place)}'{place}' names '{name}', which is neither defined here nor inherited. "
                    + did_you_mean(name, map(str, result), available="Available"),
                    hint=f"remove '{name}' from '{DELETE_KEY}' or correct its name",
                )
            del result[name]

    def _source(self, value: dict[Any, Any], key: str) -> Any:
        """The expanded value that a mapping's directive inherits; absent if the mapping has no directive."""
        given = [name for name in (INHERIT_FROM, COPY) if name in value]
        if not given:
            return _ABSENT
        if len(given) > 1:
            raise ConfigError(
                f"{self.locator.at(key)}'{key}' has both '{INHERIT_FROM}' and '{COPY}'", hint="keep one of them"
            )
        path = self._path(value[given[0]], f"{key}.{given[0]}" if key else given[0])
        if given[0] == INHERIT_FROM and key not in self.moved.setdefault(path, []):
            self.moved[path].append(key)
        # The sources that are being expanded form a stack; meeting one of them again would never end.
        if path in self.active:
            circle = " -> ".join([*self.active[self.active.index(path) :], path])
            raise ConfigError(f"{self.locator.at(key)}'{key}' inherits from itself: {circle}", hint="break the circle")
        self.active.append(path)
        found = self._find(path, f"{key}.{given[0]}" if key else given[0])
        self.active.pop()
        return found

    def _path(self, path: Any, key: str) -> str:
        if not isinstance(path, str) or not segments(path):
            raise ConfigError(
                f"{self.locator.at(key)}'{key}' must be the dotted path of another key", hint=f"as in '{key}: a.b.c'"
            )
        return ".".join(segments(self.interpolate(path) if "${" in path else path))

    def _find(self, path: str, key: str) -> Any:
        node: Any = self.snapshot
        seen: list[str] = []
        for segment in segments(path):
            # The top level is left as it is: expanding it would expand the directive that is being resolved.
            if seen and isinstance(node, dict) and not _DIRECTIVES.isdisjoint(node):
                node = self.expand(node, ".".join(seen))
            if isinstance(node, dict) and segment in node:
                node = node[segment]
            elif isinstance(node, list) and segment.isdigit() and int(segment) < len(node):
                node = node[int(segment)]
            else:
                raise self._not_found(path, key, seen, node)
            seen.append(segment)
        # Several blocks may inherit the same source, and each is changed on its own later.
        return copy.deepcopy(self.expand(node, path))

    def _not_found(self, path: str, key: str, seen: list[str], node: Any) -> InheritPathNotFoundError:
        known = [".".join([*seen, str(name)]) for name in node] if isinstance(node, dict) else []
        wanted = ".".join(segments(path)[: len(seen) + 1])
        return InheritPathNotFoundError(
            f"{self.locator.at(key)}'{key}' names '{path}', but there is no '{wanted}' in the configuration. "
            + did_you_mean(wanted, known, available="Available"),
            hint="correct the path, or add the file that defines it to config_paths",
        )


def merge(below: Any, above: Any) -> Any:
    """Deep merge of plain data: mappings are combined, anything else is replaced, and ``???`` replaces nothing."""
    if below is _ABSENT or not (isinstance(below, dict) and isinstance(above, dict)):
        return below if above == MISSING and below is not _ABSENT else above
    return below | {name: merge(below.get(name, _ABSENT), value) for name, value in above.items()}


def _names(value: Any) -> list[str]:
    names = value if isinstance(value, list) else str(value).split(",") if value is not None else []
    return [stripped for name in names if (stripped := str(name).strip())]


def _remove(data: Any, path: list[str]) -> None:
    for segment in path[:-1]:
        data = data.get(segment) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop(path[-1], None)
