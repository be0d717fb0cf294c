"""Environment servers in configurations: whom they stand for, and which agents and models an environment takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym import errors
from nemo_gym.config.environments import routing_of
from nemo_gym.config.instances import read_instances

Write = Callable[[str, Any], Path]
Parse = Callable[..., DictConfig]
Failure = Callable[..., errors.ConfigError]

RELAY = {"entrypoint": "app.py", "agent_server": {"type": "responses_api_agents", "name": "letters_agent"}}


def gym(**more: Any) -> dict[str, Any]:
    refs = {
        "resources_server": {"type": "resources_servers", "name": "letters"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {
        "letters": {"resources_servers": {"letters": {"entrypoint": "app.py", "domain": "other"}}},
        "letters_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **refs}}},
        "policy_model": {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}},
        **more,
    }


def relay(**changes: Any) -> dict[str, Any]:
    return {"environment_servers": {"legacy_agent": {**RELAY, **changes}}}


def test_a_relay_is_where_its_agent_is_and_is_not_started(write: Write, parse: Parse) -> None:
    write("a.yaml", gym(letters_environment_server=relay(agent_server={"name": "letters_agent"})))
    config = parse("+config_paths=[a.yaml]")
    own = config.letters_environment_server.environment_servers.legacy_agent
    agent = config.letters_agent.responses_api_agents.simple_agent
    assert (own.host, own.port) == (agent.host, agent.port)
    assert "letters_environment_server" not in [each.name for each in read_instances(config)]
    assert routing_of(config).doors == {}


def test_a_relay_without_its_agent_is_refused(write: Write, failure: Failure) -> None:
    write("a.yaml", gym(door=relay(agent_server={"type": "responses_api_agents", "name": "leters_agent"})))
    error = failure("+config_paths=[a.yaml]")
    assert isinstance(error, errors.ServerRefNotFoundError)
    assert "letters_agent" in str(error)


def test_other_environment_servers_take_the_rollouts_of_their_agent(write: Write, parse: Parse) -> None:
    ref = {"type": "responses_api_agents", "name": "letters_agent"}
    own = {"environment_servers": {"turns": {"entrypoint": "app.py", "solver": ref}}}
    write("a.yaml", gym(door=own, relay=relay()))
    config = parse("+config_paths=[a.yaml]")
    assert routing_of(config).doors == {"letters_agent": "door"}
    assert "door" in [each.name for each in read_instances(config)]
    write("a.yaml", gym(door=own, other=own))
    with pytest.raises(errors.AmbiguousEnvironmentServerError, match="'door' and 'other'"):
        routing_of(parse("+config_paths=[a.yaml]"))


def test_a_relay_follows_an_agent_that_was_moved(write: Write, parse: Parse, failure: Failure) -> None:
    moved = {"_inherit_from": "letters_agent"}
    write("a.yaml", gym(door=relay(), mine=moved))
    config = parse("+config_paths=[a.yaml]")
    assert config.door.environment_servers.legacy_agent.agent_server.name == "mine"
    write("a.yaml", gym(door=relay(), mine=moved, yours=moved))
    error = failure("+config_paths=[a.yaml]")
    assert isinstance(error, errors.AmbiguousAgentRenameError)
    assert "'mine' and 'yours'" in str(error)


def test_error_on_agent_without_environment_server(write: Write, parse: Parse, failure: Failure) -> None:
    write("a.yaml", gym())
    demand = "+error_on_agent_without_environment_server=true"
    assert isinstance(failure("+config_paths=[a.yaml]", demand), errors.AgentWithoutEnvironmentServerError)
    write("a.yaml", gym(door=relay()))
    parse("+config_paths=[a.yaml]", demand)


def test_an_environment_names_the_agents_and_models_that_it_takes(write: Write, parse: Parse, failure: Failure) -> None:
    block = {"entrypoint": "app.py", "domain": "other", "allowed_agents": "careful_agent"}
    write("a.yaml", gym(letters={"resources_servers": {"letters": block}}))
    assert "is for the agents careful_agent, but 'letters_agent' is a simple_agent" in str(
        failure("+config_paths=[a.yaml]")
    )
    parse("+config_paths=[a.yaml]", "+allow_unsupported_pairing=true")
    block = {"entrypoint": "app.py", "domain": "other", "allowed_model_types": ["vllm_model"]}
    write("a.yaml", gym(letters={"resources_servers": {"letters": block}}))
    assert isinstance(failure("+config_paths=[a.yaml]"), errors.UnsupportedModelPairingError)


def test_skip_verification_is_copied_into_agents_that_do_not_set_it(write: Write, parse: Parse) -> None:
    write("a.yaml", gym())
    config = parse("+config_paths=[a.yaml]", "+skip_verification=true", "+skip_verification_reward=0.5")
    agent = config.letters_agent.responses_api_agents.simple_agent
    assert (agent.skip_verification, agent.skip_verification_reward) == (True, 0.5)
    own = "+letters_agent.responses_api_agents.simple_agent.skip_verification=false"
    config = parse("+config_paths=[a.yaml]", "+skip_verification=true", own)
    assert not config.letters_agent.responses_api_agents.simple_agent.skip_verification


def test_results_dir_is_always_known(parse: Parse) -> None:
    assert parse().results_dir.endswith("results")
    assert parse("+results_dir=elsewhere").results_dir == "elsewhere"
    assert OmegaConf.is_dict(parse())
