"""Gives every server a host and a port, and looks up where a named server listens.

Where servers listen unless their own settings say otherwise is decided by global keys (``GlobalSettings``).

No two servers get the same port, and none gets a port that is in use. A port that was chosen stays reserved until this
process ends or parses another configuration, so that programs that start at the same moment, such as sixteen shards on
one machine or the workers of a collection, do not choose the same ones.
"""

import os
import random
import socket
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, Self

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from pydantic import BaseModel, Field, ValidationError, model_validator

from nemo_gym.config.interpolation import find_unresolved, plain_or_error, unresolved_error
from nemo_gym.config.keys import (
    DEFAULT_PORT_RANGE,
    HEAD_SERVER,
    HEAD_SERVER_PORT,
    LOOPBACK,
    PORT_TRIES,
    RESOURCES_SERVERS,
    SERVER_TYPES,
)
from nemo_gym.config.locate import Locator, segments
from nemo_gym.config.servers import EnvironmentServerInstanceConfig, ServerInstanceConfig, explain
from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.schemas.refs import BaseServerConfig

Port = Annotated[int, Field(ge=1, le=65535)]
_HEAD_EXAMPLE: Final = f"'+{HEAD_SERVER}={{host: {LOOPBACK}, port: {HEAD_SERVER_PORT}}}'"


class HeadAddress(BaseModel):
    """Where the head server listens; what is left out has a default."""

    host: str | None = None
    port: Port = HEAD_SERVER_PORT


class GlobalSettings(BaseModel):
    """Where servers listen unless their own settings say otherwise, and how strict parsing is."""

    default_host: str | None = None
    use_absolute_ip: bool = False
    head_server: HeadAddress | None = None
    port_range_low: Port = DEFAULT_PORT_RANGE[0]
    port_range_high: Port = DEFAULT_PORT_RANGE[1]
    disallowed_ports: list[int] = Field(default_factory=list)
    error_on_almost_servers: bool = True

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.port_range_low > self.port_range_high:
            raise ValueError("'port_range_low' is greater than 'port_range_high'")
        return self

    def host(self) -> str:
        """The host of servers that do not set one."""
        if self.default_host:
            return self.default_host
        return _absolute_ip() if self.use_absolute_ip else LOOPBACK

    def head(self) -> BaseServerConfig:
        """Where the head server listens."""
        given = self.head_server or HeadAddress()
        return BaseServerConfig(host=given.host or self.host(), port=given.port)


def read_settings(config: DictConfig, *, locator: Locator) -> GlobalSettings:
    """The global settings of a configuration. An error names the key of an invalid value."""
    present = [key for key in config if key in GlobalSettings.model_fields]
    try:
        values = {str(key): plain_or_error(config, key) for key in present}
    except InterpolationResolutionError:
        problems = [problem for problem in find_unresolved(config, "") if segments(problem.key)[0] in present]
        raise unresolved_error(problems, locator=locator) from None
    try:
        return GlobalSettings.model_validate({key: value for key, value in values.items() if value is not None})
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        keys = [".".join(map(str, mistake["loc"])) for mistake in mistakes]
        lines = [f"{locator.at(key)}{explain(mistake)[2:]}" for key, mistake in zip(keys, mistakes, strict=True)]
        in_head = any(key.startswith(HEAD_SERVER) for key in keys)
        raise ConfigError(
            "\n".join(lines), hint=f"give both host and port: {_HEAD_EXAMPLE}" if in_head else "correct these values"
        ) from None


def _absolute_ip() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ConfigError(
            f"'use_absolute_ip': can't find the address of this machine's host name ({error.strerror})",
            hint="pass '++default_host=<address>' instead",
        ) from None


# Two commands started at once must not try the same ports, whatever seed the program has set.
_random: Final = random.SystemRandom()
# Bound sockets that nobody listens on, as file descriptors: a socket object would warn that it was never closed.
_reservations: Final[list[int]] = []


def choose_port(
    disallowed: Collection[int] = (), *, ports: tuple[int, int] = DEFAULT_PORT_RANGE, reserved: bool = True
) -> int:
    """A random free port in a range; if ``reserved``, no other program chooses it until it is released."""
    low, high = ports
    candidates = [port for port in range(low, high + 1) if port not in disallowed]
    for port in _random.sample(candidates, min(PORT_TRIES, len(candidates))):
        if _reserve(port) if reserved else is_free(port):
            return port
    raise ConfigError(
        f"no free port found between {low} and {high} ({min(PORT_TRIES, len(candidates))} tried)",
        hint="widen the range with '++port_range_low=<port>' and '++port_range_high=<port>'",
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on the port, on any address of this machine."""
    # Binding, not connecting: a port may be taken by a server that does not accept connections yet.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    if sys.platform != "linux":  # elsewhere our own server could not listen on a port that is bound already
        return is_free(port)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(("", port))
        except OSError:
            return False
        # Set after binding: the port had to be free, but from now on a server may listen on it, which sets this too.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reservations.append(holder.detach())
    return True


def assign_addresses(
    data: dict[Any, Any],
    config: DictConfig,
    servers: Sequence[ServerInstanceConfig],
    *,
    settings: GlobalSettings,
    locator: Locator,
) -> list[int]:
    """Fill in missing hosts and ports in ``data``. Returns every port taken so far, the head server's first.

    ``config`` is the same configuration with interpolations, and ``servers`` are those that it describes.
    """
    while _reservations:  # those of an earlier configuration; servers that listen on them by now keep them
        os.close(_reservations.pop())
    host, head = settings.host(), settings.head()
    relays = [each for each in servers if isinstance(each, EnvironmentServerInstanceConfig) and each.is_relay]
    servers = [server for server in servers if server not in relays]
    _check_distinct(servers, host, head=(head.host, head.port), locator=locator)
    fixed = [port for server in servers if (port := server.get_inner_run_server_config().port) is not None]
    taken = list(dict.fromkeys([head.port, *settings.disallowed_ports, *fixed]))
    for server in servers:
        given = server.get_inner_run_server_config()
        own = _own_block(data, config, [server.name, server.SERVER_TYPE, server.implementation])
        if given.host is None:
            own["host"] = host
        if given.port is None:
            own["port"] = choose_port(taken, ports=(settings.port_range_low, settings.port_range_high))
            taken.append(own["port"])
        # Only a resources server has a domain; elsewhere it may have been inherited by mistake.
        if server.SERVER_TYPE != RESOURCES_SERVERS:
            own.pop("domain", None)
    for relay in relays:  # a relay is where its agent is
        agent = next(server for server in servers if server.name == relay.agent)
        listening = _own_block(data, config, [agent.name, agent.SERVER_TYPE, agent.implementation])
        own = _own_block(data, config, [relay.name, relay.SERVER_TYPE, relay.implementation])
        own.update(host=listening["host"], port=listening["port"])
    return taken


def server_type(config: Any, name: str) -> str:
    """The type of a server, empty if there is none of that name."""
    block = config.get(name)
    return next((kind for kind in SERVER_TYPES if isinstance(block, DictConfig) and kind in block), "")


def _own_block(data: dict[Any, Any], config: Any, path: Collection[str]) -> dict[Any, Any]:
    """The settings of one server, detached from others that refer to the same block by ``${...}``."""
    for segment in path:
        config = config[segment]
        if not isinstance(data.get(segment), dict):
            data[segment] = OmegaConf.to_container(config, resolve=False)
        data = data[segment]
    return data


def _check_distinct(
    servers: Sequence[ServerInstanceConfig], default_host: str, *, head: tuple[str, int], locator: Locator
) -> None:
    owners = {head: HEAD_SERVER}
    for server in servers:
        given = server.get_inner_run_server_config()
        if given.port is None:
            continue
        address = given.host or default_host, given.port
        if address in owners:
            key = f"{server.name}.{server.SERVER_TYPE}.{server.implementation}.port"
            raise ConfigError(
                f"{locator.at(key)}'{key}' is {given.port}, which '{owners[address]}' already uses on {address[0]}",
                hint="give one of them another port, or remove 'port' to have one chosen",
            )
        owners[address] = server.name


class ServerNotFoundError(ConfigError, KeyError):
    """No server has the given name."""


def server_settings(config: DictConfig, name: str) -> Any:
    """The innermost block of an instance, below its type and its implementation."""
    kind = server_type(config, name)
    if not kind or not config[name][kind]:
        raise ServerNotFoundError(
            f"there is no server named '{name}'",
            hint=did_you_mean(name, server_names(config), available="Servers of this Gym"),
        )
    return next(iter(config[name][kind].values()))


def server_names(config: DictConfig, *kinds: str) -> list[str]:
    """The names of all instances, or only those of the given kinds."""
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
