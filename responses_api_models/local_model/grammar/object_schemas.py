"""What a schema says about objects, as the shape of an object's grammar. Pure."""

from collections.abc import Mapping
from typing import Protocol

from responses_api_models.local_model.grammar.algebra import Document
from responses_api_models.local_model.grammar.conjoin import all_of
from responses_api_models.local_model.grammar.gbnf import NOTHING, Node
from responses_api_models.local_model.grammar.json_strings import quoted, strings_except
from responses_api_models.local_model.grammar.keywords import Plain, Schema
from responses_api_models.local_model.grammar.objects import Member, ObjectShape
from responses_api_models.local_model.grammar.patterns import pattern_text
from responses_api_models.local_model.grammar.values import admits


class Compiler(Protocol):
    """What compiles the schemas of the properties."""

    document: Document

    def node(self, schema: Schema, where: str) -> Node:
        """A node for the values that fit the schema."""
        ...


def object_shape(plain: Plain, compiler: Compiler, where: str) -> ObjectShape:
    """The shape of the objects that fit a plain schema."""
    declared: dict[str, Schema] = dict(plain.get("properties", {}))
    required = _required(plain, declared)
    names = [*declared, *(name for name in required if name not in declared)]
    allowed = [name for name in names if _is_name(plain, name, compiler.document)]
    members = [
        Member(name, compiler.node(_about(plain, name, declared), f"{where}.{name}"), required=name in required)
        for name in allowed
    ]
    members += [Member(name, NOTHING, required=True) for name in required if name not in allowed]
    key, value = _free_members(plain, declared, compiler, where)
    return ObjectShape(members, key, value, plain.get("minProperties", 0), plain.get("maxProperties"))


def _required(plain: Plain, declared: Mapping[str, Schema]) -> dict[str, None]:
    required: dict[str, None] = dict.fromkeys(plain.get("required", ()))
    dependent = plain.get("dependentRequired", {})
    waiting = [*declared, *required]
    while waiting:
        # Whether the property will be there is open, so what it needs always is.
        missing = [name for name in dependent.get(waiting.pop(), ()) if name not in required]
        required |= dict.fromkeys(missing)
        waiting += missing
    return required


def _is_name(plain: Plain, name: str, document: Document) -> bool:
    if "propertyNames" not in plain:
        return True
    return any(admits(option, name) for option in document.alternatives(plain["propertyNames"], "propertyNames"))


def _about(plain: Plain, name: str, declared: Mapping[str, Schema]) -> Schema:
    """What the schema says about a property of this name."""
    patterns: Mapping[str, Schema] = plain.get("patternProperties", {})
    matching = [schema for pattern, schema in patterns.items() if admits({"pattern": pattern}, name)]
    if name in declared:
        return all_of([declared[name], *matching])
    additional: Schema = plain.get("additionalProperties", True)
    return all_of(matching) if matching else additional


def _free_members(
    plain: Plain, declared: Mapping[str, Schema], compiler: Compiler, where: str
) -> tuple[Node | None, Node]:
    """Keys and values of undeclared properties: where the schema describes them, or declares none at all."""
    patterns: Mapping[str, Schema] = plain.get("patternProperties", {})
    additional: Schema = plain.get("additionalProperties", True)
    described = isinstance(additional, Mapping) and bool(additional)
    named = [*declared, *plain.get("required", ()), *plain.get("dependentRequired", ())]
    if patterns:
        # A key could match several patterns, or be declared; so there are free keys only if nothing else could apply.
        if named or len(patterns) > 1 or "propertyNames" in plain:
            return None, NOTHING
        pattern, schema = next(iter(patterns.items()))
        return quoted(pattern_text(pattern)), compiler.node(schema, f"{where}.*")
    if additional is False or (named and not described):
        return None, NOTHING
    value = compiler.node(additional, f"{where}.*")
    if "propertyNames" not in plain:
        return strings_except(named), value
    if named:
        return None, NOTHING
    return compiler.node(all_of([{"type": "string"}, plain["propertyNames"]]), f"{where} (propertyNames)"), value
