"""Server folders: ``resources_servers/<name>`` and its two siblings, in the working directory or the installation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_gym import PARENT_DIR
from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.config.paths import server_directory
from nemo_gym.config.suggest import did_you_mean
from nemo_gym.errors import ConfigPathNotFoundError


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """One implementation of a server."""

    type: str
    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.type}/{self.name}"


def find_server(entrypoint: str) -> ServerFolder:
    """Find the folder that ``<type>/<name>`` means, or say which names there are."""
    kind, _, name = entrypoint.rstrip("/").partition("/")
    path = server_directory(kind, name)
    if not path.is_dir():
        known = [server.name for server in find_servers() if server.type == kind]
        raise ConfigPathNotFoundError(
            f"no folder {kind}/{name} in {Path.cwd()}" + (f" or {PARENT_DIR}" if Path.cwd() != PARENT_DIR else ""),
            hint=did_you_mean(name, known, available=f"In {kind}"),
        )
    return ServerFolder(kind, name, path)


def find_servers(roots: Sequence[Path] | None = None) -> list[ServerFolder]:
    """List all server folders of the working directory and of the installation (or of ``roots``), each name once."""
    found: dict[tuple[str, str], ServerFolder] = {}
    for root in dict.fromkeys(roots or (Path.cwd(), PARENT_DIR)):
        for kind in SERVER_TYPES:
            for path in sorted(filter(_is_server, (root / kind).glob("*"))):
                found.setdefault((kind, path.name), ServerFolder(kind, path.name, path))
    return list(found.values())


def _is_server(path: Path) -> bool:
    return any((path / marker).is_file() for marker in ("app.py", "requirements.txt", "pyproject.toml"))
