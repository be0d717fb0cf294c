"""A disk that is full, or a file system that refuses to rename: the file is named, and what was there stays."""

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.view.index.tables import index_paths, open_index


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What the kernel says to larger ones is not ENOSPC, but it comes from the same place: a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount, and not everywhere")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def rollouts(path: Path, count: int) -> Path:
    row = '{"_ng_task_index": %d, "_ng_rollout_index": 0, "reward": 1.0, "agent_ref": {"name": "a"}, "x": "%s"}\n'
    path.write_text("".join(row % (number, "x" * 500) for number in range(count)))
    return path


def write_anew(path: Path, content: bytes, meanwhile: Callable[[], None] = lambda: None) -> None:
    with replacing(path) as file:
        file.write(content)
        file.flush()
        meanwhile()


def test_a_write_that_fails_names_its_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("old")
    with files_of_at_most(1000), pytest.raises(OSError, match=r"metrics\.json") as error:
        write_anew(path, b"x" * 5000)
    assert error.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    with pytest.raises(FileNotFoundError) as error, replacing(path):
        (tmp_path / "absent").read_text()
    assert error.value.filename == str(tmp_path / "absent")


def test_merging_onto_a_full_disk_names_the_file(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = rollouts(tmp_path / "in.jsonl", 3000)
    assert main(["ng_aggregate_rollouts", f"+input_glob={source}", f"+output_jsonl_fpath={small_disk}/out.jsonl"]) != 0
    assert f"{small_disk}/out.jsonl: No space left on device" in capsys.readouterr().err
    assert list(small_disk.iterdir()) == []


def test_a_file_system_that_refuses_to_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("old")
    with pytest.raises(OSError, match=r"metrics\.json") as error:
        # Without its draft there is nothing to give the name to, as on a network file system that lost it.
        write_anew(path, b"new", meanwhile=Path(f"{path}.{os.getpid()}.tmp").unlink)
    assert error.value.errno == errno.ENOENT
    assert path.read_text() == "old"


def test_an_index_that_has_no_room_beside_its_file_is_built_in_the_cache(small_disk: Path, tmp_path: Path) -> None:
    path = rollouts(small_disk / "out.jsonl", 900)
    beside, cached = index_paths(path, tmp_path / "cache")
    assert open_index(path, tmp_path / "cache") == cached
    assert not beside.exists()


def test_an_index_that_has_no_room_anywhere_is_an_error_and_not_an_empty_page(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 42)  # a hole, which takes no room
    with pytest.raises(ConfigError, match=r"only \d+ MiB left for the index") as error:
        open_index(path, tmp_path / "cache")
    assert "room" in (error.value.hint or "")
