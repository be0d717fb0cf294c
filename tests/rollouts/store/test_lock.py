import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.rollouts.store.lock import OutputInUseError, exclusive

HOLD = """
import sys, pathlib
from nemo_gym.rollouts.store.lock import exclusive
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
