"""Requests are the same whatever the order of their keys, and differences are named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.metrics.continuity import common_prefix
from responses_api_models.replay_model.matching import (
    RecordedChat,
    RecordedRequest,
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


@pytest.mark.parametrize(("kind", "name"), [(RecordedRequest, "input"), (RecordedChat, "messages")])
def test_a_key_is_the_same_whether_the_beginning_is_known_or_not(kind: type[RecordedRequest], name: str) -> None:
    said = [{"role": "user", "content": f"{number} Grüße " * 300, "a": None} for number in range(8)]
    for options in (
        {},
        {"include": ["x"], "temperature": 1.0, "seed": None},
        {"zebra": 1, "aardvark": {"b": 2, "a": 1}},
    ):
        for count in range(len(said) + 1):
            for words in (said[:count], [*said[:count], {"edited": True}], "hello"):
                for order in ({name: words, **options}, {**options, name: words}):
                    text = json.dumps(order).encode()
                    assert kind.read(text).key() == key_of(kind.path, canonical(text))


def test_requests_that_ask_for_a_stream_are_not_read_in_parts() -> None:
    with pytest.raises(ValueError, match="not as usual"):
        RecordedRequest.read(b'{"input":"hi","stream":true}')
    assert RecordedRequest.read(b'{"input":"hi","stream":false}').key() is not None


def test_other_values_paths_and_nested_nulls_matter() -> None:
    bodies = [b'{"input":"a"}', b'{"input":"b"}', b'{"input":["a"]}', b'{"input":{"a":null}}', b'{"input":{}}', b"no"]
    keys = {key_of(path, canonical(body)) for body in bodies for path in ("/v1/responses", "/v1/chat/completions")}
    assert len(keys) == 12


@pytest.mark.parametrize(
    ("recorded", "asked", "found"),
    [
        ('{"a":1}', '{"a":2}', "at a: recorded 1, asked 2"),
        ('{"input":[{"x":"y"}]}', '{"input":[{"x":"z"}]}', 'at input[0].x: recorded "y", asked "z"'),
        ('{"input":[1]}', '{"input":[1,2]}', "at input[1]: recorded nothing, asked 2"),
        ('{"a":1,"b":2}', '{"b":2}', "at a: recorded 1, asked nothing"),
        ('{"a":1}', '{"a":true}', "at a: recorded 1, asked true"),
        ('{"a":[]}', '{"a":{}}', "at a: recorded [], asked {}"),
        ("1", "2", "at the top: recorded 1, asked 2"),
        ("no JSON", "no json", 'at character 3: recorded "JSON", asked "json"'),
        ('{"a":"%s"}' % ("x" * 200), '{"a":""}', f'at a: recorded "{"x" * 79}…, asked ""'),
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
