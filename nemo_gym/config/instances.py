"""The servers that a configuration describes, as values that the rest of the program works with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.config.interpolation import resolve
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.locate import Locator
from nemo_gym.config.paths import server_directory
from nemo_gym.config.server_types import Isolation, ServerInstanceConfig
from nemo_gym.config.validation import blocks, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError, NoServerInstancesError


@dataclass(frozen=True, slots=True)
class ServerInstance:
    """One server of a Gym. ``settings`` is what its configuration class gets: resolved, with its ``name``."""

    name: str
    server_type: str
    implementation: str
    entrypoint: str
    host: str
    port: int
    num_workers: int | None
    isolation: Isolation | None
    settings: dict[str, Any]

    @property
    def directory(self) -> Path:
        """The folder of the implementation."""
        return server_directory(self.server_type, self.implementation)


def read_instances(config: DictConfig) -> list[ServerInstance]:
    """All servers of a parsed configuration, in its order. A value that can't be resolved is an error."""
    locator = Locator.of(config)
    found = []
    for name, block in blocks(config):
        server, _ = maybe_get_server_instance_config(name, block)
        if server is not None:
            found.append(_instance(server, block, locator))
    return found


def require_instances(config: DictConfig) -> list[ServerInstance]:
    """All servers of a parsed configuration; having none is an error."""
    if instances := read_instances(config):
        return instances
    raise NoServerInstancesError(
        "the configuration defines no servers, so there is nothing to run",
        hint='name config files: "+config_paths=[resources_servers/<name>/configs/<name>.yaml,'
        'responses_api_models/<name>/configs/<name>.yaml]"',
    )


def _instance(server: ServerInstanceConfig, block: DictConfig, locator: Locator) -> ServerInstance:
    kind, implementation = server.SERVER_TYPE, server.implementation
    key = f"{server.name}.{kind}.{implementation}"
    settings: dict[str, Any] = resolve(block[kind][implementation], key=key, locator=locator)
    if kind != RESOURCES_SERVERS:
        settings.pop("domain", None)
    common = server.get_inner_run_server_config()
    if common.host is None or common.port is None:
        raise ConfigError(
            f"{locator.at(key)}server '{server.name}' has no host and port",
            hint=f"set '{key}.host' and '{key}.port', or let the configuration be parsed, which fills them in",
        )
    return ServerInstance(
        name=server.name,
        server_type=kind,
        implementation=implementation,
        entrypoint=common.entrypoint,
        host=common.host,
        port=common.port,
        num_workers=common.num_workers,
        isolation="process" if (common.num_workers or 1) > 1 else common.isolation,
        settings={**settings, "name": server.name},
    )
