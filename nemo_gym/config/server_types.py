"""The three-level shape of a server in a configuration, as types.

    <instance name>:        ...InstanceConfig
      <server type>:        ...TypeConfig       exactly one implementation
        <implementation>:   ServerSettings      entrypoint, host, port, ... and whatever the implementation adds

Only what every server shares is checked here; an implementation's own fields pass through.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.config.datasets import BenchmarkDatasetConfig, DatasetConfig, DatasetEntry
from nemo_gym.config.keys import RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS, SERVER_TYPES
from nemo_gym.schemas.refs import AgentServerRef, Domain, ModelServerRef, ResourcesServerRef, ServerRef

Isolation = Literal["inline", "process"]


class ServerSettings(BaseModel):
    """The innermost level: what every server may say, beside its own fields."""

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
            raise ValueError("num_workers > 1 needs processes of its own: remove 'isolation: inline'")
        return self


class ResourcesServerSettings(ServerSettings):
    """A resources server also says what it is about."""

    domain: Domain


class PlainServerSettings(ServerSettings):
    """Agents and models have no domain; one that is given is ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_domain(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if key != "domain"} if isinstance(data, dict) else data


class _TypeConfig(BaseModel):
    """The middle level: implementation name to settings."""

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


class _InstanceConfig(BaseModel):
    """The outermost level: one server under its instance name."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    SERVER_TYPE: ClassVar[str]

    name: str

    @model_validator(mode="after")
    def _check_single_type(self) -> Self:
        if others := [key for key in self.model_extra or {} if key in SERVER_TYPES]:
            raise ValueError(f"is of more than one server type: {', '.join([self.SERVER_TYPE, *others])}")
        return self

    @property
    def implementation(self) -> str:
        """The folder name under the server type's folder."""
        return next(iter(self._implementations()))

    @property
    def datasets(self) -> list[DatasetConfig | BenchmarkDatasetConfig] | None:
        """The datasets that the server lists, if any."""
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


ServerInstanceConfig = (
    ResourcesServerInstanceConfig | ResponsesAPIAgentServerInstanceConfig | ResponsesAPIModelServerInstanceConfig
)
