"""Finds the file that a relative path refers to, and the place where a key was written, so that an error can say where.

Configs, datasets, prompts and server folders are looked for in the folders of ``NEMO_GYM_EXTRA_ROOTS``, where the
command was started, in the current directory, and in the installation. The second and third differ only while a server
is imported, built or run: that happens in the server's own folder, so that its author can open files by relative names.

Where keys are written is not recorded while a configuration is read: the files are searched again when there is an
error to report. A key that no source contains literally (it was inherited, or is missing) is reported at its nearest
enclosing block.
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml
from omegaconf import DictConfig, OmegaConf

from nemo_gym import INSTALL_DIR
from nemo_gym.config.keys import CONFIG_PATHS, ENV_FILE_NAME
from nemo_gym.io.yaml_text import read_yaml

EXTRA_ROOTS_ENV_VAR = "NEMO_GYM_EXTRA_ROOTS"  # folders that are searched before all others
STARTED_IN_ENV_VAR = "NEMO_GYM_STARTED_IN"  # set for server processes: where their command was started

logger = logging.getLogger(__name__)

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
    return [root / given for root in _roots()]


def _roots() -> list[Path]:
    more = [Path(root) for root in os.environ.get(EXTRA_ROOTS_ENV_VAR, "").split(os.pathsep) if root]
    return list(dict.fromkeys([*more, started_in(), Path.cwd(), INSTALL_DIR]))


def _resolve_under_cwd_or_install(path: str | Path, *, validator: Callable[[Path], bool] | None = None) -> Path:
    """The first place that a path may refer to for which ``validator`` holds (default: it exists), or else the first.

    Server folders import this name from the package.
    """
    candidates = readable_candidates(path)
    return next((each for each in candidates if (validator or Path.exists)(each)), candidates[0])


def find_readable(path: str | Path) -> Path | None:
    """The first of these places that exists, or None."""
    return next((candidate for candidate in readable_candidates(path) if candidate.exists()), None)


def find_env_file() -> Path | None:
    """The ``env.yaml`` that applies; one that nobody put where the command was started is announced."""
    found = find_readable(ENV_FILE_NAME)
    if found is None or not found.is_file():
        return None
    if INSTALL_DIR.samefile(found.parent) and not INSTALL_DIR.samefile(started_in()):
        logger.info("using %s of the installation, because there is none in %s", found, started_in())
    return found


def server_directory(server_type: str, implementation: str) -> Path:
    """The folder that holds a server implementation.

    A folder in the current directory shadows the installed one only if it can be installed, that is, holds a
    ``requirements.txt`` or ``pyproject.toml``: the same name is often just a place for data.
    """
    *places, installed = (root / server_type / implementation for root in (*_roots(), INSTALL_DIR))
    for here in places:
        if any((here / marker).is_file() for marker in ("requirements.txt", "pyproject.toml")):
            return here
    return next((here for here in places if here.is_dir()), installed) if not installed.is_dir() else installed


COMMAND_LINE: Final = "command line"
_SEGMENT: Final = re.compile(r"[^.\[\]]+")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """One origin of configuration: its name in messages, its content as plain data, and its file if it has one."""

    label: str
    data: dict[Any, Any]
    path: Path | None = None


def segments(key: str) -> list[str]:
    """The parts of a dotted key: ``a.b[0].c`` has four."""
    return _SEGMENT.findall(key)


@dataclass(frozen=True, slots=True)
class Locator:
    """Finds where a key comes from. Sources are listed in the order in which they were merged: the last one wins."""

    sources: Sequence[ConfigSource] = ()
    reopen: Sequence[str] = ()  # files to search again, for a configuration whose sources are gone

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """A locator for a finished configuration, made from the list of files in it."""
        raw = OmegaConf.to_container(OmegaConf.masked_copy(config, CONFIG_PATHS), resolve=False)
        listed = raw.get(CONFIG_PATHS) if isinstance(raw, dict) else None
        return cls(reopen=[*map(str, listed if isinstance(listed, list) else []), ENV_FILE_NAME])

    def at(self, key: str) -> str:
        """``file:line: `` of the key, to put in front of a message; empty if it is unknown."""
        return f"{place}: " if (place := self.find(key)) else ""

    def find(self, key: str) -> str | None:
        """``file:line`` of the key, or of the nearest block around it."""
        path = segments(key)
        sources = [*filter(None, map(_reopen, self.reopen)), *self.sources]
        # From the whole key to its outermost block; at each length, the source that wins comes first.
        for length in range(len(path), 0, -1):
            for source in reversed(sources):
                if _holds(source.data, path[:length]):
                    return _place(source, path[:length])
        return None


def _reopen(name: str) -> ConfigSource | None:
    path = find_readable(name)
    if path is None:
        return None
    try:
        data = read_yaml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        # This runs while another error is being reported, which must not be replaced by this one.
        return None
    return ConfigSource(name, data, path) if isinstance(data, dict) else None


def _holds(data: Any, path: list[str]) -> bool:
    for segment in path:
        if isinstance(data, dict) and segment in data:
            data = data[segment]
        elif isinstance(data, list) and segment.isdigit() and int(segment) < len(data):
            data = data[int(segment)]
        else:
            return False
    return True


def _place(source: ConfigSource, path: list[str]) -> str:
    if source.path is None:
        return source.label
    try:
        root = yaml.compose(source.path.read_text("utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return source.label
    lines = list(_lines(root, path))
    return f"{source.label}:{lines[-1]}" if lines else source.label


def _lines(node: yaml.Node | None, path: list[str]) -> Iterator[int]:
    """The line of each part of the path, as far down as nodes exist."""
    for segment in path:
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == segment]
        elif isinstance(node, yaml.SequenceNode) and segment.isdigit() and int(segment) < len(node.value):
            pairs = [(node.value[int(segment)], node.value[int(segment)])]
        else:
            return
        if not pairs:
            return
        key, node = pairs[-1]
        yield key.start_mark.line + 1
