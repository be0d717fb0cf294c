"""What the model may write: text, JSON that fits a schema, or calls of the tools it was offered.

llguidance does the work. It runs inside the engine, and its Python package runs here, because the engine ignores a
grammar that it cannot compile or follow: it then generates unconstrained text and reports nothing. So a grammar is
compiled here first, and every completion is checked against it afterwards.

Schemas are enforced exactly or refused with :class:`SchemaError`, never enforced in part.
"""

import importlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from responses_api_models.local_model.tool_calls import CLOSE, OPEN, Tool

if TYPE_CHECKING:
    from llguidance import LLMatcher

Choice = Literal["auto", "required"]

# Forbidden in text, because a model that has seen tool results would otherwise make up its own.
RESERVED: Final = "<tool"
NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
# JSON as ``json.dumps`` writes it, which is how calls are shown to the model.
LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# llguidance refuses every other format, although ``format`` promises nothing.
FORMATS: Final = frozenset(
    {"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
# Lists of distinct values are enumerated, and up to 2 ** 6 of them still make a small grammar.
MAX_DISTINCT: Final = 6
BYTE_MASK: Final = 256 // 8  # bytes of a mask that stand for text; the rest are about special tokens
# What may stand beside ``uniqueItems`` in a list that is written out.
LIST_KEYWORDS: Final = frozenset({"type", "items", "minItems", "maxItems", "uniqueItems", "title", "description"})


class SchemaError(ValueError):
    """A schema that no grammar can enforce; the message names its owner and the reason."""


@dataclass(frozen=True)
class CompletionGrammar:
    """A compiled grammar."""

    text: str
    _start: "LLMatcher"

    def for_engine(self, end_token: int | None) -> str:
        """Write the grammar with the token that ends a completion.

        By itself llguidance would allow a single token there, which with some models is not the one that their template
        ends a completion with. The model would be made to write, and later be trained on, a token it never writes.
        """
        if end_token is None:
            return self.text
        return self.text.replace("start: answer\n", f"start: answer <[{end_token}]>?\n", 1)

    def accepts(self, completion: str, *, cut_off: bool) -> bool:
        """Whether the completion, or one that begins with it if it was cut off, follows the grammar."""
        matcher = self._start.deep_copy()
        tokens = list(completion.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and (cut_off or matcher.is_accepting())


def completion_grammar(
    tools: Sequence[Tool], *, mode: Choice = "auto", max_calls: int = 1, schema: Any = None
) -> CompletionGrammar:
    """Build the grammar of completions: calls of these tools, or with ``auto`` also text, which a schema makes JSON."""
    rules: dict[str, str] = {}
    calls = _calls(rules, tools, max_calls) if tools else ""
    if mode == "required":
        start = f"{_quoted(OPEN)} {calls}"
    elif schema is not None:
        rules["json"] = _json_rule(schema, "response format")
        start = f"json | {_quoted(OPEN)} {calls}" if tools else "json"
    else:
        # Text and the start of a call are one terminal. As separate terminals, text would consume the first "<".
        rules["PLAIN"] = f"/(?s:.+)/ & ~/(?s:.*{RESERVED}.*)/"
        rules["TEXT"] = "PLAIN"
        rules["OPENED"] = f"PLAIN? {_quoted(OPEN)}"
        start = f"TEXT | OPENED {calls}" if tools else "TEXT"
    return _compile({"start": "answer", "answer": start, **rules})


def _calls(rules: dict[str, str], tools: Sequence[Tool], max_calls: int) -> str:
    """Add the rules of calls; the first call's opening tag is left to the caller."""
    names = []
    for number, tool in enumerate(tools):
        name = f"call_{number}"
        opening = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
        rules[name] = f"{_quoted(opening)} arguments_{number} {_quoted('}' + CLOSE)}"
        rules[f"arguments_{number}"] = _json_rule(_arguments(tool.parameters), tool.name)
        names.append(name)
    rules["call"] = " | ".join(names)
    if max_calls == 1:
        return "call"
    return f"call ({_quoted(chr(10) + OPEN)} call){{0,{max_calls - 1}}}"


def _arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the parameters of a tool. Any object would match ``properties: {}``, but it means that there are none."""
    if not schema or (not schema.get("properties") and not schema.keys() - {"type", "properties", "required", "title"}):
        return NO_ARGUMENTS
    if not {"type", "$ref", "allOf", "anyOf", "oneOf"} & schema.keys():
        return {"type": "object", **schema}
    return schema


def _json_rule(schema: Any, where: str) -> str:
    """Write the rule for a schema, after compiling it separately so that an error can name its owner."""
    adapted = _adapted(schema, closes=not any(map(_conjoins, _subschemas(schema))))
    if isinstance(adapted, Mapping):
        adapted = {**adapted, "x-guidance": LAYOUT}
    rule = f"%json {json.dumps(adapted)}"
    _compile({"start": rule}, where)
    return rule


def _compile(rules: Mapping[str, str], where: str = "grammar") -> CompletionGrammar:
    # The engine recognises llguidance's grammars by their first line.
    text = "%llguidance {}\n" + "\n".join(f"{name}: {body}" for name, body in rules.items())
    start = matcher(text)
    if start.is_error():
        raise SchemaError(f"{where}: {_reason(start.get_error())}")
    if not start.is_accepting() and not any(start.compute_bitmask()[:BYTE_MASK]):
        raise SchemaError(f"{where}: no value fits")
    return CompletionGrammar(text, start)


def matcher(grammar: str) -> "LLMatcher":
    """Compile a grammar for text that arrives byte by byte."""
    llguidance = importlib.import_module("llguidance")  # an extra
    found: LLMatcher = llguidance.LLMatcher(byte_tokenizer(), grammar)
    return found


@cache
def byte_tokenizer() -> Any:
    """The tokenizer whose tokens are the 256 bytes."""
    return importlib.import_module("llguidance").LLTokenizer("byte")


def _reason(error: str) -> str:
    """Shorten llguidance's message, which repeats the grammar, to the reason that it begins with."""
    _, _, reason = error.splitlines()[0].partition("failed to compile JSON schema: ")
    return reason or error.splitlines()[0]


def _quoted(text: str) -> str:
    return json.dumps(text)


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every object inside a schema, the schema itself included."""
    if isinstance(schema, Mapping):
        yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from _subschemas(inner)


def _conjoins(schema: Mapping[str, Any]) -> bool:
    """Whether properties of several schemas come together in one object, so that none may be closed by itself."""
    combined = {"allOf", "anyOf", "oneOf", "$ref"} & schema.keys()
    parts = schema.get("allOf")
    return bool(combined and "properties" in schema) or (isinstance(parts, list) and len(parts) > 1)


def _adapted(schema: Any, *, closes: bool) -> Any:
    """Rewrite keywords that llguidance does not support in terms of others, and drop those that restrict nothing."""
    if isinstance(schema, list):
        return [_adapted(inner, closes=closes) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    # Values are data, in which a key such as "format" means nothing.
    found = {
        name: inner if name in ("enum", "const", "default", "examples") else _adapted(inner, closes=closes)
        for name, inner in schema.items()
    }
    if isinstance(found.get("format"), str) and found["format"] not in FORMATS:
        del found["format"]
    if isinstance(found.get("properties"), Mapping) and isinstance(found.get("type", "object"), str):
        found.setdefault("type", "object")
        # A schema that lists properties is meant to be complete; a small model would invent others.
        if closes and not {"additionalProperties", "patternProperties"} & found.keys() and found["properties"]:
            found["additionalProperties"] = False
    names = found.get("propertyNames")
    if (
        isinstance(names, Mapping)
        and names.keys() == {"pattern"}
        and not {"properties", "patternProperties"} & found.keys()
    ):
        del found["propertyNames"]
        found["patternProperties"] = {names["pattern"]: found.get("additionalProperties", True)}
        found["additionalProperties"] = False
    return _distinct_items(found)


def _distinct_items(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("uniqueItems") is False or schema.get("maxItems", 2) in (0, 1):
        return {name: value for name, value in schema.items() if name != "uniqueItems"}
    items = schema.get("items")
    listed = items["enum"] if isinstance(items, Mapping) and items.keys() == {"enum"} else None
    if not schema.get("uniqueItems") or not isinstance(listed, list) or schema.keys() - LIST_KEYWORDS:
        return schema
    values = list({json.dumps(value): value for value in listed}.values())
    if len(values) > MAX_DISTINCT:
        return schema
    counts = range(schema.get("minItems", 0), min(schema.get("maxItems", len(values)), len(values)) + 1)
    return {"enum": [list(chosen) for count in counts for chosen in itertools.combinations(values, count)]}
