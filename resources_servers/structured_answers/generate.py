"""Writes structured_answers tasks: ``python -m resources_servers.structured_answers.generate --n 100 --seed 0``.

Each task gives facts in a sentence or two and asks for them in a format and under keys that it names. Difficulty 1 is
one flat JSON object, 2 the same in YAML, XML or CSV, 3 a list of objects inside an object.
"""

import csv
import io
import itertools
import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

import yaml

from nemo_gym.data.task_generator import Row, TaskGenerator

NAMES: Final = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate", "Liam")
CITIES: Final = ("Oslo", "Paris", "Lima", "Cairo", "Rome", "Quito", "Delhi", "Bern", "Dublin", "Riga", "Porto")
GOODS: Final = ("lamp", "chair", "table", "kettle", "clock", "mirror", "carpet", "shelf")
COLOURS: Final = ("red", "blue", "green", "black", "white", "yellow")
ANIMALS: Final = ("cat", "dog", "horse", "parrot", "rabbit", "goat")
FORMAT_NAMES: Final = {"json": "JSON", "yaml": "YAML", "xml": "XML with the root element <record>", "csv": "CSV"}
TYPE_NAMES: Final = {"string": "text", "integer": "whole number", "boolean": "true or false"}


class Fact(NamedTuple):
    """A sentence and what it says."""

    sentence: str
    values: dict[str, Any]


def person(rng: Random) -> Fact:
    """Somebody, how old they are and where they live."""
    name, age, city = rng.choice(NAMES), rng.randint(18, 90), rng.choice(CITIES)
    return Fact(f"{name} is {age} years old and lives in {city}.", {"name": name, "age": age, "city": city})


def product(rng: Random) -> Fact:
    """Something that is for sale."""
    item, price, colour = rng.choice(GOODS), rng.randint(5, 300), rng.choice(COLOURS)
    return Fact(f"The {colour} {item} costs {price} euros.", {"item": item, "price": price, "colour": colour})


def pet(rng: Random) -> Fact:
    """An animal and whose it is."""
    owner, kind, tame = rng.choice(NAMES), rng.choice(ANIMALS), rng.choice((True, False))
    sentence = f"{owner} has a {kind}. It is {'' if tame else 'not '}tame."
    return Fact(sentence, {"owner": owner, "animal": kind, "tame": tame})


KINDS: Final = (person, product, pet)
PLACES: Final = {person: "people", product: "products", pet: "pets"}
# One worked example in each format: a small model copies its form.
EXAMPLE: Final = Fact("Zoe is 30 years old and lives in Turin.", {"name": "Zoe", "age": 30, "city": "Turin"})


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks of one difficulty, the kinds in equal parts."""
    formats = {1: ("json",), 2: ("yaml", "xml", "csv"), 3: ("json", "yaml")}[difficulty]
    for kind, schema_type in itertools.cycle(itertools.product(KINDS, formats)):
        if difficulty < 3:
            fact = kind(rng)
            yield _row(fact.sentence, fact.values, schema_type, difficulty)
            continue
        facts = [kind(rng) for _ in range(rng.choice((2, 3)))]
        values = {"count": len(facts), PLACES[kind]: [fact.values for fact in facts]}
        yield _row(" ".join(fact.sentence for fact in facts), values, schema_type, difficulty)


def _row(sentence: str, values: dict[str, Any], schema_type: str, difficulty: int) -> Row:
    schema = schema_of(values)
    messages = [{"role": "user", "content": _question(sentence, schema, schema_type)}]
    if difficulty < 3:
        shown = _question(EXAMPLE.sentence, schema_of(EXAMPLE.values), schema_type)
        answer = {"role": "assistant", "content": write(EXAMPLE.values, schema_type)}
        messages = [{"role": "user", "content": shown}, answer, *messages]
    return {
        "responses_create_params": {"input": messages},
        "difficulty": difficulty,
        "question": messages[-1]["content"],
        "schema_type": schema_type,
        "schema_str": json.dumps({"type": "array", "items": schema} if schema_type == "csv" else schema),
        "expected": [values] if schema_type == "csv" else values,
    }


def _question(sentence: str, schema: dict[str, Any], schema_type: str) -> str:
    keys = ", ".join(_key(name, each) for name, each in schema["properties"].items())
    unit = "columns" if schema_type == "csv" else "keys"
    return f"{sentence}\n\nWrite this as {FORMAT_NAMES[schema_type]} with the {unit} {keys}. Write nothing else."


def _key(name: str, schema: dict[str, Any]) -> str:
    if schema["type"] == "array":
        inner = ", ".join(_key(key, each) for key, each in schema["items"]["properties"].items())
        return f"{name} (a list of objects with {inner})"
    return f"{name} ({TYPE_NAMES[schema['type']]})"


def schema_of(value: Any) -> dict[str, Any]:
    """The schema that values like this one fit."""
    if isinstance(value, dict):
        properties = {name: schema_of(each) for name, each in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    return {"type": "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "string"}


def write(values: dict[str, Any], schema_type: str) -> str:
    """The right answer."""
    if schema_type == "json":
        return json.dumps(values)
    if schema_type == "yaml":
        return str(yaml.safe_dump(values, sort_keys=False)).strip()
    plain = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    if schema_type == "xml":
        return "<record>" + "".join(f"<{name}>{value}</{name}>" for name, value in plain.items()) + "</record>"
    file = io.StringIO()
    table = csv.DictWriter(file, list(plain), lineterminator="\n")
    table.writeheader()
    table.writerow(plain)
    return file.getvalue().strip()


GENERATOR: Final = TaskGenerator("structured_answers", draw, identity=("question",), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
