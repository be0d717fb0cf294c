"""Gathers all sources of a configuration, in the order in which they are merged.

    files in config_paths  <  files they name  <  env.yaml  <  the caller's dict  <  the command line

A file named by another file goes to the end of the list, so it overrides the one that names it. Every file is loaded
once, whatever names it how often.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, InterpolationResolutionError

from nemo_gym.config.directives import lengthen
from nemo_gym.config.files import load_source
from nemo_gym.config.interpolation import find_unresolved, unresolved_error
from nemo_gym.config.keys import CONFIG_PATHS
from nemo_gym.config.locate import COMMAND_LINE, Locator, Source
from nemo_gym.config.overrides import parse_overrides
from nemo_gym.config.paths import find_readable, readable_candidates
from nemo_gym.config.suggest import nearest
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, MalformedConfigPathsError

CALLER: Final = "initial_global_config_dict"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything a configuration is made of, lowest priority first."""

    files: list[Source] = field(default_factory=list)
    rest: list[Source] = field(default_factory=list)

    @property
    def all(self) -> list[Source]:
        """All sources in the order in which they are merged."""
        return [*self.files, *self.rest]

    @property
    def locator(self) -> Locator:
        """Finds where a key was written."""
        return Locator(self.all)


def gather(
    overrides: Sequence[str] = (),
    *,
    env_path: Path | None = None,
    initial: Mapping[Any, Any] | DictConfig | None = None,
) -> Sources:
    """Read the command line, ``env.yaml`` and the caller's dict, then all files that they name."""
    rest = [
        *([load_source(env_path, label=_label(env_path))] if env_path else []),
        *([Source(CALLER, _plain(initial))] if initial is not None else []),
        Source(COMMAND_LINE, parse_overrides(overrides)),
    ]
    rest = [Source(source.label, lengthen(source.data), source.path) for source in rest]
    return Sources(_load_files(rest), rest)


def merge_sources(sources: Sequence[Source]) -> DictConfig:
    """Deep merge: later sources win, mappings are united, lists are replaced."""
    try:
        merged = OmegaConf.merge({}, *(OmegaConf.create(source.data) for source in sources))
    except ConfigTypeError:
        raise _clash(sources) from None
    assert isinstance(merged, DictConfig)
    return merged


def _clash(sources: Sequence[Source]) -> ConfigError:
    for index, source in enumerate(sources):
        for earlier in sources[:index]:
            if key := _clashing_key(earlier.data, source.data):
                first, second = Locator([earlier]).find(key), Locator([source]).find(key)
                return ConfigError(
                    f"'{key}' is a list in one place and a mapping in another: {first} and {second}",
                    hint="make both a list or both a mapping, or use another key",
                )
    return ConfigError("a list and a mapping can't be merged", hint="look for a key that is a list in one file only")


def _clashing_key(below: Any, above: Any, key: str = "") -> str | None:
    if isinstance(below, dict) and isinstance(above, dict):
        common = (name for name in above if name in below)
        keys = (_clashing_key(below[name], above[name], f"{key}.{name}" if key else str(name)) for name in common)
        return next((found for found in keys if found), None)
    return key if {type(below), type(above)} == {dict, list} else None


def _load_files(rest: list[Source]) -> list[Source]:
    top, locator = merge_sources(rest), Locator(rest)
    queue = [(entry, locator.at(CONFIG_PATHS)) for entry in config_paths(top, locator)]
    loaded: dict[Path, Source] = {}
    duplicates: list[str] = []
    for entry, named_at in queue:  # grows while it is walked
        path = find_readable(entry)
        if path is None:
            raise _not_found(entry, named_at)
        if path.resolve() in loaded:
            duplicates.append(entry)
            continue
        source = load_source(path, label=entry)
        loaded[path.resolve()] = source = Source(source.label, lengthen(source.data), path)
        queue.extend((name, Locator([source]).at(CONFIG_PATHS)) for name in _named_by(source, rest))
    if duplicates:
        logger.warning("config_paths names a file more than once; it is loaded once: %s", ", ".join(duplicates))
    return list(loaded.values())


def _named_by(source: Source, rest: list[Source]) -> list[str]:
    if CONFIG_PATHS not in source.data:
        return []
    others = [Source(other.label, {k: v for k, v in other.data.items() if k != CONFIG_PATHS}) for other in rest]
    return config_paths(merge_sources([source, *others]), Locator([source]))


def config_paths(config: DictConfig, locator: Locator) -> list[str]:
    """The list under ``config_paths``, checked."""
    try:
        value = config.get(CONFIG_PATHS)
        entries = list(value) if isinstance(value, ListConfig) else value
    except InterpolationResolutionError:
        problems = [problem for problem in find_unresolved(config, "") if problem.key.startswith(CONFIG_PATHS)]
        raise unresolved_error(problems, locator=locator) from None
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise _malformed(locator, f"is not a list but {_kind(entries)}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, str | Path) or not str(entry):
            raise _malformed(locator, f"holds {_kind(entry)} (entry {index + 1}) where a path belongs")
    return [str(entry) for entry in entries]


def _malformed(locator: Locator, problem: str) -> MalformedConfigPathsError:
    return MalformedConfigPathsError(
        f"{locator.at(CONFIG_PATHS)}'{CONFIG_PATHS}' {problem}",
        hint=f'give a list of paths: "+{CONFIG_PATHS}=[first.yaml,second.yaml]"',
    )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a text"
    return "a mapping" if isinstance(value, DictConfig) else f"a value of type {type(value).__name__}"


def _not_found(entry: str, named_at: str) -> ConfigPathNotFoundError:
    candidates = readable_candidates(entry)
    folders = [candidate.parent for candidate in candidates if candidate.parent.is_dir()]
    siblings = {path.stem: Path(entry).parent / path.name for folder in folders for path in folder.glob("*.y*ml")}
    near = [str(siblings[stem]) for stem in nearest(Path(entry).stem, siblings)]
    looked = "".join(f"\n  {candidate}" for candidate in candidates)
    return ConfigPathNotFoundError(
        f"{named_at}config file '{entry}' does not exist. Looked for:{looked}",
        hint=f"did you mean {' or '.join(near)}?" if near else "relative paths start at the current directory",
    )


def _label(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _plain(data: Mapping[Any, Any] | DictConfig) -> dict[Any, Any]:
    config = data if isinstance(data, DictConfig) else OmegaConf.create(dict(data))
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return plain
