import json
import math

import pytest
from orjson import Fragment

from nemo_gym.io.json import NotFiniteError, decode, decode_finite, encode, encode_json


@pytest.mark.parametrize("value", [{"a": "ü\n"}, [1, 2.5, None, True], "x", {"n": 2**80}, {"s": "\ud800"}])
def test_a_value_survives_the_round_trip_on_one_line(value: object) -> None:
    line = encode(value)
    assert b"\n" not in line
    assert decode(line) == value


def test_lines_are_compact_and_keep_their_letters() -> None:
    assert encode({"a": [1, "ü"]}) == '{"a":[1,"ü"]}'.encode()


def test_what_python_writes_can_be_read() -> None:
    assert math.isnan(decode(json.dumps({"reward": float("nan")}))["reward"])


def test_garbage_is_a_value_error() -> None:
    for garbage in (b"", b"{", b'{"a":1}{"a":1}', b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            decode(garbage)


def test_integers_of_a_body_may_have_any_length() -> None:
    assert json.loads(encode_json({"seed": 2**80})) == {"seed": 2**80}


def test_keys_of_a_body_may_be_numbers() -> None:
    assert json.loads(encode_json({"logit_bias": {7: 1.5}})) == {"logit_bias": {"7": 1.5}}


@pytest.mark.parametrize("other", [1, 2**80, {7: 1.5}, "\ud800"])
def test_a_part_of_a_body_may_be_json_already(other: object) -> None:
    written = json.loads(encode_json({"response": Fragment(b'{"id": "r1", "n": 1.0}'), "other": other}))
    assert written["response"] == {"id": "r1", "n": 1.0}


@pytest.mark.parametrize("text", [b"NaN", b'{"reward": -Infinity}', b"[1, Infinity]"])
def test_numbers_that_json_does_not_have_are_refused_where_they_matter(text: bytes) -> None:
    with pytest.raises(NotFiniteError):
        decode_finite(text)


@pytest.mark.parametrize("text", [b'"NaN"', b'{"Infinity": 1}', b'"\\ud800"'])
def test_texts_that_only_look_like_them_are_read(text: bytes) -> None:
    assert decode_finite(text) == json.loads(text)
