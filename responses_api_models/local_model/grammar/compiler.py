"""Compiles the schemas of one document into rules of a grammar. Pure.

Equal schemas share a rule, which is what makes recursive schemas end. Objects are left to
:mod:`~responses_api_models.local_model.grammar.object_schemas`.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from responses_api_models.local_model.grammar.algebra import Document
from responses_api_models.local_model.grammar.arrays import ArrayShape, arrays, subsets
from responses_api_models.local_model.grammar.gbnf import NOTHING, Literal, Node, Ref, choice
from responses_api_models.local_model.grammar.json_numbers import NUMBER, integers, multiples, numbers
from responses_api_models.local_model.grammar.json_strings import STRING, literal, quoted, strings
from responses_api_models.local_model.grammar.keywords import Plain, Schema, SchemaError
from responses_api_models.local_model.grammar.object_schemas import object_shape
from responses_api_models.local_model.grammar.objects import ObjectShape, objects
from responses_api_models.local_model.grammar.patterns import PatternError, pattern_text
from responses_api_models.local_model.grammar.values import admits, bounds_of, distinct, is_listed, types_of

MAX_DEPTH: Final = 64
# How deep a value may be about which the schema says nothing.
FREE_DEPTH: Final = 3
_DATE: Final = r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])"
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ"
_OCTET: Final = r"([1-9]?\d|1\d\d|2[0-4]\d|25[0-5])"
# ``format`` promises nothing, but a model that is asked for a date should write one.
FORMATS: Final = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "email": r"^[a-z0-9]([a-z0-9._-]{0,30}[a-z0-9])?@[a-z0-9]{1,30}(\.[a-z0-9]{1,30}){0,2}\.[a-z]{2,6}$",
    "uuid": r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
    "ipv4": rf"^({_OCTET}\.){{3}}{_OCTET}$",
    "uri": r"^https?://[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?(/[A-Za-z0-9._~/-]{0,200})?$",
}


class SchemaCompiler:
    """Turns the schemas of one document into nodes; new rules go into ``rules``."""

    def __init__(self, rules: dict[str, Node], define: Callable[[Node], Ref], root: Schema) -> None:
        self.rules = rules
        self.define = define
        self.document = Document(root)
        self._known: dict[str, Ref] = {}
        self._depth = 0

    def node(self, schema: Schema, where: str) -> Node:
        """A node for the values that fit the schema."""
        key = json.dumps(schema)
        if key not in self._known:
            if self._depth > MAX_DEPTH:
                raise SchemaError(where, f"nested more than {MAX_DEPTH} levels deep")
            # Known before it is compiled: a schema may contain itself.
            self._known[key] = rule = self.define(NOTHING)
            self._depth += 1
            self.rules[rule.name] = self._compile(schema, where)
            self._depth -= 1
        return self._known[key]

    def free(self, depth: int = FREE_DEPTH) -> Node:
        """Any value, down to a depth."""
        name = f"free-{depth}"
        if name not in self.rules:
            options: list[Node | str] = [STRING, NUMBER, "true", "false", "null"]
            if depth:
                inner = self.free(depth - 1)
                options += [arrays(ArrayShape((), inner)), objects(ObjectShape((), STRING, inner), self.define)]
            self.rules[name] = choice(options)
        return Ref(name)

    def _compile(self, schema: Schema, where: str) -> Node:
        return choice(self._plain(plain, where) for plain in self.document.alternatives(schema, where))

    def _plain(self, plain: Plain, where: str) -> Node:
        if not plain:
            return self.free()
        try:
            if is_listed(plain):
                return choice(literal(value) for value in distinct(plain["enum"]) if admits(plain, value))
            return choice(self._typed(plain, name, where) for name in types_of(plain))
        except (NotImplementedError, PatternError) as error:
            raise SchemaError(where, str(error)) from None

    def _typed(self, plain: Plain, name: str, where: str) -> Node:
        match name:
            case "object":
                return objects(object_shape(plain, self, where), self.define)
            case "array":
                return self._array(plain, where)
            case "string":
                return _string(plain)
            case "integer" | "number":
                return self._number(plain, whole=name == "integer")
            case "boolean":
                return choice(["true", "false"])
            case "null":
                return Literal("null")
        raise SchemaError(where, f"there is no type {name!r}")

    def _number(self, plain: Plain, *, whole: bool) -> Node:
        bounds, step = bounds_of(plain), plain.get("multipleOf")
        if step is None:
            return integers(bounds) if whole else numbers(bounds)
        if step <= 0 or not float(step).is_integer():
            raise NotImplementedError("'multipleOf' must be a positive whole number")
        node, rules = multiples(int(step), bounds)
        self.rules.update(rules)
        return node

    def _array(self, plain: Plain, where: str) -> Node:
        prefix = [self.node(item, f"{where}[{i}]") for i, item in enumerate(plain.get("prefixItems", ()))]
        least, most = plain.get("minItems", 0), plain.get("maxItems")
        items: Schema = plain.get("items", True)
        if plain.get("uniqueItems") and (most is None or most > 1):
            values = self._listed(items, where)
            if values is not None and not prefix:
                return subsets([literal(value) for value in values], least, most or len(values), self.define)
            if least > 1:
                raise NotImplementedError("'uniqueItems' can't be kept for more than one free item")
            most = 1
        return arrays(ArrayShape(prefix, self.node(items, f"{where}[]"), least, most))

    def _listed(self, items: Schema, where: str) -> list[Any] | None:
        """The values that items may have, if the schema lists them."""
        alternatives = self.document.alternatives(items, where)
        if not all(is_listed(plain) for plain in alternatives):
            return None
        return distinct(value for plain in alternatives for value in plain["enum"] if admits(plain, value))


def _string(plain: Plain) -> Node:
    least, most = plain.get("minLength", 0), plain.get("maxLength")
    if "pattern" in plain:
        return quoted(pattern_text(plain["pattern"], least, most))
    if plain.get("format") in FORMATS and not least and most is None:
        return quoted(pattern_text(FORMATS[plain["format"]]))
    return NOTHING if most is not None and most < least else strings(least, most)
