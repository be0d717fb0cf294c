"""Environment servers in a configuration: whom each stands for, and which agents and models an environment takes.

Most environment servers are relays (``legacy_agent``), which pass requests on to their agent. They are checked like any
other server but never started: they have the address of their agent, so requests reach it at once. An agent that no
environment server names needs none.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omegaconf import DictConfig

from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.keys import (
    ALLOW_UNSUPPORTED_PAIRING,
    DUMMY_MODEL,
    ENVIRONMENT_ROUTING_MODE,
    ENVIRONMENT_SERVER_NAME,
    ENVIRONMENT_SERVER_ROUTES,
    ENVIRONMENT_SERVERS,
    ERROR_WITHOUT_ENVIRONMENT_SERVER,
    MISSING,
    RESPONSES_API_AGENTS,
    SKIP_VERIFICATION,
    SKIP_VERIFICATION_REWARD,
)
from nemo_gym.config.locate import Locator
from nemo_gym.config.servers import (
    EnvironmentServerInstanceConfig,
    ResourcesServerInstanceConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ServerInstanceConfig,
    blocks,
    maybe_get_server_instance_config,
)
from nemo_gym.errors import (
    AgentWithoutEnvironmentServerError,
    AmbiguousAgentRenameError,
    AmbiguousEnvironmentServerError,
    ConfigError,
    ServerRefNotFoundError,
    UnsupportedModelPairingError,
    did_you_mean,
)

ROUTING_MODES: Final = ("agent", "legacy", "taskset")
ALLOW_ENV_VAR: Final = "NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING"


# ---- while a configuration is parsed ---------------------------------------------------------------------------------
def complete_environments(data: dict[Any, Any], moved: Mapping[str, list[str]]) -> None:
    """Fill in what blocks leave out: the type of ``agent_server``, its new name if it was moved, skipped verification.

    ``moved`` are the keys that ``_inherit_from`` has moved, with their new names.
    """
    for name, settings in _settings_of(data, ENVIRONMENT_SERVERS):
        own = settings.get("agent_server")
        if isinstance(own, dict) and "name" in own:
            own.setdefault("type", RESPONSES_API_AGENTS)
        for ref in settings.values():
            if isinstance(ref, dict) and ref.get("type") == RESPONSES_API_AGENTS and ref.get("name") not in data:
                _follow(ref, moved, name)
    for _, settings in _settings_of(data, RESPONSES_API_AGENTS):
        for key in (SKIP_VERIFICATION, SKIP_VERIFICATION_REWARD):
            if key in data:
                settings.setdefault(key, data[key])


def _settings_of(data: dict[Any, Any], kind: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    for name, block in data.items():
        implementations = block.get(kind) if isinstance(block, dict) else None
        for settings in implementations.values() if isinstance(implementations, dict) else ():
            if isinstance(settings, dict):
                yield str(name), settings


def _follow(ref: dict[Any, Any], moved: Mapping[str, list[str]], owner: str) -> None:
    targets = moved.get(str(ref.get("name"))) or []
    if len(targets) > 1:
        raise AmbiguousAgentRenameError(
            f"environment server '{owner}' refers to the agent '{ref['name']}', which was moved to "
            f"{' and '.join(map(repr, targets))}",
            hint="name one of them in the block of the environment server",
        )
    if targets:
        ref["name"] = targets[0]


def check_environment_servers(servers: Sequence[ServerInstanceConfig], config: DictConfig, *, locator: Locator) -> None:
    """Refuse environment servers without an agent, and agents or models that an environment does not take."""
    agents = {each.name: each for each in servers if isinstance(each, ResponsesAPIAgentServerInstanceConfig)}
    for server in servers:
        if isinstance(server, EnvironmentServerInstanceConfig) and server.is_relay and server.agent not in agents:
            place = locator.at(f"{server.name}.{ENVIRONMENT_SERVERS}.{server.implementation}")
            raise ServerRefNotFoundError(
                f"{place}environment server '{server.name}' stands for the agent {server.agent!r}, which is not "
                "defined. " + did_you_mean(server.agent or "", agents, available="Available agents"),
                hint="set agent_server: {type: responses_api_agents, name: <instance>}",
            )
    if config.get(ERROR_WITHOUT_ENVIRONMENT_SERVER):
        _require_environment_servers(servers, agents)
    if not config.get(ALLOW_UNSUPPORTED_PAIRING) and os.environ.get(ALLOW_ENV_VAR) != "1":
        _check_pairings(servers, agents)


def _require_environment_servers(
    servers: Sequence[ServerInstanceConfig], agents: Mapping[str, ResponsesAPIAgentServerInstanceConfig]
) -> None:
    stood_for = {server.agent for server in servers if isinstance(server, EnvironmentServerInstanceConfig)}
    for name, agent in agents.items():
        if name not in stood_for and _reference(agent, "resources_server") != MISSING:
            raise AgentWithoutEnvironmentServerError(
                f"no environment server stands for the agent '{name}'",
                hint=f"add one, or remove {ERROR_WITHOUT_ENVIRONMENT_SERVER}: agents need none here",
            )


def _check_pairings(
    servers: Sequence[ServerInstanceConfig], agents: Mapping[str, ResponsesAPIAgentServerInstanceConfig]
) -> None:
    by_name = {server.name: server for server in servers}
    for agent in agents.values():
        environment = by_name.get(_reference(agent, "resources_server"))
        if not isinstance(environment, ResourcesServerInstanceConfig):
            continue
        model = by_name.get(_reference(agent, "model_server"))
        taken, models = _allowed(environment, "allowed_agents"), _allowed(environment, "allowed_model_types")
        hint = f"use one of these, or pass ++{ALLOW_UNSUPPORTED_PAIRING}=true to try"
        if taken and agent.implementation not in taken:
            raise ConfigError(
                f"'{environment.name}' is for the agents {', '.join(taken)}, but '{agent.name}' is a "
                f"{agent.implementation}",
                hint=hint,
            )
        if models and model is not None and model.implementation not in (*models, DUMMY_MODEL):
            raise UnsupportedModelPairingError(
                f"'{environment.name}' is for the model servers {', '.join(models)}, but '{model.name}' is a "
                f"{model.implementation}",
                hint=hint,
            )


def _allowed(server: ServerInstanceConfig, key: str) -> list[str]:
    value = server.get_inner_run_server_config_dict().get(key) or []
    return [value] if isinstance(value, str) else [str(each) for each in value]


def _reference(server: ServerInstanceConfig, field: str) -> str:
    value = server.get_inner_run_server_config_dict().get(field)
    return str(value.get("name") or "") if isinstance(value, Mapping) else ""


# ---- afterwards ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Routing:
    """Which server runs a rollout. Without environment servers of their own, agents run theirs themselves."""

    doors: Mapping[str, str] = field(default_factory=dict)  # by agent: the environment server that takes its rollouts
    tasksets: Mapping[str, str] = field(default_factory=dict)  # by task set: the environment server of its tasks
    agents: Mapping[str, str] = field(default_factory=dict)  # by environment server: whom its results count for
    folders: Mapping[str, str] = field(default_factory=dict)  # by environment server: its implementation
    sources: Mapping[str, str] = field(default_factory=dict)  # by the server that declares a dataset: its agent
    only_tasksets: bool = False


def environment_servers(config: DictConfig) -> list[EnvironmentServerInstanceConfig]:
    """All environment servers of a configuration."""
    return [each for each in _servers(config) if isinstance(each, EnvironmentServerInstanceConfig)]


def _servers(config: DictConfig) -> list[ServerInstanceConfig]:
    found = (maybe_get_server_instance_config(name, block)[0] for name, block in blocks(config))
    return [server for server in found if server is not None]


def routing_of(config: DictConfig) -> Routing:
    """The routing that a configuration asks for."""
    servers = _servers(config)
    own = [server for server in servers if isinstance(server, EnvironmentServerInstanceConfig)]
    agents = {server.name: server.agent or server.name for server in own}
    routes = plain_data(config.get(ENVIRONMENT_SERVER_ROUTES)) or {}
    mode, everything = config.get(ENVIRONMENT_ROUTING_MODE) or "agent", config.get(ENVIRONMENT_SERVER_NAME)
    for name in (*routes.values(), *([everything] if everything else ())):
        if name not in agents:
            raise ServerRefNotFoundError(
                f"there is no environment server '{name}'. "
                + did_you_mean(str(name), agents, available="Available environment servers"),
                hint=f"correct {ENVIRONMENT_SERVER_ROUTES} or {ENVIRONMENT_SERVER_NAME}",
            )
    if mode not in ROUTING_MODES or (mode == "legacy") != bool(everything):
        raise ConfigError(
            f"'{ENVIRONMENT_ROUTING_MODE}' is {mode!r} and '{ENVIRONMENT_SERVER_NAME}' is {everything!r}",
            hint=f"the mode is one of {', '.join(ROUTING_MODES)}; only legacy takes {ENVIRONMENT_SERVER_NAME}",
        )
    named = [server for server in servers if isinstance(server, ResponsesAPIAgentServerInstanceConfig)]
    return Routing(
        doors={agent.name: str(everything) for agent in named} if everything else _doors(own),
        tasksets={str(taskset): str(name) for taskset, name in routes.items()},
        agents=agents,
        folders={server.name: server.implementation for server in own},
        sources={**_agents_by_resources(named), **agents, **{agent.name: agent.name for agent in named}},
        only_tasksets=mode == "taskset",
    )


def _doors(servers: Sequence[EnvironmentServerInstanceConfig]) -> dict[str, str]:
    doors: dict[str, str] = {}
    for server in servers:
        if server.agent is None or server.is_relay:
            continue
        if server.agent in doors:
            raise AmbiguousEnvironmentServerError(
                f"the environment servers '{doors[server.agent]}' and '{server.name}' both stand for the agent "
                f"'{server.agent}', so its rollouts could go to either",
                hint="remove one of them, or give each an agent of its own",
            )
        doors[server.agent] = server.name
    return doors


def _agents_by_resources(agents: Sequence[ResponsesAPIAgentServerInstanceConfig]) -> dict[str, str]:
    """The agent of every resources server that only one refers to."""
    users: dict[str, list[str]] = {}
    for agent in agents:
        users.setdefault(_reference(agent, "resources_server"), []).append(agent.name)
    return {name: found[0] for name, found in users.items() if name and len(found) == 1}
