"""Gathers all sources of a configuration, in the order in which they are merged.

    files that others include  <  files in config_paths  <  env.yaml  <  the caller's dict  <  the command line

A file overrides the files that its own ``config_paths`` include, at any depth; of files listed together, the later one
wins. Every file is loaded only once, however often it is named. Errors in a YAML file say where they are but never
quote its text, because the malformed line may hold a secret.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, GrammarParseError, InterpolationResolutionError, OmegaConfBaseException

from nemo_gym.config.directives import expand_short_forms
from nemo_gym.config.interpolation import find_unresolved, unresolved_error
from nemo_gym.config.keys import CONFIG_PATHS
from nemo_gym.config.locate import COMMAND_LINE, ConfigSource, Locator, find_readable, readable_candidates
from nemo_gym.config.overrides import parse_overrides
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, MalformedConfigPathsError, nearest
from nemo_gym.io.yaml_text import check_yaml

logger = logging.getLogger(__name__)


# An alias, anchor or tag that the parser quotes may be a secret that happens to start with *, & or !.
_NAMED: Final = re.compile(r"\b(alias|anchor|tag) '[^']*'")


def load_source(path: Path, *, label: str) -> ConfigSource:
    """The content of a configuration file. ``label`` is how the user named it."""
    return ConfigSource(label, load_yaml(path, label=label), path)


def load_yaml(path: Path, *, label: str) -> dict[Any, Any]:
    """A mapping from a YAML file, unresolved. Duplicate keys are refused; an empty file is an empty mapping."""
    text = _read(path, label)
    try:
        # A lone word is valid YAML, which OmegaConf would take for a key without a value.
        is_mapping = check_yaml(text) in (None, yaml.MappingStartEvent)
        config = OmegaConf.create(text) if is_mapping else None
    except yaml.MarkedYAMLError as error:
        raise _bad_yaml(error, label) from None
    except yaml.YAMLError:
        raise ConfigError(
            f"{label}: malformed YAML: it contains a character that is not allowed",
            hint="remove control characters",
        ) from None
    except OmegaConfBaseException as error:
        raise _bad_value(error, label, hint="remove the YAML tag (!!...) in front of it") from None
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{label}: the top level is not a mapping of keys to values", hint="write 'key: value' lines")
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return data


def _read(path: Path, label: str) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(
            f"{label}: can't be read ({error.strerror})",
            hint="check that it is a file and that you have permission to read it",
        ) from None


def _bad_yaml(error: yaml.MarkedYAMLError, label: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    place = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
    reason = _NAMED.sub(r"\1", ", ".join(filter(None, (error.context, error.problem))) or "unreadable")
    return ConfigError(
        f"{place}: malformed YAML: {reason}",
        hint="correct that line; YAML is indented with spaces, not tabs",
    )


def _bad_value(error: OmegaConfBaseException, label: str, *, hint: str) -> ConfigError:
    value = f"{label}: the value of '{error.full_key or error.key or '?'}'"
    if isinstance(error, GrammarParseError):
        return ConfigError(
            f"{value} contains a malformed ${{...}} expression",
            hint="close every ${ with }, and write a literal ${ as \\${",
        )
    return ConfigError(f"{value} is not text, a number, a list or a mapping", hint=hint)


MOST_KEYS: Final = 5  # of those that one file changes in another, listed in a message
CALLER: Final = "initial_global_config_dict"


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything a configuration is made of, lowest priority first."""

    files: list[ConfigSource] = field(default_factory=list)
    rest: list[ConfigSource] = field(default_factory=list)

    @property
    def all(self) -> list[ConfigSource]:
        """All sources in the order in which they are merged."""
        return [*self.files, *self.rest]

    @property
    def locator(self) -> Locator:
        """Finds where a key was written, in any of the sources."""
        return Locator(self.all)


def gather(
    overrides: Sequence[str] = (),
    *,
    pairs: Mapping[str, Any] | None = None,
    env_path: Path | None = None,
    initial: Mapping[Any, Any] | DictConfig | None = None,
) -> Sources:
    """Read the command line (pairs, then overrides), ``env.yaml`` and the caller's dict, then all files they name.

    The parameters are those of ``parse_config``.
    """
    env = [load_source(env_path, label=_label(env_path))] if env_path else []
    # Commands that need no model pass empty values for it. These fill gaps but must not erase what env.yaml sets.
    known = {key for source in env for key, value in source.data.items() if value}
    given = {key: value for key, value in _plain(initial or {}).items() if value != "" or key not in known}
    rest = [
        *env,
        *([ConfigSource(CALLER, given)] if initial is not None else []),
        ConfigSource(COMMAND_LINE, parse_overrides(overrides, pairs)),
    ]
    rest = [ConfigSource(source.label, expand_short_forms(source.data), source.path) for source in rest]
    return Sources(_load_files(rest), rest)


def merge_sources(sources: Sequence[ConfigSource]) -> DictConfig:
    """Deep merge: later sources win, mappings are combined, lists are replaced."""
    try:
        merged = OmegaConf.merge({}, *map(_created, sources))
    except ConfigTypeError:
        raise _clash(sources) from None
    assert isinstance(merged, DictConfig)
    return merged


def _created(source: ConfigSource) -> DictConfig:
    try:
        return OmegaConf.create(source.data)
    except OmegaConfBaseException as error:  # only a program or a flag can give such a value; files were checked
        raise _bad_value(error, source.label, hint="convert it to one of these") from None


def _clash(sources: Sequence[ConfigSource]) -> ConfigError:
    for index, source in enumerate(sources):
        for earlier in sources[:index]:
            if key := _clashing_key(earlier.data, source.data):
                first, second = Locator([earlier]).find(key), Locator([source]).find(key)
                return ConfigError(
                    f"'{key}' is a list in one place and a mapping in another: {first} and {second}",
                    hint="make both a list or both a mapping, or use another key",
                )
    return ConfigError(
        "a list and a mapping can't be merged",
        hint="look for a key that is a list in one file and a mapping in another",
    )


def _clashing_key(below: Any, above: Any, key: str = "") -> str | None:
    if isinstance(below, dict) and isinstance(above, dict):
        common = (name for name in above if name in below)
        keys = (_clashing_key(below[name], above[name], f"{key}.{name}" if key else str(name)) for name in common)
        return next((found for found in keys if found), None)
    return key if {type(below), type(above)} == {dict, list} else None


def _load_files(rest: list[ConfigSource]) -> list[ConfigSource]:
    top, locator = merge_sources(rest), Locator(rest)
    loading = _Loading(rest)
    for entry in config_paths(top, locator):
        loading.load(entry, locator.at(CONFIG_PATHS))
    if loading.duplicates:
        named = ", ".join(loading.duplicates)
        logger.warning("config_paths names a file more than once; it is loaded once: %s", named)
    if loading.overridden:
        logger.info(
            "a file overrides the files that it includes: %s (in NeMo Gym before 0.6.0, the included file won)",
            "; ".join(loading.overridden),
        )
    return list(filter(None, loading.loaded.values()))


@dataclass(slots=True)
class _Loading:
    """Loads files, each after those that it includes, so that it overrides them."""

    rest: list[ConfigSource]
    loaded: dict[Path, ConfigSource | None] = field(default_factory=dict)  # None while its includes are loaded
    duplicates: list[str] = field(default_factory=list)
    overridden: list[str] = field(default_factory=list)

    def load(self, entry: str, named_at: str) -> ConfigSource | None:
        """Load a file and what it includes. None if it was loaded before."""
        path = find_readable(entry)
        if path is None:
            raise _not_found(entry, named_at)
        key = path.resolve()
        if key in self.loaded:
            self.duplicates.append(entry)
            return None
        self.loaded[key] = None
        source = load_source(path, label=entry)
        source = ConfigSource(source.label, expand_short_forms(source.data), path)
        for name in _named_by(source, self.rest):
            included = self.load(name, Locator([source]).at(CONFIG_PATHS))
            if included is not None and (changed := _changed_keys(included.data, source.data)):
                shown = ", ".join(changed[:MOST_KEYS]) + (", …" if len(changed) > MOST_KEYS else "")
                self.overridden.append(f"{entry} sets {shown} of {name}")
        del self.loaded[key]  # its place is after its includes
        self.loaded[key] = source
        return source


def _changed_keys(below: Any, above: Any, key: str = "") -> list[str]:
    """The dotted keys that both define with different values."""
    if isinstance(below, dict) and isinstance(above, dict):
        common = [name for name in above if name in below and name != CONFIG_PATHS]
        found = (_changed_keys(below[name], above[name], f"{key}.{name}" if key else str(name)) for name in common)
        return [changed for part in found for changed in part]
    return [] if below == above else [key]


def _named_by(source: ConfigSource, rest: list[ConfigSource]) -> list[str]:
    if CONFIG_PATHS not in source.data:
        return []
    # The other sources may define what the paths of this file refer to, but their own lists must not replace them.
    others = [ConfigSource(other.label, {k: v for k, v in other.data.items() if k != CONFIG_PATHS}) for other in rest]
    return config_paths(merge_sources([source, *others]), Locator([source]))


def config_paths(config: DictConfig, locator: Locator) -> list[str]:
    """The validated list under ``config_paths``."""
    try:
        value = config.get(CONFIG_PATHS)
        entries = list(value) if isinstance(value, ListConfig) else value
    except InterpolationResolutionError:
        problems = [problem for problem in find_unresolved(config, "") if problem.key.startswith(CONFIG_PATHS)]
        raise unresolved_error(problems, locator=locator) from None
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise _bad_config_paths(locator, f"is not a list but {_kind(entries)}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, str | Path) or not str(entry):
            raise _bad_config_paths(locator, f"contains {_kind(entry)} instead of a path (entry {index + 1})")
    return [str(entry) for entry in entries]


def _bad_config_paths(locator: Locator, problem: str) -> MalformedConfigPathsError:
    return MalformedConfigPathsError(
        f"{locator.at(CONFIG_PATHS)}'{CONFIG_PATHS}' {problem}",
        hint=f'give a list of paths: "+{CONFIG_PATHS}=[first.yaml,second.yaml]"',
    )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    return "a mapping" if isinstance(value, DictConfig) else f"a value of type {type(value).__name__}"


def _not_found(entry: str, named_at: str) -> ConfigPathNotFoundError:
    candidates = readable_candidates(entry)
    folders = [candidate.parent for candidate in candidates if candidate.parent.is_dir()]
    siblings = {path.stem: Path(entry).parent / path.name for folder in folders for path in folder.glob("*.y*ml")}
    near = [str(siblings[stem]) for stem in nearest(Path(entry).stem, siblings)]
    looked = "".join(f"\n  {candidate}" for candidate in candidates)
    return ConfigPathNotFoundError(
        f"{named_at}config file '{entry}' does not exist. Looked for:{looked}",
        hint=f"did you mean {' or '.join(near)}?" if near else "relative paths start in the current directory",
    )


def _label(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _plain(data: Mapping[Any, Any] | DictConfig) -> dict[Any, Any]:
    config = data if isinstance(data, DictConfig) else OmegaConf.create(dict(data))
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return plain
