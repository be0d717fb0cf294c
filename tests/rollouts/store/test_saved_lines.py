"""Lines that begin and end with their key, and what does not belong among them."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.io.json import decode
from nemo_gym.rollouts.store.saved_lines import StoredSpan, encode_keyed, key_in_line, read_lines, set_aside
from nemo_gym.schemas.record import Record
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
        return Record(json.loads(line)).key
    except ValueError:
        return None


@given(keys, records)
def test_the_key_of_a_written_line_is_the_key_it_was_written_with(key: RolloutKey, record: dict) -> None:
    line = encode_keyed(key, record)
    assert key_in_line(line + b"\n") == key_in_line(line) == key == truth(line)


@given(keys, records)
def test_the_rest_of_the_record_is_untouched(key: RolloutKey, record: dict) -> None:
    stamps = {"_ng_task_index": key.task, "_ng_rollout_index": key.rollout}
    assert decode(encode_keyed(key, record)) == {**record, **stamps}


@given(keys, records, st.data())
def test_a_line_cut_off_at_any_byte_has_no_key(key: RolloutKey, record: dict, data: st.DataObject) -> None:
    line = encode_keyed(key, record)
    cut = line[: data.draw(st.integers(0, len(line) - 1))]
    assert key_in_line(cut) is None


@given(keys, records, keys, records, st.data())
def test_a_line_glued_to_the_remains_of_another_has_no_key(
    key: RolloutKey, record: dict, other: RolloutKey, more: dict, data: st.DataObject
) -> None:
    line = encode_keyed(key, record)
    remains = line[: data.draw(st.integers(1, len(line)))]
    assert key_in_line(remains + encode_keyed(other, more) + b"\n") is None


def test_a_hole_full_of_zero_bytes_has_no_key() -> None:
    line = encode_keyed(RolloutKey(1, 2), {"text": "x" * 50})
    assert key_in_line(line[:30] + bytes(20) + line[50:] + b"\n") is None


def test_lines_of_other_writers_are_read_too() -> None:
    assert key_in_line(b'{"_ng_rollout_index": 2, "reward": 1.0, "_ng_task_index": 7}\n') == (7, 2)
    for line in (b"", b"\n", b"[1]", b'{"_ng_task_index": 1}', b'{"_ng_task_index": true, "_ng_rollout_index": 0}'):
        assert key_in_line(line) is None
    for odd in (-1, 2**32, "a", 1.5):
        assert key_in_line(json.dumps({"_ng_task_index": 1, "_ng_rollout_index": odd}).encode()) is None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f.jsonl"


def spans_of(path: Path, bad: set[int]) -> list[StoredSpan]:
    lines = list(read_lines(path))
    return [StoredSpan(line.start, line.start + len(line.text), "odd") for n, line in enumerate(lines) if n in bad]


def test_lines_know_where_they_are(file: Path) -> None:
    file.write_bytes(b"one\n\nthree")
    assert list(read_lines(file)) == [(0, b"one\n", 1), (4, b"\n", 2), (5, b"three", 3)]


def test_a_torn_tail_is_cut_off_and_kept_aside(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_bytes(b'{"a":1}\n{"b"')
    with caplog.at_level(logging.WARNING):
        set_aside(file, [StoredSpan(8, 12, "torn line")])
    assert file.read_bytes() == b'{"a":1}\n'
    assert file.with_name("f.jsonl.torn").read_bytes() == b'{"b"\n'
    assert "1 torn line" in caplog.text
    assert "f.jsonl.torn" in caplog.text


def test_a_missing_end_of_the_last_line_is_added(file: Path) -> None:
    file.write_bytes(b"{}\n{}")
    set_aside(file, [])
    assert file.read_bytes() == b"{}\n{}\n"
    assert not file.with_name("f.jsonl.torn").exists()


def test_an_empty_file_stays_empty(file: Path) -> None:
    file.touch()
    set_aside(file, [])
    assert file.read_bytes() == b""


@given(
    st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")), max_size=8),
    st.sets(st.integers(0, 7)),
    st.booleans(),
)
def test_what_is_set_aside_and_what_stays_is_everything_there_was(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], bad: set[int], ended: bool
) -> None:
    path = tmp_path_factory.mktemp("repair") / "f"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ended and lines else b""))
    before = [line.text.rstrip(b"\n") for line in read_lines(path)]
    set_aside(path, spans_of(path, bad))
    stays = [line for n, line in enumerate(before) if n not in bad]
    goes = [line for n, line in enumerate(before) if n in bad]
    assert path.read_bytes() == b"".join(line + b"\n" for line in stays)
    torn = path.with_name("f.torn")
    assert (torn.read_bytes() if torn.exists() else b"") == b"".join(line + b"\n" for line in goes)


def test_what_was_set_aside_before_is_kept(file: Path) -> None:
    for torn in (b"first", b"second"):
        file.write_bytes(torn)
        set_aside(file, [StoredSpan(0, len(torn), "torn line")])
    assert file.with_name("f.jsonl.torn").read_bytes() == b"first\nsecond\n"
