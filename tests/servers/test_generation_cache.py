"""Answers are kept for any number of processes, within bounds, and a damaged one is no answer."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.servers.generation_cache import GenerationCache

KEY = "ab" * 20


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


async def test_what_was_put_is_found_also_by_others(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path / "new" / "cache")
    assert await cache.get(KEY) is None
    await cache.put(KEY, b'{"a":1}\n{"b":2}')
    assert await GenerationCache(tmp_path / "new" / "cache").get(KEY) == b'{"a":1}\n{"b":2}'
    assert await cache.get("cd" * 20) is None
    assert (cache.hits, cache.misses) == (0, 2)


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_answer_is_removed(tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    cache = GenerationCache(tmp_path)
    cache.write(KEY, b"answer")
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert cache.read(KEY) is None
    assert "damaged" in caplog.text
    assert files(tmp_path) == []
    cache.write(KEY, b"answer")
    assert cache.read(KEY) == b"answer"


def test_the_folder_stays_within_its_size_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path, max_bytes=20_000)
    for number in range(40):
        cache.write(f"{number:040d}", b"x" * 1000)
        path = cache._path(f"{number:040d}")
        if path.exists():
            os.utime(path, (number, number))
        cache.read(f"{0:040d}")
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 21_500
    assert cache.read(f"{0:040d}") is not None
    assert cache.read(f"{39:040d}") is not None
    assert cache.read(f"{1:040d}") is None


def test_an_answer_larger_than_everything_is_not_kept(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path, max_bytes=100)
    cache.write(KEY, b"x" * 200)
    assert files(tmp_path) == []


def test_drafts_of_processes_that_died_are_removed(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path)
    draft = tmp_path / "drafts" / "1-1"
    draft.write_bytes(b"half")
    os.utime(draft, (1, 1))
    cache.write(KEY, b"answer")
    assert not draft.exists()
    assert cache.read(KEY) == b"answer"


def test_a_folder_that_can_not_be_made_is_the_users_to_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cache: .*can't be written"):
        GenerationCache(tmp_path / "file" / "cache")


def test_a_folder_that_fails_later_costs_nothing_but_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = GenerationCache(tmp_path / "cache")
    (tmp_path / "cache" / "drafts").rmdir()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").touch()
    cache.write(KEY, b"answer")
    cache.write(KEY, b"answer")
    assert cache.read(KEY) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


WRITER = """
import sys
from pathlib import Path
from nemo_gym.servers.generation_cache import GenerationCache

cache = GenerationCache(Path(sys.argv[1]), max_bytes=60_000)
for number in range(300):
    key, content = f"{number % 50:040d}", f"{number % 50}".encode() * 500
    found = cache.read(key)
    assert found in (None, content), "somebody else's answer"
    cache.write(key, content)
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for writer in writers:
        _, errors = writer.communicate()
        assert writer.returncode == 0, errors
        assert not errors
    cache = GenerationCache(tmp_path, max_bytes=60_000)
    cache.trim()
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 60_000
