"""The providers of sandboxes, by name: ours, those that a program registers, and those that packages bring along.

A provider is configured by its name or by a mapping ``{name: {options}}``. A configuration may name such mappings, as
top-level blocks or under ``sandbox_providers``; ``resolve_provider_config`` finds them. The key ``default_metadata`` of
a block is for its user and not an option. A package adds a provider by an entry point (``nemo_gym.sandbox_providers``).
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.interface import SandboxProvider
from nemo_gym.sandbox.local_provider import LocalProvider
from nemo_gym.sandbox.session_providers import DockerProvider, JailProvider, PodmanProvider

DEFAULT_PROVIDER: Final = "jail"
METADATA: Final = "default_metadata"
ENTRY_POINTS: Final = "nemo_gym.sandbox_providers"
ProviderFactory = Callable[..., SandboxProvider]
_BUILT_IN: Final[Mapping[str, ProviderFactory]] = {
    provider.name: provider for provider in (JailProvider, DockerProvider, PodmanProvider, LocalProvider)
}
_registered: dict[str, ProviderFactory] = {}


class ProviderConfigError(ConfigError, ValueError):
    """The configuration of a sandbox provider names none, several, or one that does not exist."""


def register_provider(name: str, provider: ProviderFactory) -> None:
    """Register a provider under a name, replacing any earlier one."""
    _registered[name] = provider


def get_provider_class(name: str) -> ProviderFactory:
    """The provider that is registered under a name."""
    known = {**_BUILT_IN, **_registered}
    if name in known:
        return known[name]
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        factory: ProviderFactory = entry.load()
        return factory
    raise ProviderConfigError(
        f"there is no sandbox provider {name!r}", hint=f"choose one of {', '.join(list_providers())}"
    )


def list_providers() -> list[str]:
    """All names, in alphabetical order."""
    return sorted({**_BUILT_IN, **_registered, **{entry.name: None for entry in entry_points(group=ENTRY_POINTS)}})


def create_provider(config: str | Mapping[str, Any] | SandboxProvider) -> SandboxProvider:
    """Create a provider from its name or from ``{name: {options}}``; a provider is returned unchanged."""
    if isinstance(config, SandboxProvider):
        return config
    name, options = (config, {}) if isinstance(config, str) else _only_item(config)
    try:
        return get_provider_class(name)(**options)
    except TypeError as error:
        raise ConfigError(f"the options of the sandbox provider {name!r} are not valid: {error}") from error


def resolve_provider_config(
    sandbox_provider: str | Mapping[str, Any] | None, named_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The provider's mapping, from a mapping, a named block, or the name of a registered provider."""
    if sandbox_provider is None:
        return {DEFAULT_PROVIDER: {}}
    name, options = _only_item(_block(sandbox_provider, named_configs))
    return {name: options}


def resolve_provider_metadata(
    sandbox_provider: str | Mapping[str, Any] | None, named_configs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a block says about all sandboxes made from it; empty if it says nothing."""
    return dict(_block(sandbox_provider, named_configs).get(METADATA) or {}) if sandbox_provider is not None else {}


def _block(config: Any, named_configs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, str):
        raise TypeError(f"a sandbox provider is a name or a mapping, not {type(config).__name__}")
    named = named_configs or {}
    found = (named.get("sandbox_providers") or {}).get(config, named.get(config))
    if isinstance(found, Mapping):
        return found
    get_provider_class(config)  # which says which names there are
    return {config: {}}


def _only_item(config: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(config, Mapping):
        raise TypeError(f"a sandbox provider is a name or one name with options, not {type(config).__name__}")
    found = {str(name): options for name, options in config.items() if name != METADATA}
    if len(found) != 1:
        raise ProviderConfigError(f"a sandbox provider is one name with options, not {sorted(found)}")
    name, options = next(iter(found.items()))
    return name, {str(key): _plain(value) for key, value in (options or {}).items()}


def _plain(value: Any) -> Any:
    """Plain containers, whatever kind of configuration they were in."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return [_plain(each) for each in value]
