"""Where relative paths are looked for.

Configs, datasets, prompts and server folders are looked for where the command was started, then in the current
directory, then in the installation. The first two differ only while a server is imported, built or run: that happens
in the server's own folder, so that its author can open files by relative names.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from nemo_gym import PARENT_DIR

STARTED_IN_ENV_VAR = "NEMO_GYM_STARTED_IN"  # set for server processes: where their command was started

_started_in: ContextVar[Path | None] = ContextVar("started_in", default=None)


def started_in() -> Path:
    """The directory in which the user typed the command; relative paths in settings start here."""
    return _started_in.get() or Path(os.environ.get(STARTED_IN_ENV_VAR) or Path.cwd())


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make a server's folder the current directory, as if the server had been started there.

    The current directory belongs to the whole process, so this is for start-up only, when nothing else is running.
    """
    token = _started_in.set(started_in())
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        _started_in.reset(token)


def readable_candidates(path: str | Path) -> list[Path]:
    """All places that a path to be read may refer to, in the order in which they are tried."""
    given = Path(path)
    if given.is_absolute():
        return [given]
    return list(dict.fromkeys([started_in() / given, Path.cwd() / given, PARENT_DIR / given]))


def find_readable(path: str | Path) -> Path | None:
    """The first of these places that exists, or None."""
    return next((candidate for candidate in readable_candidates(path) if candidate.exists()), None)


def server_directory(server_type: str, implementation: str) -> Path:
    """The folder that holds a server implementation.

    A folder in the current directory shadows the installed one only if it can be installed, that is, holds a
    ``requirements.txt`` or ``pyproject.toml``: the same name is often just a place for data.
    """
    here, installed = started_in() / server_type / implementation, PARENT_DIR / server_type / implementation
    if any((here / marker).is_file() for marker in ("requirements.txt", "pyproject.toml")):
        return here
    return here if here.is_dir() and not installed.is_dir() else installed
