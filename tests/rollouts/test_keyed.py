import json

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.io.json import decode
from nemo_gym.rollouts.keyed import encode_keyed, key_of
from nemo_gym.schemas.rows import RolloutKey

keys = st.builds(RolloutKey, st.integers(-(2**40), 2**40), st.integers(0, 2**31))
texts = st.sampled_from(
    ["_ng_task_index", "_ng_rollout_index", 'x","_ng_rollout_index":3}', '{"_ng_task_index":1', "a"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
records = st.dictionaries(texts, values, max_size=4)


def truth(line: bytes) -> RolloutKey | None:
    """What a parser says about the line."""
    try:
        return RolloutKey.of(json.loads(line))
    except ValueError:
        return None


@given(keys, records)
def test_the_key_of_a_written_line_is_the_key_it_was_written_with(key: RolloutKey, record: dict) -> None:
    line = encode_keyed(key, record)
    assert key_of(line + b"\n") == key_of(line) == key == truth(line)


@given(keys, records)
def test_the_rest_of_the_record_is_untouched(key: RolloutKey, record: dict) -> None:
    stamps = {"_ng_task_index": key.task, "_ng_rollout_index": key.rollout}
    assert decode(encode_keyed(key, record)) == {**record, **stamps}


@given(keys, records, st.data())
def test_a_line_cut_off_at_any_byte_has_no_key(key: RolloutKey, record: dict, data: st.DataObject) -> None:
    line = encode_keyed(key, record)
    cut = line[: data.draw(st.integers(0, len(line) - 1))]
    assert key_of(cut) is None


@given(keys, records, keys, records, st.data())
def test_a_line_glued_to_the_remains_of_another_has_no_key(
    key: RolloutKey, record: dict, other: RolloutKey, more: dict, data: st.DataObject
) -> None:
    line = encode_keyed(key, record)
    remains = line[: data.draw(st.integers(1, len(line)))]
    assert key_of(remains + encode_keyed(other, more) + b"\n") is None


def test_a_hole_full_of_zero_bytes_has_no_key() -> None:
    line = encode_keyed(RolloutKey(1, 2), {"text": "x" * 50})
    assert key_of(line[:30] + bytes(20) + line[50:] + b"\n") is None


def test_lines_of_other_writers_are_read_too() -> None:
    assert key_of(b'{"_ng_rollout_index": 2, "reward": 1.0, "_ng_task_index": 7}\n') == (7, 2)
    for line in (b"", b"\n", b"[1]", b'{"_ng_task_index": 1}', b'{"_ng_task_index": true, "_ng_rollout_index": 0}'):
        assert key_of(line) is None
    for odd in (-1, 2**32, "0", 1.0):
        assert RolloutKey.of({"_ng_task_index": 1, "_ng_rollout_index": odd}) is None
