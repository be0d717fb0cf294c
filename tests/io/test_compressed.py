"""Files of Zstandard frames: read like plain files at any position, whatever happened to them."""

import io
import os
import random
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import is_framed, open_compressed, open_lines, open_raw_lines, read_span, text_bytes
from nemo_gym.io.json import read_blocks
from nemo_gym.io.zstd_frames import FrameReader, framed
from nemo_gym.rollouts.store.history import History, read_completed
from nemo_gym.rollouts.store.journal import Journal
from nemo_gym.rollouts.store.saved_lines import encode_keyed, read_lines, set_aside
from nemo_gym.schemas.rows import RolloutKey

zstd = pytest.importorskip("zstandard", reason="needs the extra zstd")

BATCHES = [[encode_keyed(RolloutKey(task, n), {"text": "é" * 50 * n}) for n in range(3)] for task in range(4)]
LINES = [line + b"\n" for batch in BATCHES for line in batch]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "out.jsonl.zst"
    with Journal(path) as journal:
        for batch in BATCHES:
            journal.append(batch)
    return path


def starts(path: Path) -> list[int]:
    data = path.read_bytes()
    return [place for place in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", place)]


def texts(path: Path) -> list[bytes]:
    return [line.text for line in read_lines(path)]


def repaired(path: Path) -> History:
    history = History()
    set_aside(path, read_completed(path, history))
    return history


def test_what_is_appended_is_read_as_lines_and_by_the_programs_of_others(file: Path) -> None:
    assert texts(file) == LINES
    assert len(starts(file)) == len(BATCHES)
    with open_compressed(file, buffering=1 << 16) as opened:
        assert list(opened) == LINES
    assert b"".join(bytes(block) for block in read_blocks(file)) == b"".join(LINES)


def test_every_span_of_the_text_can_be_read_by_itself(file: Path) -> None:
    text, chance = b"".join(LINES), random.Random(3)
    with open_raw_lines(file) as raw, open_lines(file, buffering=64) as buffered:
        for _ in range(200):
            start, length = chance.randrange(len(text) + 5), chance.randrange(900)
            assert read_span(raw, length, start) == read_span(buffered, length, start) == text[start : start + length]


@pytest.mark.parametrize("missing", [1, 4, 20, 60])
def test_a_torn_frame_is_reported_like_a_torn_line_and_set_aside_as_it_is(
    file: Path, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    last = starts(file)[-1]
    torn = file.read_bytes()[last:-missing]
    os.truncate(file, file.stat().st_size - missing)
    *whole, tail = texts(file)
    assert (whole, tail) == (LINES[:9], bytes(len(torn)))
    assert len(repaired(file).done) == 9
    assert "1 torn line (from line 10 on)" in caplog.text
    assert file.with_name("out.jsonl.zst.torn").read_bytes() == torn + b"\n"
    assert file.stat().st_size == last
    with Journal(file) as journal:
        journal.append(BATCHES[-1])
    assert texts(file) == LINES


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_file_that_ends_within_its_first_frame_is_still_one_of_frames(file: Path, first: int) -> None:
    os.truncate(file, first)
    assert is_framed(file)
    assert repaired(file).done == set()
    assert file.stat().st_size == 0


def test_a_damaged_frame_counts_as_one_unreadable_line_and_the_others_are_kept(file: Path) -> None:
    data, places = bytearray(file.read_bytes()), starts(file)
    data[places[2] - 3] ^= 0xFF  # in the checksum of the second frame
    file.write_bytes(data)
    assert len(repaired(file).done) == 9
    assert texts(file) == LINES[:3] + LINES[6:]
    aside = file.with_name("out.jsonl.zst.torn").read_bytes()
    assert aside.rstrip(b"\n") == bytes(data[places[1] : places[2]]).rstrip(b"\n")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_frames_after_bytes_that_are_not_a_frame_are_found(file: Path, place: int) -> None:
    data, places = file.read_bytes(), starts(file)
    file.write_bytes(data[: places[place]] + b"rubbish\n" + data[places[place] :])
    assert len(repaired(file).done) == len(LINES)
    assert texts(file) == LINES


def test_plain_rows_are_read_and_appended_to_as_such_whatever_their_name(file: Path) -> None:
    file.write_bytes(LINES[0])
    with Journal(file) as journal:
        journal.append(line.rstrip(b"\n") for line in LINES[1:])
    assert file.read_bytes() == b"".join(LINES)


def test_a_repeated_rollout_inside_a_frame_is_taken_out(file: Path) -> None:
    with Journal(file) as journal:
        journal.append([BATCHES[0][0], encode_keyed(RolloutKey(9, 9), {})])
    assert len(repaired(file).done) == len(LINES) + 1
    assert texts(file) == [*LINES, encode_keyed(RolloutKey(9, 9), {}) + b"\n"]


def test_any_damage_is_survived_and_every_line_that_is_read_was_written(file: Path) -> None:
    whole, chance = file.read_bytes(), random.Random(5)
    for _ in range(300):
        data = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(data)
        history = repaired(file)
        assert len(history.done) <= len(LINES)
        assert history.done == repaired(file).done
        assert set(texts(file)) <= set(LINES)
        file.with_name("out.jsonl.zst.torn").unlink(missing_ok=True)


def test_files_that_the_command_line_tool_wrote_are_read(tmp_path: Path) -> None:
    path, target = tmp_path / "out.jsonl", io.BytesIO()
    with zstd.ZstdCompressor().stream_writer(target, closefd=False) as writer:  # does not know the size beforehand
        writer.write(b"".join(LINES[:5]))
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    path.write_bytes(target.getvalue() + skipped + zstd.compress(b"".join(LINES[5:])))
    assert texts(path) == LINES
    assert text_bytes(path) == sum(map(len, LINES))


def test_long_batches_become_several_frames_so_that_one_line_is_read_quickly(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.zst"
    lines = [b"%d" % number * 1000 + b"\n" for number in range(500)]
    path.write_bytes(b"".join(framed(path, lines)))
    assert len(starts(path)) > 3
    with FrameReader(path) as reader:
        assert list(io.BufferedReader(reader)) == lines


def test_without_the_library_the_extra_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ConfigError, match="this Python lacks") as caught:
        texts(file)
    assert "rollout-gym[zstd]" in (caught.value.hint or "")
