import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store.journal import Journal, OutputInUseError, exclusive

HOLD = """
import sys, pathlib
from nemo_gym.rollouts.store.journal import exclusive
with exclusive(pathlib.Path(sys.argv[1]), output=pathlib.Path("out.jsonl")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "out.lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(OutputInUseError) as caught, exclusive(lock, output=tmp_path / "out.jsonl"):
            pass
        assert f"{tmp_path / 'out.jsonl'}: process {holder.pid}" in str(caught.value)
        assert "another output_jsonl_fpath" in (caught.value.hint or "")
        holder.kill()
        holder.wait()
    with exclusive(lock, output=tmp_path / "out.jsonl"):
        assert f'"pid": {os.getpid()}' in lock.read_text()
    assert not lock.exists()


def test_the_lock_can_be_taken_again_and_again(tmp_path: Path) -> None:
    for _ in range(3):
        with exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"):
            pass


def test_the_same_process_cannot_take_it_twice(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"),
        pytest.raises(OutputInUseError),
        exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"),
    ):
        pass


def test_a_stale_file_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("left behind by a crash, in a strange format")
    with exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"):
        pass


lines = st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), min_size=1, max_size=5)


def full_after(room: int) -> Callable[[int, bytes], int]:
    """A disk with so many bytes of room."""

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        part = data[:room]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= len(part)
        return os.write(descriptor, part)

    return write


def test_what_was_appended_is_there_for_everybody_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "f") as journal:
        journal.append([b"one", b"two"])
        assert (tmp_path / "f").read_bytes() == b"one\ntwo\n"
        journal.append([])
        journal.append([b"three"])
        assert (tmp_path / "f").read_bytes() == b"one\ntwo\nthree\n"


def test_an_existing_file_is_continued(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old\n")
    with Journal(tmp_path / "f") as journal:
        journal.append([b"new"])
    assert (tmp_path / "f").read_bytes() == b"old\nnew\n"


@given(before=lines, after=lines, room=st.integers(0, 60))
def test_an_append_that_does_not_fit_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory, before: list[bytes], after: list[bytes], room: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "f"
    with Journal(path) as journal:
        journal.append(before)
    kept = path.read_bytes()
    added = b"".join(line + b"\n" for line in after)
    with Journal(path, write=full_after(room)) as journal:
        if len(added) <= room:
            journal.append(after)
            assert path.read_bytes() == kept + added
        else:
            with pytest.raises(ConfigError, match="No space left"):
                journal.append(after)
            assert path.read_bytes() == kept


def test_a_disk_that_takes_a_byte_at_a_time_is_slow_but_right(tmp_path: Path) -> None:
    with Journal(tmp_path / "f", write=lambda descriptor, data: os.write(descriptor, data[:1])) as journal:
        journal.append([b"one", b"two"])
    assert (tmp_path / "f").read_bytes() == b"one\ntwo\n"


def test_a_file_that_cannot_be_opened_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Journal(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "resume_from_cache" in (caught.value.hint or "")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that the operating system was asked to sync."""
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    return calls


def test_what_was_appended_is_synced_once(tmp_path: Path, synced: list[int]) -> None:
    (tmp_path / "f").write_bytes(b"old\n")
    with Journal(tmp_path / "f") as journal:
        journal.sync()
        assert len(synced) == 0  # nothing has been appended
        journal.append([b"one"])
        assert len(synced) == 0
        journal.sync()
        journal.sync()
        assert len(synced) == 1
        journal.append([b"two"])
    assert len(synced) == 2  # closing is syncing


def test_a_journal_that_nothing_was_appended_to_is_closed_without_a_sync(tmp_path: Path, synced: list[int]) -> None:
    with Journal(tmp_path / "f"):
        pass
    assert synced == []


def descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def test_a_sync_that_fails_is_named_tried_again_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = len(descriptors())
    journal = Journal(tmp_path / "f")
    journal.append([b"one"])
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ConfigError, match=r"can't sync .*/f: Input/output error"):
        journal.sync()
    with pytest.raises(ConfigError, match="can't sync"):  # it is still owed
        journal.close()
    assert len(descriptors()) == before


def test_neither_the_file_nor_the_lock_is_passed_on_to_programs(tmp_path: Path) -> None:
    with exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"), Journal(tmp_path / "f"):
        ours = [int(path.name) for path in descriptors() if path.is_file() and tmp_path in path.resolve().parents]
        assert len(ours) == 2
        assert not any(map(os.get_inheritable, ours))
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644
        assert (tmp_path / "l").stat().st_mode & 0o777 == 0o644


def test_a_lock_file_that_was_removed_while_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, real, calls = tmp_path / "l", fcntl.flock, 0

    def flock(descriptor: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            lock.unlink()  # by the process that held it until now
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    before = len(descriptors())
    with exclusive(lock, output=tmp_path / "out.jsonl"):
        assert calls == 2
        assert f'"pid": {os.getpid()}' in lock.read_text()
        assert len(descriptors()) == before + 1
        with pytest.raises(OutputInUseError), exclusive(lock, output=tmp_path / "out.jsonl"):
            pass
    assert len(descriptors()) == before


def test_a_long_story_in_the_lock_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("x" * 10_000)
    with exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"):
        assert json.loads((tmp_path / "l").read_text())["pid"] == os.getpid()


def test_a_holder_that_has_not_written_its_name_is_another_process(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "l", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with (
        pytest.raises(OutputInUseError, match="another process, is collecting"),
        exclusive(tmp_path / "l", output=tmp_path / "out.jsonl"),
    ):
        pass
    os.close(descriptor)
