"""From JSON Schema to a grammar: every text that the grammar accepts is JSON that fits the schema. Pure.

The other way round does not hold: of all the ways to write a value the grammar knows one (``json.dumps``'s), properties
come in the order of the schema, and undeclared ones only where the schema describes them or declares none. A schema
that can't be kept is refused with :class:`SchemaError`; it is never kept halfway.
"""

from responses_api_models.local_model.grammar.compiler import SchemaCompiler
from responses_api_models.local_model.grammar.gbnf import EmptyGrammarError, Node, Ref, write_grammar
from responses_api_models.local_model.grammar.keywords import Schema, SchemaError

__all__ = ["GrammarBuilder", "SchemaError", "schema_grammar"]


class GrammarBuilder:
    """Collects rules; schemas become nodes that refer to them."""

    def __init__(self) -> None:
        self.rules: dict[str, Node] = {}

    def define(self, node: Node, name: str | None = None) -> Ref:
        """Give a node a name, so that it is written once however often it is used."""
        name = name or f"rule-{len(self.rules)}"
        self.rules[name] = node
        return Ref(name)

    def add_schema(self, schema: Schema, where: str = "$") -> Node:
        """A node for the JSON that fits the schema."""
        return SchemaCompiler(self.rules, self.define, schema).node(schema, where)

    def text(self, root: Node) -> str:
        """The grammar as the engine reads it."""
        return write_grammar({**self.rules, "root": root})


def schema_grammar(schema: Schema) -> str:
    """The grammar for the JSON that fits a schema."""
    builder = GrammarBuilder()
    try:
        return builder.text(builder.add_schema(schema))
    except EmptyGrammarError:
        raise SchemaError("$", "no value fits") from None
