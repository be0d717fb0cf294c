"""The names used in configurations: server types, reserved keys, conventional keys and their defaults.

The strings are part of the interface; ``nemo_gym.global_config`` offers them under their public names.
"""

from typing import Final

CONFIG_DICT_ENV_VAR: Final = "NEMO_GYM_CONFIG_DICT"
CONFIG_PATH_ENV_VAR: Final = "NEMO_GYM_CONFIG_PATH"
ENV_FILE_NAME: Final = "env.yaml"

RESOURCES_SERVERS: Final = "resources_servers"
RESPONSES_API_AGENTS: Final = "responses_api_agents"
RESPONSES_API_MODELS: Final = "responses_api_models"
SERVER_TYPES: Final = (RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS)

CACHE_DIR: Final = "cache_dir"
CONFIG_PATHS: Final = "config_paths"
DEFAULT_HOST: Final = "default_host"
HEAD_SERVER: Final = "head_server"
DISALLOWED_PORTS: Final = "disallowed_ports"
HEAD_SERVER_DEPS: Final = "head_server_deps"
PYTHON_VERSION: Final = "python_version"
USE_ABSOLUTE_IP: Final = "use_absolute_ip"
PORT_RANGE_LOW: Final = "port_range_low"
PORT_RANGE_HIGH: Final = "port_range_high"
ERROR_ON_ALMOST_SERVERS: Final = "error_on_almost_servers"
HUGGING_FACE: Final = "hf_token"
LOG_DIR: Final = "nemo_gym_log_dir"
WANDB_PROJECT: Final = "wandb_project"
WANDB_NAME: Final = "wandb_name"
WANDB_API_KEY: Final = "wandb_api_key"

INHERIT_FROM: Final = "_inherit_from"
COPY: Final = "_copy"
DELETE_KEY: Final = "_delete_key"
MISSING: Final = "???"

POLICY_MODEL: Final = "policy_model"
DUMMY_MODEL: Final = "dummy_model"
POLICY_BASE_URL: Final = "policy_base_url"
POLICY_API_KEY: Final = "policy_api_key"
POLICY_MODEL_NAME: Final = "policy_model_name"

LOOPBACK: Final = "127.0.0.1"
HEAD_SERVER_PORT: Final = 11000
DEFAULT_PORT_RANGE: Final = (10001, 20000)
PORT_TRIES: Final = 50

# A top-level block under one of these names is never a server.
RESERVED_KEYS: Final = frozenset(
    {
        CONFIG_PATHS,
        "entrypoint",
        DEFAULT_HOST,
        HEAD_SERVER,
        DISALLOWED_PORTS,
        HEAD_SERVER_DEPS,
        PYTHON_VERSION,
        "pip_install_verbose",
        USE_ABSOLUTE_IP,
        "uv_pip_set_python",
        "skip_venv_if_present",
        HUGGING_FACE,
        "ray_head_node_address",
        PORT_RANGE_LOW,
        PORT_RANGE_HIGH,
        "dry_run",
        "uv_cache_dir",
        "uv_venv_dir",
        INHERIT_FROM,
        COPY,
        LOG_DIR,
        "verbose",
        "json",
        "query",
    }
)

# Parameters of some commands; nothing to any other.
COMMAND_KEYS: Final = frozenset({"entrypoint", "json", "query"})
# What other programs read from the same env.yaml. We download nothing from the registries that they are for.
UNUSED_KEYS: Final = frozenset({"mlflow_tracking_uri", "mlflow_tracking_token"})
# Keys that every command accepts in addition to its own parameters.
GLOBAL_KEYS: Final = RESERVED_KEYS | {
    DELETE_KEY,
    ERROR_ON_ALMOST_SERVERS,
    "mlflow_tracking_uri",
    "mlflow_tracking_token",
    POLICY_BASE_URL,
    POLICY_API_KEY,
    POLICY_MODEL_NAME,
    WANDB_PROJECT,
    WANDB_NAME,
    WANDB_API_KEY,
    "global_aiohttp_connector_limit",
    "global_aiohttp_connector_limit_per_host",
    "global_aiohttp_client_request_debug",
    "profiling_enabled",
    "profiling_results_dirpath",
    "uvicorn_logging_show_200_ok",
    "help",
    "h",
}
