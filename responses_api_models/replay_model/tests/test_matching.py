"""Requests are the same whatever the order of their keys, and differences are named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.schemas.call_tokens import common_prefix
from responses_api_models.replay_model.matching import (
    canonical,
    common_end,
    first_difference,
    key_of,
    likeness,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(value)}
    return list(map(shuffled, value)) if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5))
def test_order_blanks_and_nulls_do_not_matter(request: dict[str, Any]) -> None:
    texts = {
        canonical(json.dumps(request).encode()),
        canonical(json.dumps(shuffled(request), indent=2, ensure_ascii=False).encode()),
        canonical(json.dumps({name: value for name, value in request.items() if value is not None}).encode()),
    }
    assert len(texts) == 1


def test_other_values_paths_and_nested_nulls_matter() -> None:
    bodies = [b'{"input":"a"}', b'{"input":"b"}', b'{"input":["a"]}', b'{"input":{"a":null}}', b'{"input":{}}', b"no"]
    keys = {key_of(path, canonical(body)) for body in bodies for path in ("/v1/responses", "/v1/chat/completions")}
    assert len(keys) == 12


@pytest.mark.parametrize(
    ("recorded", "asked", "found"),
    [
        ('{"a":1}', '{"a":2}', "at a: recorded 1, requested 2"),
        ('{"input":[{"x":"y"}]}', '{"input":[{"x":"z"}]}', 'at input[0].x: recorded "y", requested "z"'),
        ('{"input":[1]}', '{"input":[1,2]}', "at input[1]: recorded nothing, requested 2"),
        ('{"a":1,"b":2}', '{"b":2}', "at a: recorded 1, requested nothing"),
        ('{"a":1}', '{"a":true}', "at a: recorded 1, requested true"),
        ('{"a":[]}', '{"a":{}}', "at a: recorded [], requested {}"),
        ("1", "2", "at the top: recorded 1, requested 2"),
        ("no JSON", "no json", 'at character 3: recorded "JSON", requested "json"'),
        ('{"a":"%s"}' % ("x" * 200), '{"a":""}', f'at a: recorded "{"x" * 79}…, requested ""'),
    ],
)
def test_the_first_difference_is_named(recorded: str, asked: str, found: str) -> None:
    assert first_difference(recorded, asked) == found


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_common_parts_are_as_long_as_can_be(one: str, other: str) -> None:
    start, end = common_prefix(one, other), common_end(one, other)
    assert one[:start] == other[:start]
    assert one[len(one) - end :] == other[len(other) - end :]
    assert start == min(len(one), len(other)) or one[start] != other[start]
    assert end == min(len(one), len(other)) or one[-end - 1] != other[-end - 1]


def test_what_differs_least_is_nearest() -> None:
    asked = '{"input":"What is 2 + 3?"}'
    assert likeness('{"input":"What is 2 + 4?"}', asked) > likeness('{"input":"Tell me a story"}', asked)
    assert likeness('{"input":"What is 2 + 4?"}', asked) > likeness(f'{{"input":"What is 2 + 3?{"x" * 99}"}}', asked)
