"""A text that is split by what is known about others has the parts that parsing finds in it."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from nemo_gym.conversion.request_texts import LONG, MAX_FRAME_BYTES, MOST_FRAMES, RequestTexts, SplitRequest

decode = msgspec.json.Decoder(str | list[msgspec.Raw]).decode
ITEM = {"role": "user", "content": "Grüße " * LONG}


class Outline(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw
    a: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def texts(**settings: Any) -> RequestTexts:
    return RequestTexts("input", Outline, **settings)


def remember(known: RequestTexts, text: bytes) -> SplitRequest:
    """Split a text and keep its whole conversation."""
    split = known.split(text, decode)
    assert split is not None
    known.keep(split, split.end - 1, "test", None)
    return split


@pytest.mark.parametrize(
    "text",
    [
        '{"input":"hi"}',
        '{"input":"hi","a":1}',
        '{"a":1,"input":[]}',
        '{"a":{"input":[{"b":1}]},"input":[{"b":1}]}',
        '{"tools":[{"input":"hi"}],"input":"hi","a":"x"}',
        '{"a":"\\"input\\":[","input":[{"b":"]}"}]}',
        ' { "input": [ {"b": 1} ] , "a": 2 } ',
        '{"in\\u0070ut":"hi"}',
    ],
)
def test_every_text_is_split_as_it_is_parsed(text: str) -> None:
    known, parsed = texts(), json.loads(text)
    for other in ('{"input":"ho","a":1}', '{"input":"ho"}', text, text):
        known.split(other.encode(), decode)
    split = known.split(text.encode(), decode)
    if split is None:  # a key that is written in an unusual way
        assert "u0070" in text
        return
    assert json.loads(split.conversation) == parsed.pop("input")
    assert split.frame.options == parsed


def test_a_known_beginning_is_not_decoded_again() -> None:
    known = texts()
    remember(known, json.dumps({"input": [ITEM, ITEM]}).encode())
    split = remember(known, json.dumps({"input": [ITEM, ITEM, {"b": 1}], "a": 3}).encode())
    assert split.beginning is not None
    assert [json.loads(bytes(item)) for item in split.items] == [{"b": 1}]
    assert json.loads(split.conversation) == [ITEM, ITEM, {"b": 1}]
    again = known.split(split.text, decode)
    assert again is not None
    assert again.beginning is not None
    assert again.items == []


@pytest.mark.parametrize("rest", [b",]}", b", ]}", b",1]}", b"x]}", b"}", b"]", b"", b'],"input":[]}', b'],"b":1}'])
def test_what_is_not_a_request_is_refused_after_a_known_beginning(rest: bytes) -> None:
    known = texts()
    text = json.dumps({"input": [ITEM]}).encode()
    remember(known, text)
    objects = msgspec.json.Decoder(str | list[dict[str, Any]]).decode
    if rest == b'],"input":[]}':  # the last of two equal keys counts
        split = known.split(text[:-2] + rest, objects)
        assert split is None or json.loads(split.conversation) == []
        return
    with pytest.raises(ValueError):  # noqa: PT011 - the words are msgspec's
        known.split(text[:-2] + rest, objects)


def test_bytes_that_are_not_utf_8_are_refused_everywhere() -> None:
    known = texts()
    text = json.dumps({"input": [ITEM]}).encode()
    remember(known, text)
    for broken in (text[:-2] + b',{"b":"\xff"}]}', text[:-1] + b',"a":"\xff"}', b'{"input":"\xff"}'):
        with pytest.raises(ValueError):  # noqa: PT011 - the words are Python's
            known.split(broken, decode)


def test_rollouts_that_are_alike_do_not_displace_each_other() -> None:
    known = texts()
    rollouts = [[{"id": f"{number:03}"}, ITEM] for number in range(50)]
    for rollout in rollouts:
        remember(known, json.dumps({"input": rollout}).encode())
    for rollout in rollouts:
        split = known.split(json.dumps({"input": [*rollout, {"b": 1}]}).encode(), decode)
        assert split is not None
        assert split.beginning is not None
        assert len(split.items) == 1


def test_what_is_remembered_stays_within_its_limit() -> None:
    known = texts(max_bytes=20 * len(json.dumps(ITEM)))
    for number in range(3 * MOST_FRAMES):
        remember(
            known, json.dumps({"input": [{"id": number}, ITEM] if number % 9 == 0 else "hi", "a": number}).encode()
        )
    assert known.size <= 20 * len(json.dumps(ITEM))
    assert known.frame_count <= MOST_FRAMES


def test_long_options_are_remembered_up_to_a_limit() -> None:
    known = texts()
    for number in range(100):
        split = remember(known, json.dumps({"a": f"{number} " + "x" * 200_000, "input": "hi"}).encode())
        assert split.frame.options["a"].startswith(f"{number} ")
    assert known.frame_count * 200_000 <= MAX_FRAME_BYTES


def test_a_conversation_that_goes_on_is_remembered_once() -> None:
    known = texts()
    sizes = [(remember(known, json.dumps({"input": [ITEM] * count}).encode()), known.size)[1] for count in range(1, 6)]
    assert all(after - before < 2 * len(json.dumps(ITEM)) for before, after in pairwise(sizes))
