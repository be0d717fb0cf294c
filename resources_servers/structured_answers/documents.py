"""Text in JSON, YAML, XML, CSV or TOML, as one JSON value.

Nothing here trusts the text: its size, its depth and the number of its parts are limited, and what YAML and XML can
use to multiply themselves (aliases, entities) is refused. XML and CSV have no types; those are read from the schema
afterwards.
"""

import csv
import io
import itertools
import json
import math
import re
import tomllib
import xml.parsers.expat
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import orjson
import yaml

Format: TypeAlias = Literal["json", "yaml", "xml", "csv", "toml"]

MAX_TEXT: Final = 80_000
MAX_DEPTH: Final = 100
MAX_YAML_EVENTS: Final = 4_000
MAX_CSV_ROWS: Final = 2_000
# The parser takes quadratic time for dotted keys.
MAX_TOML: Final = 4_000
_FENCE: Final = re.compile(r"\A\s*```[A-Za-z]*[ \t]*\n(.*)\n[ \t]*```\s*\Z", re.DOTALL)
# The parser of libyaml where there is one: ten times as fast.
_YAML_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(ValueError):
    """The text is not a document of the format, or too large."""


def parse(text: str, kind: Format) -> Any:
    """The value of a document; ``DocumentError`` says why there is none."""
    if len(text) > MAX_TEXT:
        raise DocumentError(f"longer than {MAX_TEXT} characters")
    return _PARSERS[kind](text)


def without_fence(text: str) -> str:
    """The inside of a code fence, if the text is one and nothing else."""
    found = _FENCE.match(text)
    return found[1] if found else text


def _json(text: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DocumentError(f"not JSON: {error}") from None
    _check_depth(value)
    # Of a key that occurs twice, one value would be a second answer that nobody sees.
    json.loads(text, object_pairs_hook=_object, parse_int=str, parse_float=str)
    return value


def _toml(text: str) -> Any:
    if len(text) > MAX_TOML:
        raise DocumentError(f"longer than {MAX_TOML} characters")
    # Each part of a dotted key is a level of nesting, which has to be limited before it is parsed.
    if any(line.partition("=")[0].count(".") > MAX_DEPTH for line in text.splitlines()):
        raise DocumentError(f"nested deeper than {MAX_DEPTH}")
    try:
        # Dates have no counterpart in JSON but text.
        value = orjson.loads(orjson.dumps(tomllib.loads(text, parse_float=_finite)))
    except (tomllib.TOMLDecodeError, orjson.JSONEncodeError, RecursionError) as error:
        raise DocumentError(f"not TOML: {error}") from None
    _check_depth(value)
    return value


def _finite(text: str | float) -> float:
    """A number that JSON has as well."""
    number = float(text)
    if not math.isfinite(number):
        raise DocumentError("infinities and NaN are not accepted")
    return number


def _object(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise DocumentError(f"the key {key[:60]!r} occurs twice")
        seen.add(key)


def _csv(text: str) -> list[dict[str, str]]:
    try:
        reader = (row for row in csv.reader(io.StringIO(text.strip()), strict=True) if row)
        rows = list(itertools.islice(reader, MAX_CSV_ROWS + 1))
    except csv.Error as error:
        raise DocumentError(f"not CSV: {error}") from None
    if not rows:
        raise DocumentError("no header")
    if len(rows) > MAX_CSV_ROWS:
        raise DocumentError(f"more than {MAX_CSV_ROWS} rows")
    header, *records = rows
    if len(set(header)) < len(header):
        raise DocumentError("a column occurs twice")
    for number, record in enumerate(records, start=2):
        if len(record) != len(header):
            raise DocumentError(f"row {number} has {len(record)} cells, the header {len(header)}")
    return [dict(zip(header, record, strict=True)) for record in records]


def _yaml(text: str) -> Any:
    """Built from the parser's events, without recursion; an alias, a tag or too many events end it."""
    builder = _YamlBuilder()
    try:
        for event in yaml.parse(text, Loader=_YAML_LOADER):
            builder.add(event)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        raise DocumentError(f"not YAML: {problem}") from None
    return builder.value()


class _YamlBuilder:
    def __init__(self) -> None:
        self._resolver: Any = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()
        self._stack: list[tuple[bool, list[Any]]] = [(False, [])]  # is it a mapping, and its parts so far
        self._events = 0

    def add(self, event: Any) -> None:
        self._events += 1
        if self._events > MAX_YAML_EVENTS:
            raise DocumentError(f"more than {MAX_YAML_EVENTS} parts")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise DocumentError("anchors and aliases are not accepted")
        if getattr(event, "tag", None) is not None:
            raise DocumentError("tags are not accepted")
        if isinstance(event, yaml.ScalarEvent):
            self._stack[-1][1].append(self._scalar(event))
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            if len(self._stack) > MAX_DEPTH:
                raise DocumentError(f"nested deeper than {MAX_DEPTH}")
            self._stack.append((isinstance(event, yaml.MappingStartEvent), []))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            is_mapping, parts = self._stack.pop()
            self._stack[-1][1].append(_mapping(parts) if is_mapping else parts)

    def value(self) -> Any:
        documents = self._stack[0][1]
        if len(documents) != 1:
            raise DocumentError(f"{len(documents)} documents instead of one")
        return documents[0]

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        name = tag.rpartition(":")[2]
        if name not in {"int", "float", "bool", "null"}:
            return event.value
        if len(event.value) > 64:  # int() of thousands of digits is slow
            raise DocumentError("a number of more than 64 characters")
        try:
            value = self._constructor.construct_object(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, yaml.YAMLError) as error:
            raise DocumentError(f"not YAML: {error}") from None
        return _finite(value) if isinstance(value, float) else value


def _mapping(parts: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        name = key if isinstance(key, str) else orjson.dumps(key).decode()
        if name in made:
            raise DocumentError(f"the key {name[:60]!r} occurs twice")
        made[name] = value
    return made


def _xml(text: str) -> Any:
    """Elements become objects, repeated ones lists, attributes ``@name``; text beside either of them is ``#text``."""
    builder = _XmlBuilder()
    parser = xml.parsers.expat.ParserCreate()
    parser.StartDoctypeDeclHandler = builder.doctype  # entities are declared there
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.buffer_text = True
    try:
        parser.Parse(text.strip(), True)
    except xml.parsers.expat.ExpatError as error:
        raise DocumentError(f"not XML: {error}") from None
    return builder.root


class _XmlBuilder:
    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self._open: list[tuple[str, dict[str, Any], list[str]]] = []

    def doctype(self, *_: Any) -> None:
        raise DocumentError("a document type is not accepted")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise DocumentError(f"nested deeper than {MAX_DEPTH}")
        self._open.append((name, {f"@{key}": value for key, value in attributes.items()}, []))

    def text(self, data: str) -> None:
        if self._open:
            self._open[-1][2].append(data)

    def end(self, _name: str) -> None:
        name, children, texts = self._open.pop()
        text = "".join(texts).strip()
        if text and children:
            children["#text"] = text
        value: Any = children or (text or None)
        parent = self._open[-1][1] if self._open else self.root
        if name not in parent:
            parent[name] = value
        elif isinstance(parent[name], list):
            parent[name].append(value)
        else:
            parent[name] = [parent[name], value]


def _check_depth(value: Any) -> None:
    # Level by level, because recursion would fail on the very values that this is to find.
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise DocumentError(f"nested deeper than {MAX_DEPTH}")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (child for child in value.values() if isinstance(child, dict | list))
    elif isinstance(value, list):
        yield from (child for child in value if isinstance(child, dict | list))


_PARSERS: Final[Mapping[Format, Callable[[str], Any]]] = {
    "json": _json,
    "yaml": _yaml,
    "xml": _xml,
    "csv": _csv,
    "toml": _toml,
}
