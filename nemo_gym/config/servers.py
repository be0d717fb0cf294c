"""The three-level shape of a server in a configuration, as types.

    <instance name>:        ...InstanceConfig
      <server type>:        ...TypeConfig       exactly one implementation
        <implementation>:   ServerSettings      entrypoint, host, port, ... and whatever the implementation adds

Only the fields that all servers share are checked here; an implementation's own fields pass through. This module also
decides whether a top-level block is a server, and says what is wrong with one that almost is.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails

from nemo_gym.config.datasets import BenchmarkDatasetConfig, DatasetConfig, DatasetEntry
from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.keys import (
    ENVIRONMENT_SERVERS,
    RELAY,
    RESERVED_KEYS,
    RESOURCES_SERVERS,
    RESPONSES_API_AGENTS,
    RESPONSES_API_MODELS,
    SERVER_TYPES,
)
from nemo_gym.schemas.refs import (
    AgentServerRef,
    Domain,
    EnvironmentServerRef,
    ModelServerRef,
    ResourcesServerRef,
    ServerRef,
)

Isolation = Literal["inline", "process"]


class ServerSettings(BaseModel):
    """The innermost level: the fields that every server may have in addition to its own."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    entrypoint: str
    host: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    num_workers: Annotated[int, Field(ge=1)] | None = None
    isolation: Isolation | None = None
    datasets: list[DatasetEntry] | None = None

    @model_validator(mode="after")
    def _check_isolation(self) -> Self:
        if self.isolation == "inline" and (self.num_workers or 1) > 1:
            raise ValueError("num_workers > 1 needs separate processes: remove 'isolation: inline'")
        return self


class ResourcesServerSettings(ServerSettings):
    """A resources server must also state its domain."""

    domain: Domain


class PlainServerSettings(ServerSettings):
    """Agents and models have no domain; if one is given, it is ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_domain(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if key != "domain"} if isinstance(data, dict) else data


class _TypeConfig(BaseModel):
    """The middle level, which maps the implementation's name to its settings."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _check_single(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) != 1:
            names = ", ".join(map(str, data)) or "(none)"
            raise ValueError(f"needs exactly one implementation, has {len(data)}: {names}")
        return data


class ResourcesServerTypeConfig(_TypeConfig):
    """The implementation of a resources server."""

    __pydantic_extra__: dict[str, ResourcesServerSettings]


class ResponsesAPIAgentServerTypeConfig(_TypeConfig):
    """The implementation of an agent server."""

    __pydantic_extra__: dict[str, PlainServerSettings]


class ResponsesAPIModelServerTypeConfig(_TypeConfig):
    """The implementation of a model server."""

    __pydantic_extra__: dict[str, PlainServerSettings]


class EnvironmentServerTypeConfig(_TypeConfig):
    """The implementation of an environment server."""

    __pydantic_extra__: dict[str, PlainServerSettings]


class _InstanceConfig(BaseModel):
    """The outermost level: one server under its instance name."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    SERVER_TYPE: ClassVar[str]

    name: str

    @model_validator(mode="after")
    def _check_single_type(self) -> Self:
        if others := [key for key in self.model_extra or {} if key in SERVER_TYPES]:
            raise ValueError(f"has more than one server type: {', '.join([self.SERVER_TYPE, *others])}")
        return self

    @property
    def implementation(self) -> str:
        """The folder name under the server type's folder."""
        return next(iter(self._implementations()))

    @property
    def datasets(self) -> list[DatasetConfig | BenchmarkDatasetConfig] | None:
        return self.get_inner_run_server_config().datasets

    def get_inner_run_server_config(self) -> ServerSettings:
        """The innermost level, validated."""
        return self._implementations()[self.implementation]

    def get_inner_run_server_config_dict(self) -> dict[str, Any]:
        """The innermost level as plain data, without defaults."""
        return self.get_inner_run_server_config().model_dump(exclude_unset=True)

    def _implementations(self) -> dict[str, ServerSettings]:
        typed: _TypeConfig = getattr(self, self.SERVER_TYPE)
        return typed.model_extra or {}


class ResourcesServerInstanceConfig(_InstanceConfig):
    """One resources server."""

    SERVER_TYPE: ClassVar[str] = RESOURCES_SERVERS

    resources_servers: ResourcesServerTypeConfig

    def get_server_ref(self) -> ServerRef:
        """The reference by which others name this server."""
        return ResourcesServerRef(type="resources_servers", name=self.name)


class ResponsesAPIAgentServerInstanceConfig(_InstanceConfig):
    """One agent server."""

    SERVER_TYPE: ClassVar[str] = RESPONSES_API_AGENTS

    responses_api_agents: ResponsesAPIAgentServerTypeConfig

    def get_server_ref(self) -> ServerRef:
        """The reference by which others name this server."""
        return AgentServerRef(type="responses_api_agents", name=self.name)


class ResponsesAPIModelServerInstanceConfig(_InstanceConfig):
    """One model server."""

    SERVER_TYPE: ClassVar[str] = RESPONSES_API_MODELS

    responses_api_models: ResponsesAPIModelServerTypeConfig

    def get_server_ref(self) -> ServerRef:
        """The reference by which others name this server."""
        return ModelServerRef(type="responses_api_models", name=self.name)


class EnvironmentServerInstanceConfig(_InstanceConfig):
    """One environment server."""

    SERVER_TYPE: ClassVar[str] = ENVIRONMENT_SERVERS

    environment_servers: EnvironmentServerTypeConfig

    def get_server_ref(self) -> ServerRef:
        """The reference by which others name this server."""
        return EnvironmentServerRef(type="environment_servers", name=self.name)

    @property
    def is_relay(self) -> bool:
        """Whether it only passes requests on to its agent, so that they can go there at once."""
        return self.implementation == RELAY

    @property
    def agent(self) -> str | None:
        """The agent that its results count for: ``agent_server``, or else the only agent that it refers to."""
        settings = self.get_inner_run_server_config_dict()
        own = settings.get("agent_server")
        if isinstance(own, Mapping) and own.get("type", RESPONSES_API_AGENTS) == RESPONSES_API_AGENTS:
            return str(own["name"]) if own.get("name") else None
        refs = {ref.name for value in settings.values() if isinstance(ref := is_server_ref(value), AgentServerRef)}
        return refs.pop() if len(refs) == 1 else None


ServerInstanceConfig = (
    ResourcesServerInstanceConfig
    | ResponsesAPIAgentServerInstanceConfig
    | ResponsesAPIModelServerInstanceConfig
    | EnvironmentServerInstanceConfig
)


_INSTANCE_CONFIGS: Final[tuple[type[ServerInstanceConfig], ...]] = (
    ResourcesServerInstanceConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIModelServerInstanceConfig,
    EnvironmentServerInstanceConfig,
)
_SERVER_REF: Final[TypeAdapter[ServerRef]] = TypeAdapter(ServerRef)


def maybe_get_server_instance_config(
    name: str, server_instance_config_dict: Any
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """The server with this name, or what is wrong with it. Neither if the block has no server type at all."""
    data = plain_data(server_instance_config_dict)
    if not isinstance(data, Mapping):
        return None, None
    for config_class in _INSTANCE_CONFIGS:
        if config_class.SERVER_TYPE in data:
            try:
                return config_class.model_validate({**data, "name": name}), None
            except ValidationError as error:
                return None, error
    return None, None


def is_almost_server(server_instance_config_dict: Any) -> bool:
    """Whether a block was meant to be a server: it names a server type and an entrypoint."""
    data = plain_data(server_instance_config_dict)
    if not isinstance(data, Mapping):
        return False
    implementations = [data[kind] for kind in SERVER_TYPES if isinstance(data.get(kind), Mapping)]
    settings = [value for implementation in implementations for value in implementation.values()]
    return any(isinstance(value, Mapping) and "entrypoint" in value for value in settings)


def is_server_ref(config_dict: Any) -> ServerRef | None:
    """The reference that ``{type: ..., name: ...}`` stands for, or None if the value is not a reference."""
    data = plain_data(config_dict)
    if not isinstance(data, Mapping) or data.get("type") not in SERVER_TYPES:
        return None
    try:
        return _SERVER_REF.validate_python(dict(data))
    except ValidationError:
        return None


def blocks(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """The top-level blocks that may be servers, in order."""
    for name in config:
        if not isinstance(name, str) or name in RESERVED_KEYS:
            continue
        try:
            block = config[name]
        except (InterpolationResolutionError, MissingMandatoryValue):
            # A reference that can't be resolved is harmless until something reads it.
            continue
        if isinstance(block, DictConfig):
            yield name, block


def explain(error: ErrorDetails) -> str:
    """One line for one validation error, without the value, which may be a secret."""
    location = " -> ".join(map(str, error["loc"])) or "(block)"
    return f"- {location}: {_reason(error)}"


def _reason(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if expected := context.get("expected_tags") or (error["type"] != "value_error" and context.get("expected")):
        return f"Must be one of: {str(expected).replace(' or ', ', ')}"
    if error["type"] == "missing" and error["loc"][-1] == "domain":
        return f"Field required. Must be one of: {', '.join(map(repr, map(str, Domain)))}"
    return error["msg"].removeprefix("Value error, ")
