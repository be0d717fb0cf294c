"""The types of the configuration, under the names that environment authors import. Defines almost nothing itself."""

from typing import Final

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict

from nemo_gym.config.datasets import (
    BenchmarkDatasetConfig,
    DatasetConfig,
    DatasetSource,
    GitlabDatasetSource,
    GitlabIdentifier,
    HuggingFaceDatasetSource,
    HuggingFaceIdentifier,
)
from nemo_gym.config.servers import (
    EnvironmentServerInstanceConfig,
    EnvironmentServerTypeConfig,
    ResourcesServerInstanceConfig,
    ResourcesServerTypeConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIAgentServerTypeConfig,
    ResponsesAPIModelServerInstanceConfig,
    ResponsesAPIModelServerTypeConfig,
    ServerInstanceConfig,
    is_almost_server,
    is_server_ref,
    maybe_get_server_instance_config,
)
from nemo_gym.errors import (
    AgentWithoutEnvironmentServerError,
    AlmostServerError,
    AmbiguousAgentRenameError,
    AmbiguousEnvironmentServerError,
    ConfigError,
    ConfigMissingValuesError,
    ConfigPathNotFoundError,
    DeleteKeyNotFoundError,
    InheritPathNotFoundError,
    MalformedConfigPathsError,
    NoServerInstancesError,
    ServerRefNotFoundError,
    UnsupportedModelPairingError,
)
from nemo_gym.schemas.refs import (
    AgentServerRef,
    BaseRunServerConfig,
    BaseRunServerInstanceConfig,
    BaseServerConfig,
    Domain,
    EnvironmentServerRef,
    ModelServerRef,
    ResourcesServerRef,
    ServerRef,
)
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest

__all__ = [
    "ROLLOUT_PATH_PREFIX",
    "TOKEN_CAPTURE_PATH_SEGMENT",
    "AgentServerRef",
    "AgentWithoutEnvironmentServerError",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "AlmostServerError",
    "AmbiguousAgentRenameError",
    "AmbiguousEnvironmentServerError",
    "BaseNeMoGymCLIConfig",
    "BaseRunServerConfig",
    "BaseRunServerInstanceConfig",
    "BaseServerConfig",
    "BenchmarkDatasetConfig",
    "ConfigError",
    "ConfigMissingValuesError",
    "ConfigPathNotFoundError",
    "DatasetConfig",
    "DatasetSource",
    "DeleteKeyNotFoundError",
    "DictConfig",
    "Domain",
    "DownloadJsonlDatasetGitlabConfig",
    "EnvironmentServerInstanceConfig",
    "EnvironmentServerRef",
    "EnvironmentServerTypeConfig",
    "GitlabDatasetSource",
    "GitlabIdentifier",
    "HuggingFaceDatasetSource",
    "HuggingFaceIdentifier",
    "InheritPathNotFoundError",
    "MalformedConfigPathsError",
    "ModelServerRef",
    "NoServerInstancesError",
    "OmegaConf",
    "ResourcesServerInstanceConfig",
    "ResourcesServerRef",
    "ResourcesServerTypeConfig",
    "ResponsesAPIAgentServerInstanceConfig",
    "ResponsesAPIAgentServerTypeConfig",
    "ResponsesAPIModelServerInstanceConfig",
    "ResponsesAPIModelServerTypeConfig",
    "ServerInstanceConfig",
    "ServerRef",
    "ServerRefNotFoundError",
    "UnsupportedModelPairingError",
    "WANDBConfig",
    "is_almost_server",
    "is_server_ref",
    "maybe_get_server_instance_config",
]


ROLLOUT_PATH_PREFIX: Final = "ng-rollout"
TOKEN_CAPTURE_PATH_SEGMENT: Final = "training-token-capture"  # noqa: S105 - part of a path


class BaseNeMoGymCLIConfig(BaseModel):
    """The parameters of a command: the base of every command's configuration class.

    It ignores unknown keys, so that it can be filled from the whole configuration. Help is printed by the command line,
    not by this class.
    """

    # Commands have many parameters, and a process needs the validators of only one command.
    model_config = ConfigDict(extra="ignore", defer_build=True)


class WANDBConfig(BaseModel):
    """Where a run is logged on Weights & Biases. The keys have an effect only if all three are set."""

    wandb_project: str | None = None
    wandb_name: str | None = None
    wandb_api_key: str | None = None


class DownloadJsonlDatasetGitlabConfig(BaseNeMoGymCLIConfig):
    """A file of a dataset in a model registry of GitLab, and where to put it."""

    dataset_name: str
    version: str
    artifact_fpath: str
    output_fpath: str
