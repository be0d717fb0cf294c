"""The global keys that parsing itself needs, validated and with defaults."""

import socket
from typing import Annotated, Final, Self

from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError
from pydantic import BaseModel, Field, ValidationError, model_validator

from nemo_gym.config.interpolation import find_unresolved, plain_or_error, unresolved_error
from nemo_gym.config.keys import DEFAULT_PORT_RANGE, HEAD_SERVER, HEAD_SERVER_PORT, LOOPBACK
from nemo_gym.config.locate import Locator, segments
from nemo_gym.config.servers import explain
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.refs import BaseServerConfig

Port = Annotated[int, Field(ge=1, le=65535)]
_HEAD_EXAMPLE: Final = f"'+{HEAD_SERVER}={{host: {LOOPBACK}, port: {HEAD_SERVER_PORT}}}'"


class GlobalSettings(BaseModel):
    """Where servers listen unless their own settings say otherwise, and how strict parsing is."""

    default_host: str | None = None
    use_absolute_ip: bool = False
    head_server: BaseServerConfig | None = None
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
        return self.head_server or BaseServerConfig(host=self.host(), port=HEAD_SERVER_PORT)


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
