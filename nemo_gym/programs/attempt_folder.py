"""The folder of one attempt: a fresh home, a fresh workspace, a place for temporary files, and what changed in them.

Folders lie in one place and are named after the process that made them, so those of a process that was killed are
found and removed by the next one. What a program leaves behind is read within limits, and no link is followed.
"""

import asyncio
import contextlib
import difflib
import getpass
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from nemo_gym.errors import ConfigError
from nemo_gym.io.process import is_running

MOST_FILES: Final = 20_000  # that are looked at
MOST_READ: Final = 32 << 20  # bytes of changed files
MOST_DIFF: Final = 200_000  # characters that are kept
LARGEST_SHOWN: Final = 1 << 20
_NOT_WORK: Final = frozenset({".git", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache"})


@dataclass(frozen=True, slots=True)
class Changes:
    """What an attempt changed in its workspace, compared with what it was given."""

    diff: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # new or changed ones, if they are text
    removed: tuple[str, ...] = ()
    is_complete: bool = True  # whether everything was within the limits

    def as_fields(self) -> dict[str, Any]:
        fields = {"diff": self.diff, "files": dict(self.files), "removed": list(self.removed)}
        return fields if self.is_complete else {**fields, "is_complete": False}


class AttemptFolder:
    """The folders of one attempt, which exist as long as the context."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.workspace, self.scratch, self.temporary = (root / n for n in ("home", "work", "keeper", "tmp"))
        self._given: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        for folder in (self.home, self.workspace, self.scratch, self.temporary):
            folder.mkdir(parents=True, mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, onerror=_make_removable)

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files: those that begin with ``~/`` into the home, all others into the workspace."""
        for name, content in files.items():
            folder = self.home if name.startswith("~/") else self.workspace
            path = folder / name.removeprefix("~/")
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(f"the file {name} lies outside the workspace", hint="name it by a relative path")
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            path.write_bytes(data)
            if folder is self.workspace:
                self._given[path.relative_to(folder).as_posix()] = data

    def changes(self) -> Changes:
        """What is different from what was written, within limits."""
        present, is_complete = self._present()
        texts: dict[str, str] = {}
        shown, room, budget = [], MOST_DIFF, MOST_READ
        for name, size in present.items():
            before = self._given.get(name)
            if size > LARGEST_SHOWN or size > budget:
                is_complete = False
                continue
            budget -= size
            now = read_regular(self.workspace, name, most=LARGEST_SHOWN)
            if now is None or now == before:
                continue
            try:
                texts[name] = now.decode()
            except UnicodeDecodeError:
                shown.append(f"Binary file {name} ({size} bytes)\n")
                continue
            shown.append(_diff(name, before, now))
        removed = tuple(name for name in self._given if name not in present)
        shown += [_diff(name, self._given[name], None) for name in removed]
        diff = "".join(shown)
        return Changes(diff[:room], texts, removed, is_complete and len(diff) <= room)

    def _present(self) -> tuple[dict[str, int], bool]:
        """The regular files of the workspace with their sizes, and whether those are all."""
        found: dict[str, int] = {}
        for name, size in _regular_files(self.workspace):
            if len(found) >= MOST_FILES:
                return found, False
            found[name] = size
        return found, True


def read_regular(folder: Path, name: str, *, most: int) -> bytes | None:
    """The content of a file below a folder; None if it is no regular file, too large, or reached through a link."""
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        return None
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(number, "rb") as file:
        status = os.fstat(number)
        return file.read(most) if stat.S_ISREG(status.st_mode) and status.st_size <= most else None


def _regular_files(folder: Path) -> Iterator[tuple[str, int]]:
    for parent, folders, names in os.walk(folder):  # which follows no links
        folders[:] = sorted(each for each in folders if each not in _NOT_WORK)
        for name in sorted(names):
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path.relative_to(folder).as_posix(), status.st_size


def _diff(name: str, before: bytes | None, now: bytes | None) -> str:
    old, new = ((text or b"").decode(errors="replace").splitlines(keepends=True) for text in (before, now))
    labels = ("/dev/null" if before is None else f"a/{name}", "/dev/null" if now is None else f"b/{name}")
    lines = difflib.unified_diff(old, new, *labels)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def workspace_files(given: Mapping[str, Any]) -> dict[str, str]:
    """The files that an environment puts into a workspace, by relative path."""
    for name, content in given.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or name.startswith("~") or not isinstance(content, str):
            raise ConfigError(
                f"{name!r} can't be a file of a workspace", hint="give text by relative paths: {'src/a.py': '…'}"
            )
    return dict(given)


class AttemptFolders:
    """Where the folders of attempts lie."""

    def __init__(self, base: Path | None = None) -> None:
        self.base = base or Path(tempfile.gettempdir()) / f"ng-programs-{getpass.getuser()}"

    def open(self) -> AttemptFolder:
        """A folder for one attempt; it is made when its context is entered."""
        self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
        return AttemptFolder(Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.base)))

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[AttemptFolder]:
        """The same in async code: a large folder takes a while to remove."""
        folder = await asyncio.to_thread(lambda: self.open().__enter__())
        try:
            yield folder
        finally:
            await asyncio.shield(asyncio.to_thread(folder.__exit__))

    def remove_abandoned(self) -> None:
        """Remove what processes left that were killed."""
        if not self.base.is_dir():
            return
        for folder in self.base.iterdir():
            owner = folder.name.partition("-")[0]
            if owner.isdigit() and not is_running(int(owner)):
                shutil.rmtree(folder, onerror=_make_removable)


def _make_removable(remove: Any, path: str, _: object) -> None:
    """A program may take away its own right to remove a folder; it has ended, so nobody minds."""
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        if not Path(path).is_symlink():
            Path(path).chmod(0o700)
        remove(path)
