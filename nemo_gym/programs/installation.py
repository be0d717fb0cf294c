"""Programs in folders of their own: packages of npm and PyPI, installed once, in exactly the versions that are named.

A folder is named after its packages and complete when it says so; one that was left half-built is built again.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError

COMPLETE: Final = ".complete"
_LAST_LINES: Final = 15
_NPM: Final = "npm:"
_PIP: Final = "pip:"


@dataclass(frozen=True, slots=True)
class Installation:
    """The folder of a program with its packages."""

    folder: Path
    packages: tuple[str, ...]

    @classmethod
    def of(cls, title: str, packages: Sequence[str], cache: Path) -> "Installation":
        """Where the packages of a program are, or would be."""
        interpreter = sys.version if any(map(_is_pip, packages)) else ""
        digest = hashlib.sha256("\n".join([interpreter, *packages]).encode()).hexdigest()[:12]
        return cls(cache / "programs" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', title)}-{digest}", tuple(packages))

    @property
    def is_complete(self) -> bool:
        return not self.packages or (self.folder / COMPLETE).exists()

    @property
    def search_path(self) -> list[str]:
        """The folders in which its commands are."""
        return [str(self.folder / "bin"), str(self.folder / "node_modules" / ".bin")] if self.packages else []

    def require(self, title: str) -> None:
        """Refuse to go on without the packages."""
        if not self.is_complete:
            raise ConfigError(
                f"{title} is not installed: {', '.join(self.packages)}",
                hint="ng_prefetch with the same configuration installs it into a folder of its own",
            )

    def install(self) -> None:
        """Install what is missing. Other processes that want the same wait."""
        with _locked(self.folder.with_suffix(".lock")):
            if self.is_complete:
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            if npm := [package.removeprefix(_NPM) for package in self.packages if not _is_pip(package)]:
                self._install_npm(npm)
            if pip := [package.removeprefix(_PIP) for package in self.packages if _is_pip(package)]:
                _run([sys.executable, "-m", "venv", str(self.folder)], self.folder)
                python = str(self.folder / "bin" / "python")
                _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pip], self.folder)
            (self.folder / COMPLETE).touch()

    def _install_npm(self, packages: list[str]) -> None:
        if shutil.which("npm") is None:
            raise ConfigError(f"npm is needed to install {', '.join(packages)}", hint="install Node.js 20 or newer")
        _run(
            ["npm", "install", "--prefix", str(self.folder), "--no-audit", "--no-fund", "--loglevel=error", *packages],
            self.folder,
        )

    def versions(self) -> dict[str, str]:
        """The versions that are really there, by package."""
        return {name: version for package in self.packages for name, version in [self._version_of(package)]}

    def _version_of(self, package: str) -> tuple[str, str]:
        if _is_pip(package):
            name = re.split(r"[\[=]", package.removeprefix(_PIP))[0]
            wanted = re.sub(r"[-_.]+", "_", name).lower()
            for info in self.folder.glob("lib/python*/site-packages/*.dist-info"):
                found, _, version = info.stem.rpartition("-")
                if re.sub(r"[-_.]+", "_", found).lower() == wanted:
                    return name, version
            return name, "unknown"
        name = package.removeprefix(_NPM).rpartition("@")[0]
        described = self.folder / "node_modules" / name / "package.json"
        return name, str(json.loads(described.read_text("utf-8"))["version"]) if described.is_file() else "unknown"


def _is_pip(package: str) -> bool:
    return package.startswith(_PIP)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LAST_LINES:])
        raise ConfigError(
            f"`{' '.join(command[:4])} …` ended with exit code {done.returncode}:\n{tail}",
            hint="check the names and versions under install:, and that the registry can be reached",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
