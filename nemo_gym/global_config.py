"""The configuration of this process, which is read once and then shared.

This front door is the only place below the command line that reads ``sys.argv`` and the environment for the
configuration, and it holds the one process-wide cache. The work is done in ``nemo_gym.config``.
"""

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict

from nemo_gym.config import addresses, keys
from nemo_gym.config.locate import find_env_file, find_readable
from nemo_gym.config.parse import ParsedConfig, parse_config
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.config.servers import blocks, is_almost_server
from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    ENVIRONMENT_SERVER_STAMP_KEY_NAME,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    TASK_SOURCE_KEY_NAME,
)

logger = logging.getLogger(__name__)

NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME: Final = keys.CONFIG_DICT_ENV_VAR
NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME: Final = keys.CONFIG_PATH_ENV_VAR
CACHE_DIR_KEY_NAME: Final = keys.CACHE_DIR
CONFIG_PATHS_KEY_NAME: Final = keys.CONFIG_PATHS
DEFAULT_HOST_KEY_NAME: Final = keys.DEFAULT_HOST
HEAD_SERVER_KEY_NAME: Final = keys.HEAD_SERVER
HEAD_SERVER_DEPS_KEY_NAME: Final = keys.HEAD_SERVER_DEPS
DISALLOWED_PORTS_KEY_NAME: Final = keys.DISALLOWED_PORTS
PYTHON_VERSION_KEY_NAME: Final = keys.PYTHON_VERSION
HF_TOKEN_KEY_NAME: Final = keys.HUGGING_FACE
NEMO_GYM_LOG_DIR_KEY_NAME: Final = keys.LOG_DIR
POLICY_BASE_URL_KEY_NAME: Final = keys.POLICY_BASE_URL
POLICY_API_KEY_KEY_NAME: Final = keys.POLICY_API_KEY
POLICY_MODEL_NAME_KEY_NAME: Final = keys.POLICY_MODEL_NAME
POLICY_MODEL_KEY_NAME: Final = keys.POLICY_MODEL
RESULTS_DIR_KEY_NAME: Final = keys.RESULTS_DIR
OBSERVABILITY_ENABLED_KEY_NAME: Final = keys.OBSERVABILITY_ENABLED
TOKEN_ID_CAPTURE_BLOCK: Final = keys.TOKEN_ID_CAPTURE
MODEL_CALL_CAPTURE_DIR_KEY_NAME: Final = keys.MODEL_CALL_CAPTURE_DIR
NEMO_GYM_RESERVED_TOP_LEVEL_KEYS: Final = keys.RESERVED_KEYS

__all__ = [
    "AGENT_REF_KEY_NAME",
    "ATTEMPT_INDEX_KEY_NAME",
    "CACHE_DIR_KEY_NAME",
    "CONFIG_PATHS_KEY_NAME",
    "DEFAULT_HOST_KEY_NAME",
    "DISALLOWED_PORTS_KEY_NAME",
    "ENVIRONMENT_SERVER_STAMP_KEY_NAME",
    "HEAD_SERVER_DEPS_KEY_NAME",
    "HEAD_SERVER_KEY_NAME",
    "HF_TOKEN_KEY_NAME",
    "MODEL_CALL_CAPTURE_DIR_KEY_NAME",
    "NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME",
    "NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME",
    "NEMO_GYM_LOG_DIR_KEY_NAME",
    "NEMO_GYM_RESERVED_TOP_LEVEL_KEYS",
    "OBSERVABILITY_ENABLED_KEY_NAME",
    "POLICY_API_KEY_KEY_NAME",
    "POLICY_BASE_URL_KEY_NAME",
    "POLICY_MODEL_KEY_NAME",
    "POLICY_MODEL_NAME_KEY_NAME",
    "PYTHON_VERSION_KEY_NAME",
    "RESPONSES_CREATE_PARAMS_KEY_NAME",
    "RESPONSE_KEY_NAME",
    "RESULTS_DIR_KEY_NAME",
    "ROLLOUT_ID_KEY_NAME",
    "ROLLOUT_INDEX_KEY_NAME",
    "SKILLS_REF_KEY_NAME",
    "TASK_INDEX_KEY_NAME",
    "TASK_SOURCE_KEY_NAME",
    "TOKEN_ID_CAPTURE_BLOCK",
    "DictConfig",
    "GlobalConfigDictParser",
    "GlobalConfigDictParserConfig",
    "OmegaConf",
    "find_open_port",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_hf_token",
    "get_wandb_run",
    "maybe_get_global_config_dict",
    "reset_global_config",
    "set_global_config_dict",
]


def _no_model() -> DictConfig:
    dummy = {keys.RESPONSES_API_MODELS: {keys.DUMMY_MODEL: {"entrypoint": "app.py"}}}
    empty = dict.fromkeys((keys.POLICY_BASE_URL, keys.POLICY_API_KEY, keys.POLICY_MODEL_NAME), "")
    config = OmegaConf.create({keys.POLICY_MODEL: dummy, **empty})
    OmegaConf.set_readonly(config, True)
    return config


class GlobalConfigDictParserConfig(BaseModel):
    """The sources of the configuration, apart from the files that it names."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    # For commands that need no model: pass it as ``initial_global_config_dict``.
    NO_MODEL_GLOBAL_CONFIG_DICT: ClassVar[DictConfig] = _no_model()

    dotenv_path: Path | None = None
    initial_global_config_dict: DictConfig | dict[str, Any] | None = None
    skip_load_from_cli: bool = False
    skip_load_from_dotenv: bool = False
    hide_secrets: bool = False
    # The command line, if it is not ``sys.argv``: overrides as typed, and pairs of dotted keys and plain values.
    overrides: list[str] | None = None
    pairs: dict[str, Any] = {}


class GlobalConfigDictParser:
    """Builds the configuration from all its sources."""

    def parse(self, parser_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """The merged and validated configuration. Not cached."""
        wanted = parser_config or GlobalConfigDictParserConfig()
        config = self.parse_sources(wanted).config
        return _masked(config) if wanted.hide_secrets else config

    def parse_sources(self, wanted: GlobalConfigDictParserConfig) -> ParsedConfig:
        """The configuration and the keys of its sources, for commands that check their parameters."""
        arguments = sys.argv[1:] if wanted.overrides is None else wanted.overrides
        return parse_config(
            [] if wanted.skip_load_from_cli else arguments,
            pairs=wanted.pairs,
            env_path=None if wanted.skip_load_from_dotenv else _env_file(wanted.dotenv_path),
            initial=wanted.initial_global_config_dict,
        )


class _Cache:
    config: DictConfig | None = None


def get_global_config_dict(parser_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
    """The configuration of this process: built at the first call, then always the same object.

    A child process of a run gets the finished configuration in an environment variable.
    """
    if _Cache.config is None:
        wanted = parser_config or GlobalConfigDictParserConfig()
        text = os.environ.get(keys.CONFIG_DICT_ENV_VAR)
        _Cache.config = _from_text(text) if text else GlobalConfigDictParser().parse_sources(wanted).config
    hide = parser_config is not None and parser_config.hide_secrets
    return _masked(_Cache.config) if hide else _Cache.config


def maybe_get_global_config_dict() -> DictConfig | None:
    """The configuration of this process, if it has one or was given one by its parent. Reads no command line."""
    text = os.environ.get(keys.CONFIG_DICT_ENV_VAR)
    if _Cache.config is None and text:
        _Cache.config = _from_text(text)
    return _Cache.config


def set_global_config_dict(config: DictConfig) -> None:
    """Make a configuration that was built elsewhere the configuration of this process."""
    _Cache.config = config


def reset_global_config() -> None:
    """Forget the configuration of this process, so that the next call builds it again."""
    _Cache.config = None


def get_first_server_config_dict(global_config_dict: Mapping[Any, Any] | DictConfig, top_level_path: str) -> Any:
    """The settings of a server: the block below its type and implementation. Takes plain dictionaries too."""
    block = global_config_dict.get(top_level_path)
    if not isinstance(block, DictConfig | Mapping):
        config = OmegaConf.create(dict(global_config_dict))
        known = [name for name, candidate in blocks(config) if is_almost_server(candidate)]
        raise ConfigError(
            f"the configuration has no server '{top_level_path}'. "
            + did_you_mean(top_level_path, known, available="Available servers"),
            hint="correct the name, or add the file that defines the server to config_paths",
        )
    server_type = next((kind for kind in keys.SERVER_TYPES if kind in block), next(iter(block)))
    implementations = block[server_type]
    return implementations[next(iter(implementations))]


def find_open_port(
    disallowed_ports: Iterable[int] | None = None,
    port_range_low: int = keys.DEFAULT_PORT_RANGE[0],
    port_range_high: int = keys.DEFAULT_PORT_RANGE[1],
) -> int:
    """A random free port in the range that is not disallowed."""
    return addresses.choose_port(set(disallowed_ports or ()), ports=(port_range_low, port_range_high), reserved=False)


def get_hf_token() -> str | None:
    """The Hugging Face token of the configuration, if it has one."""
    token = get_global_config_dict().get(keys.HUGGING_FACE)
    return str(token) if token else None


def get_wandb_run() -> Any:
    """The Weights & Biases run that the configuration asks for, started now if necessary; None if it asks for none."""
    from nemo_gym.telemetry.wandb_tracker import open_wandb_run  # noqa: PLC0415 - nothing else here needs it

    return open_wandb_run(get_global_config_dict())


def _env_file(path: Path | None) -> Path | None:
    return find_env_file() if path is None else find_readable(path)


def _from_text(text: str) -> DictConfig:
    try:
        config = OmegaConf.create(text)
    except (yaml.YAMLError, OmegaConfBaseException):
        config = None
    if not isinstance(config, DictConfig):
        raise ConfigError(
            f"environment variable {keys.CONFIG_DICT_ENV_VAR}: not a YAML mapping",
            hint="unset it, unless this process was started by a running Gym",
        )
    return config


def _masked(config: DictConfig) -> DictConfig:
    masked: dict[str, Any] = mask_secrets(OmegaConf.to_container(config, resolve=False))
    return OmegaConf.create(masked)
