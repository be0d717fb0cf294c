import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.store.repair import StoredSpan, read_lines, set_aside


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f.jsonl"


def spans_of(path: Path, bad: set[int]) -> list[StoredSpan]:
    lines = list(read_lines(path))
    return [StoredSpan(line.start, line.start + len(line.text), "odd") for n, line in enumerate(lines) if n in bad]


def test_lines_know_where_they_are(file: Path) -> None:
    file.write_bytes(b"one\n\nthree")
    assert list(read_lines(file)) == [(0, b"one\n"), (4, b"\n"), (5, b"three")]


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
