"""Where a server listens, by its instance name."""

from typing import Any

from omegaconf import DictConfig

from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.config.suggest import did_you_mean
from nemo_gym.errors import ConfigError


class ServerNotFoundError(ConfigError, KeyError):
    """No server has this name."""


def server_settings(config: DictConfig, name: str) -> Any:
    """The innermost block of an instance: below its type and its implementation."""
    block = config.get(name)
    kind = next((kind for kind in SERVER_TYPES if isinstance(block, DictConfig) and kind in block), None)
    if kind is None or not block[kind]:
        raise ServerNotFoundError(
            f"there is no server named '{name}'",
            hint=did_you_mean(name, server_names(config), available="Servers of this Gym"),
        )
    return next(iter(block[kind].values()))


def server_names(config: DictConfig, *kinds: str) -> list[str]:
    """The names of all instances, or of those of some kinds."""
    return [
        str(name)
        for name, block in config.items_ex(resolve=False)
        if isinstance(block, DictConfig) and any(kind in block for kind in kinds or SERVER_TYPES)
    ]


def base_url(settings: Any) -> str:
    """The address of a server, from anything that has a host and a port."""
    if isinstance(settings, dict | DictConfig):
        return f"http://{settings['host']}:{settings['port']}"
    return f"http://{settings.host}:{settings.port}"
