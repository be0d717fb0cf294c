"""Which Python a server runs with: this one if it has what the server requires, else one of the server's own."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Final

from nemo_gym.cli.folders import ServerFolder
from nemo_gym.servers.venvs import COMPLETE, ensure_venv, read_requirements, unmet

TEST_TOOLS: Final = ("httpx", "pytest", "pytest-asyncio")


def interpreter_for_tests(server: ServerFolder, cache: Path) -> Path:
    """Find or build an environment with what the server requires and with what its tests need."""
    requirements = read_requirements(server.path)
    if not unmet(requirements):
        return Path(sys.executable)
    return asyncio.run(ensure_venv(str(server), server.path, [*requirements, *TEST_TOOLS], cache))


def interpreter_of(server: ServerFolder, cache: Path) -> Path | None:
    """The Python that the server runs with; None if it needs its own and that was never built."""
    if not unmet(read_requirements(server.path)):
        return Path(sys.executable)
    return next((home / "bin" / "python" for home in _built(server, cache) if (home / COMPLETE).exists()), None)


def delete_environments(server: ServerFolder, cache: Path) -> None:
    """Free the space that the server's own environments take."""
    for home in _built(server, cache):
        shutil.rmtree(home)


def _built(server: ServerFolder, cache: Path) -> list[Path]:
    homes = (path for path in (cache / "venvs").glob(f"{server.name}-*") if path.is_dir())
    return sorted(homes, key=lambda path: path.stat().st_mtime, reverse=True)
