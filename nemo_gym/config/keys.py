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
ENVIRONMENT_SERVERS: Final = "environment_servers"
SERVER_TYPES: Final = (RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS, ENVIRONMENT_SERVERS)
RELAY: Final = "legacy_agent"  # an environment server that only passes requests on to its agent

CACHE_DIR: Final = "cache_dir"
CONFIG_PATHS: Final = "config_paths"
DEFAULT_HOST: Final = "default_host"
SERVE_TOKEN: Final = "serve_token"  # noqa: S105 - the name of a setting
ALLOWED_HOSTS: Final = "allowed_hosts"
HEAD_SERVER: Final = "head_server"
DISALLOWED_PORTS: Final = "disallowed_ports"
HEAD_SERVER_DEPS: Final = "head_server_deps"
PYTHON_VERSION: Final = "python_version"
USE_ABSOLUTE_IP: Final = "use_absolute_ip"
PORT_RANGE_LOW: Final = "port_range_low"
PORT_RANGE_HIGH: Final = "port_range_high"
ERROR_ON_ALMOST_SERVERS: Final = "error_on_almost_servers"
ERROR_WITHOUT_ENVIRONMENT_SERVER: Final = "error_on_agent_without_environment_server"
ENVIRONMENT_SERVER_NAME: Final = "environment_server_name"
ENVIRONMENT_SERVER_ROUTES: Final = "environment_server_routes"
ENVIRONMENT_ROUTING_MODE: Final = "environment_routing_mode"
ALLOW_UNSUPPORTED_PAIRING: Final = "allow_unsupported_pairing"
OBSERVABILITY_ENABLED: Final = "observability_enabled"
TOKEN_ID_CAPTURE: Final = "token_id_capture"  # noqa: S105 - the name of a block
MODEL_CALL_CAPTURE_DIR: Final = "model_call_capture_dir"
RESULTS_DIR: Final = "results_dir"
SKIP_VERIFICATION: Final = "skip_verification"
SKIP_VERIFICATION_REWARD: Final = "skip_verification_reward"
HUGGING_FACE: Final = "hf_token"
RAY_HEAD_NODE_ADDRESS: Final = "ray_head_node_address"
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
PROGRAM_AGENT: Final = "program_agent"
ENVIRONMENT_FILE: Final = "environment_file"  # the resources server of environments in files
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
        RAY_HEAD_NODE_ADDRESS,
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
        ENVIRONMENT_SERVER_NAME,
        ENVIRONMENT_SERVER_ROUTES,
        ENVIRONMENT_ROUTING_MODE,
        TOKEN_ID_CAPTURE,
        OBSERVABILITY_ENABLED,
        MODEL_CALL_CAPTURE_DIR,
        RESULTS_DIR,
        CACHE_DIR,
        "telemetry",
        SKIP_VERIFICATION,
        SKIP_VERIFICATION_REWARD,
        ALLOW_UNSUPPORTED_PAIRING,
        "component_name",
        "server_spinup_timeout_seconds",
        "model_endpoint_readiness_timeout_seconds",
        "allow_openai_version_skew",
        "uv_lock_timeout_seconds",
    }
)

# Parameters of some commands; nothing to any other.
COMMAND_KEYS: Final = frozenset({"entrypoint", "json", "query"})
# What other programs read from the same env.yaml: we download nothing from the registries that some of them are for,
# and have nothing that the others would change.
UNUSED_KEYS: Final = frozenset(
    {
        "mlflow_tracking_uri",
        "mlflow_tracking_token",
        CACHE_DIR,
        TOKEN_ID_CAPTURE,
        "telemetry",
        "component_name",
        "server_spinup_timeout_seconds",
        "model_endpoint_readiness_timeout_seconds",
        "allow_openai_version_skew",
        "uv_lock_timeout_seconds",
    }
)
# Keys that every command accepts in addition to its own parameters.
GLOBAL_KEYS: Final = RESERVED_KEYS | {
    DELETE_KEY,
    ERROR_ON_ALMOST_SERVERS,
    ERROR_WITHOUT_ENVIRONMENT_SERVER,
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
    "max_answer_bytes",
    SERVE_TOKEN,
    ALLOWED_HOSTS,
    "profiling_enabled",
    "profiling_results_dirpath",
    "uvicorn_logging_show_200_ok",
    "help",
    "h",
}
