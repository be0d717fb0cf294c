"""JSON Schemas taken apart: from references and combinations to plain alternatives. Pure.

A *plain* schema says everything itself: no ``$ref``, ``allOf``, ``anyOf``, ``oneOf``. :meth:`Document.alternatives`
turns any schema into plain ones of which a value must fit one. The alternatives may accept less than the schema, never
more. What can't be expressed without risking that is refused by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from responses_api_models.local_model.grammar.conjoin import conjoin
from responses_api_models.local_model.grammar.keywords import Plain, Schema, SchemaError, check_shape, own_keywords
from responses_api_models.local_model.grammar.overlap import apart

MAX_ALTERNATIVES: Final = 256


class Document:
    """A schema and everything that its references can point to."""

    def __init__(self, root: Schema) -> None:
        self.root = root

    def resolve(self, reference: str, where: str) -> Schema:
        """The schema that a reference points to."""
        if not reference.startswith("#"):
            raise SchemaError(where, f"$ref {reference!r} points outside the schema")
        found: Any = self.root
        for step in reference.lstrip("#").strip("/").split("/") if reference != "#" else []:
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(where, f"$ref {reference!r} points to nothing") from None
        if not isinstance(found, Mapping | bool):
            raise SchemaError(where, f"$ref {reference!r} does not point to a schema")
        return found

    def alternatives(self, schema: Schema, where: str, seen: frozenset[str] = frozenset()) -> list[Plain]:
        """Plain schemas of which a value must fit one to fit the schema."""
        check_shape(schema, where)
        if isinstance(schema, bool):
            return [{}] if schema else []
        found: list[Plain] = [own_keywords(schema)]
        if "const" in schema:
            found = self._product(found, [{"enum": [schema["const"]]}], where)
        if "$ref" in schema:
            found = self._product(found, self._referenced(schema["$ref"], where, seen), where)
        for part in schema.get("allOf", ()):
            found = self._product(found, self.alternatives(part, where, seen), where)
        if "anyOf" in schema:
            options = [plain for part in schema["anyOf"] for plain in self.alternatives(part, where, seen)]
            found = self._product(found, options, where)
        if "oneOf" in schema:
            groups = [self._product(found, self.alternatives(part, where, seen), where) for part in schema["oneOf"]]
            found = self._exactly_one(groups, where)
        if len(found) > MAX_ALTERNATIVES:
            raise SchemaError(where, f"more than {MAX_ALTERNATIVES} combinations of alternatives")
        return found

    def _referenced(self, reference: str, where: str, seen: frozenset[str]) -> list[Plain]:
        if reference in seen:
            raise SchemaError(where, f"$ref {reference!r} refers to itself without anything in between")
        return self.alternatives(self.resolve(reference, where), where, seen | {reference})

    def _product(self, first: Iterable[Plain], second: Sequence[Plain], where: str) -> list[Plain]:
        try:
            pairs = [conjoin(one, other) for one in first for other in second]
        except NotImplementedError as error:
            raise SchemaError(where, str(error)) from None
        return [merged for merged in pairs if merged is not None]

    def _exactly_one(self, groups: list[list[Plain]], where: str) -> list[Plain]:
        """The alternatives, narrowed until none of them also fits another group."""
        kept: list[Plain] = []
        for number, group in enumerate(groups):
            others = [plain for index, other in enumerate(groups) if index != number for plain in other]
            for plain in group:
                narrowed: Plain | None = plain
                for other in others:
                    narrowed = apart(narrowed, other, self._expand) if narrowed is not None else None
                if narrowed is None:
                    raise SchemaError(where, "the alternatives of 'oneOf' overlap: use 'anyOf', or tell them apart")
                kept.append(narrowed)
        return kept

    def _expand(self, schema: Schema) -> list[Plain]:
        return self.alternatives(schema, "oneOf")
