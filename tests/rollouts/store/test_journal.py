import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store.journal import Fsync, Journal, OutputInUseError, exclusive

HOLD = """
import sys, pathlib
from nemo_gym.rollouts.store.journal import exclusive
with exclusive(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "out.lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(OutputInUseError) as caught, exclusive(lock):
            pass
        assert f"process {holder.pid}" in str(caught.value)
        assert "another output_jsonl_fpath" in (caught.value.hint or "")
        holder.kill()
        holder.wait()
    with exclusive(lock):
        assert f'"pid": {os.getpid()}' in lock.read_text()
    assert not lock.exists()


def test_the_lock_can_be_taken_again_and_again(tmp_path: Path) -> None:
    for _ in range(3):
        with exclusive(tmp_path / "l"):
            pass


def test_the_same_process_cannot_take_it_twice(tmp_path: Path) -> None:
    with exclusive(tmp_path / "l"), pytest.raises(OutputInUseError), exclusive(tmp_path / "l"):
        pass


def test_a_stale_file_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("left behind by a crash, in a strange format")
    with exclusive(tmp_path / "l"):
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


@pytest.mark.parametrize("fsync", list(Fsync))
def test_every_policy_writes_the_same(tmp_path: Path, fsync: Fsync) -> None:
    with Journal(tmp_path / "f", fsync=fsync) as journal:
        journal.append([b"one"])
        journal.sync()
    assert (tmp_path / "f").read_bytes() == b"one\n"


def test_a_file_that_cannot_be_opened_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Journal(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "resume_from_cache" in (caught.value.hint or "")
