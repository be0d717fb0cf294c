"""Numbers within bounds: exactly the whole ones, and only decimals that fit."""

import itertools
import json
from decimal import Decimal
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from responses_api_models.local_model.grammar import schema_grammar
from responses_api_models.local_model.tests.gbnf_sampler import GbnfSampler, Node


def language(schema: dict[str, object]) -> set[str]:
    """Every text that a grammar without unlimited repetition accepts."""
    sampler = GbnfSampler.read(schema_grammar(schema))

    def texts(node: Node) -> set[str]:
        match node:
            case ("text", text):
                return {text}
            case ("class", False, ranges):
                return {chr(code) for low, high in ranges for code in range(low, high + 1)}
            case ("rule", name):
                return texts(sampler.rules[name])
            case ("any", options):
                return set().union(*(texts(option) for option in options))
            case ("all", parts):
                return {"".join(chosen) for chosen in itertools.product(*(texts(part) for part in parts))}
            case ("times", inner, least, most):
                choices = texts(inner)
                counts = range(least, most + 1)
                return {"".join(chosen) for n in counts for chosen in itertools.product(choices, repeat=n)}
        raise AssertionError(node)

    return texts(("rule", "root"))


@given(low=st.integers(-1500, 1500), width=st.integers(0, 300))
def test_whole_numbers_within_bounds_are_exactly_the_accepted_ones(low: int, width: int) -> None:
    schema = {"type": "integer", "minimum": low, "maximum": low + width}
    assert language(schema) == {str(value) for value in range(low, low + width + 1)}


@given(low=st.integers(-50, 50), width=st.integers(1, 9))
def test_decimals_within_bounds_have_two_places(low: int, width: int) -> None:
    accepted = language({"type": "number", "exclusiveMinimum": low, "maximum": low + width})
    places = {text for text in accepted if "." in text}
    assert {Decimal(text) for text in places} == {
        Decimal(n) / 100 for n in range(100 * low + 1, 100 * (low + width) + 1)
    }
    assert {int(text) for text in accepted - places} == set(range(low + 1, low + width + 1))


def test_narrow_bounds_get_more_places() -> None:
    accepted = language({"type": "number", "minimum": 0.1, "maximum": 0.15})
    assert "0.1234" in accepted
    assert all(0.1 <= json.loads(text) <= 0.15 for text in accepted)


@given(step=st.integers(1, 40), low=st.integers(-200, 200), width=st.integers(0, 500))
def test_multiples_within_bounds_are_exactly_the_accepted_ones(step: int, low: int, width: int) -> None:
    values = {str(value) for value in range(low, low + width + 1) if value % step == 0}
    schema = {"type": "integer", "multipleOf": step, "minimum": low, "maximum": low + width}
    if values and len(values) <= 200:
        assert language(schema) == values


def test_multiples_without_bounds_have_no_remainder() -> None:
    for step in (2, 3, 7, 12, 100):
        sampler = GbnfSampler.read(schema_grammar({"type": "integer", "multipleOf": step}))
        random = Random(step)
        assert all(int(sampler.sample(random)) % step == 0 for _ in range(200))
