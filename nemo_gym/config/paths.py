"""Where relative paths are looked for.

Whatever is read (configs, datasets, prompts, server folders) is looked for in the current directory first, then in
the installation. Whatever is written is relative to the current directory only, so writers do not need this module.
"""

from pathlib import Path

from nemo_gym import PARENT_DIR


def readable_candidates(path: str | Path) -> list[Path]:
    """All places that a path to read may mean, in the order in which they are tried."""
    given = Path(path)
    if given.is_absolute():
        return [given]
    return list(dict.fromkeys([Path.cwd() / given, PARENT_DIR / given]))


def find_readable(path: str | Path) -> Path | None:
    """The first existing place that the path may mean, or None."""
    return next((candidate for candidate in readable_candidates(path) if candidate.exists()), None)


def server_directory(server_type: str, implementation: str) -> Path:
    """The folder that holds a server implementation.

    A folder in the current directory shadows the installed one only if it can be installed, that is, holds a
    ``requirements.txt`` or ``pyproject.toml``: the same name is often just a place for data.
    """
    here, installed = Path.cwd() / server_type / implementation, PARENT_DIR / server_type / implementation
    if any((here / marker).is_file() for marker in ("requirements.txt", "pyproject.toml")):
        return here
    return here if here.is_dir() and not installed.is_dir() else installed
