"""Turns all sources into one validated configuration, and rejects unknown parameters of a command.

    sources ─► merge ─► directives ─► required values ─► servers ─► references ─► addresses ─► configuration

Everything is checked before anything is started, and nothing is written anywhere. Interpolations stay as they are and
are resolved when the value is read.
"""

import importlib.metadata
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from nemo_gym import RESULTS_DIR
from nemo_gym.config import keys
from nemo_gym.config.addresses import assign_addresses, read_settings
from nemo_gym.config.directives import Expanded, expand, merge
from nemo_gym.config.environments import check_environment_servers, complete_environments
from nemo_gym.config.instances import check_references, read_servers
from nemo_gym.config.interpolation import check_missing, find_unresolved, interpolated_roots, unresolved_error
from nemo_gym.config.keys import COMMAND_KEYS, GLOBAL_KEYS, UNUSED_KEYS
from nemo_gym.config.locate import Locator, segments
from nemo_gym.config.servers import blocks, is_almost_server
from nemo_gym.config.sources import Sources, gather, merge_sources
from nemo_gym.errors import ConfigError, nearest

MOST_LISTED: Final = 12  # parameters that a hint lists beside suggestions


def check_parameters(
    given: Iterable[str], *, fields: Collection[str], config: DictConfig, declared: Collection[str] = ()
) -> None:
    """Refuse unknown command-line keys. One error lists all of them, each with the nearest known key."""
    similar = unknown_keys(given, fields=fields, config=config, declared=declared)
    if not similar:
        return
    # A long list would only hide the suggestions.
    takes = "--help lists all parameters"
    if len(fields) <= MOST_LISTED or not all(similar.values()):
        takes = f"this command takes: {', '.join(sorted(fields)) or 'no parameters'}"
    raise ConfigError(
        "\n".join(_unknown(key, near) for key, near in similar.items()),
        hint=f"{takes}; any other key must be used by a config file as ${{{next(iter(similar))}}}",
    )


def unknown_keys(
    given: Iterable[str], *, fields: Collection[str] = (), config: DictConfig, declared: Collection[str] = ()
) -> dict[str, list[str]]:
    """The unknown ones among keys that somebody gave, each with the nearest known keys.

    Without this check a misspelt parameter would be taken for a free key and silently ignored. A key is known if it is
    a field of the command's configuration class, a global key, a server, a key that some value refers to as
    ``${key}``, or one that a configuration file sets too (``declared``).
    """
    # A server that is not quite valid counts: its own error is reported elsewhere and says more.
    servers = {name for name, block in blocks(config) if is_almost_server(block)}
    used = interpolated_roots(OmegaConf.to_container(config, resolve=False))
    known = {*fields, *(GLOBAL_KEYS - COMMAND_KEYS - UNUSED_KEYS), *servers, *used, *declared}
    unknown = dict.fromkeys(root for key in given if (root := segments(key)[0]) not in known)
    return {key: nearest(key, known - {"h", "_copy", "_inherit_from", "_delete_key"}) for key in unknown}


def _unknown(key: str, near: Sequence[str]) -> str:
    suggestion = f" Did you mean: {' or '.join(map(repr, near))}?" if near else ""
    return f"command line: unknown parameter '{key}'.{suggestion}"


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """A configuration, the top-level keys its other sources declare, and those given on the command line."""

    config: DictConfig
    declared: frozenset[str]
    given: tuple[str, ...]


def parse_config(
    overrides: Sequence[str] = (),
    *,
    pairs: Mapping[str, Any] | None = None,
    env_path: Path | None = None,
    initial: Mapping[Any, Any] | DictConfig | None = None,
) -> ParsedConfig:
    """Build a configuration from what a command or a program sets, and all files.

    ``overrides`` are what people type, ``+a.b=value``. ``pairs`` are the same without a grammar: dotted keys and plain
    values, ``{"config_paths": ["a.yaml"], "responses_create_params.temperature": 0.7}``. Both take precedence over
    ``env_path`` (an ``env.yaml``), ``initial`` (defaults of the caller) and the files in ``config_paths``.
    """
    sources = gather(overrides, pairs=pairs, env_path=env_path, initial=initial)
    merged = merge_sources(sources.all)
    merged[keys.CONFIG_PATHS] = [source.label for source in sources.files]
    raw = _container(merged)
    expanded = expand(
        raw, locator=sources.locator, interpolate=lambda text: _interpolate(text, merged, sources.locator)
    )
    replace_dummy_model(expanded.data)
    complete_environments(expanded.data, expanded.moved)
    check_missing(expanded.data, locator=sources.locator)
    config = _complete(expanded, sources.locator)
    return ParsedConfig(config, _declared(sources, raw), tuple(sources.rest[-1].data))


def replace_dummy_model(data: dict[Any, Any]) -> None:
    """Let a real policy model replace the dummy one that commands without a model add."""
    match data.get(keys.POLICY_MODEL):
        case {keys.RESPONSES_API_MODELS: {keys.DUMMY_MODEL: dict(dummy), **real} as implementations} if real:
            for name, settings in real.items():
                implementations[name] = merge(dummy, settings)
            del implementations[keys.DUMMY_MODEL]


def _complete(expanded: Expanded, locator: Locator) -> DictConfig:
    data, config = expanded.data, OmegaConf.create(expanded.data)
    settings = read_settings(config, locator=locator)
    servers = read_servers(config, locator=locator, strict=settings.error_on_almost_servers)
    check_references(servers, moved=expanded.moved, locator=locator, others=data.keys())
    check_environment_servers(servers, config, locator=locator)
    taken = assign_addresses(data, config, servers, settings=settings, locator=locator)
    data[keys.HEAD_SERVER] = settings.head().model_dump(exclude_none=True)
    data[keys.DEFAULT_HOST] = settings.host()
    data[keys.DISALLOWED_PORTS] = taken
    data.setdefault(keys.RESULTS_DIR, str(RESULTS_DIR))
    # Servers in separate environments are built with the same Python and the same versions of these packages.
    data.setdefault(keys.PYTHON_VERSION, ".".join(map(str, sys.version_info[:3])))
    data.setdefault(keys.HEAD_SERVER_DEPS, _pins({"ray": "ray[default]", "openai": "openai"}))
    return OmegaConf.create(data)


def _pins(requirements: Mapping[str, str]) -> list[str]:
    """Requirements with the installed versions; packages that are not installed are left out."""
    found = []
    for package, requirement in requirements.items():
        try:
            found.append(f"{requirement}=={importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _declared(sources: Sources, raw: dict[Any, Any]) -> frozenset[str]:
    own = {str(key) for source in sources.all[:-1] for key in source.data}
    return frozenset(own | interpolated_roots(raw) | interpolated_roots(sources.rest[-1].data) | _inherited_roots(raw))


def _inherited_roots(data: Any) -> set[str]:
    if isinstance(data, list):
        return set().union(*map(_inherited_roots, data))
    if not isinstance(data, dict):
        return set()
    paths = [data[name] for name in (keys.INHERIT_FROM, keys.COPY) if isinstance(data.get(name), str)]
    return set().union({segments(path)[0] for path in paths if segments(path)}, *map(_inherited_roots, data.values()))


def _interpolate(text: str, merged: DictConfig, locator: Locator) -> str:
    holder = OmegaConf.create({keys.INHERIT_FROM: text}, parent=merged)
    try:
        return str(holder[keys.INHERIT_FROM])
    except InterpolationResolutionError:
        raise unresolved_error(list(find_unresolved(holder, "")), locator=locator) from None


def _container(config: DictConfig) -> dict[Any, Any]:
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return data
