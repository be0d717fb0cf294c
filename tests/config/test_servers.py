"""Required values, servers, references and almost-servers of a parsed configuration."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.instances import read_instances, require_instances
from nemo_gym.errors import (
    AlmostServerError,
    ConfigError,
    ConfigMissingValuesError,
    NoServerInstancesError,
    ServerRefNotFoundError,
)
from nemo_gym.global_config import GlobalConfigDictParserConfig

Write = Callable[[str, Any], Path]
Parse = Callable[..., DictConfig]
Failure = Callable[..., ConfigError]

GYM = """\
my_resources:
  resources_servers:
    calculator:
      entrypoint: app.py
      domain: math
my_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      max_steps: 3
      resources_server:
        type: resources_servers
        name: my_resources
      model_server:
        type: responses_api_models
        name: policy_model
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
"""
KEYS = ("+policy_base_url=http://x/v1", "+policy_api_key=sk-hunter2")


@pytest.fixture
def gym(write: Write) -> str:
    write("gym.yaml", GYM)
    return "+config_paths=[gym.yaml]"


def test_servers_are_read_in_order_with_resolved_settings(gym: str, parse: Parse) -> None:
    instances = read_instances(parse(gym, *KEYS))
    assert [(i.name, i.server_type, i.implementation, i.entrypoint) for i in instances] == [
        ("my_resources", "resources_servers", "calculator", "app.py"),
        ("my_agent", "responses_api_agents", "simple_agent", "app.py"),
        ("policy_model", "responses_api_models", "openai_model", "app.py"),
    ]
    model = instances[2]
    assert model.settings["openai_base_url"] == "http://x/v1"
    assert model.settings["name"] == "policy_model"
    assert (model.settings["host"], model.settings["port"]) == (model.host, model.port)
    assert model.num_workers is None
    assert model.isolation is None
    assert model.directory.parts[-2:] == ("responses_api_models", "openai_model")


def test_overrides_reach_into_a_server(gym: str, parse: Parse) -> None:
    config = parse(gym, *KEYS, "++my_agent.responses_api_agents.simple_agent.max_steps=7")
    assert read_instances(config)[1].settings["max_steps"] == 7


def test_several_workers_imply_a_process(gym: str, parse: Parse) -> None:
    config = parse(gym, *KEYS, "++my_resources.resources_servers.calculator.num_workers=2")
    assert read_instances(config)[0].isolation == "process"


def test_isolation_can_be_chosen(gym: str, parse: Parse) -> None:
    config = parse(gym, *KEYS, "++my_resources.resources_servers.calculator.isolation=process")
    assert read_instances(config)[0].isolation == "process"


def test_the_domain_of_an_agent_is_dropped(gym: str, parse: Parse) -> None:
    config = parse(gym, *KEYS, "++my_agent.responses_api_agents.simple_agent.domain=whatever")
    assert "domain" not in read_instances(config)[1].settings


def test_an_inherited_server_replaces_its_template(write: Write, gym: str, parse: Parse) -> None:
    write(
        "derived.yaml",
        "calculus:\n  _inherit_from: my_resources\n  resources_servers: {calculator: {level: 9}}\n"
        "my_agent: {responses_api_agents: {simple_agent: {resources_server: {name: calculus}}}}\n",
    )
    instances = read_instances(parse("+config_paths=[gym.yaml,derived.yaml]", *KEYS))
    assert [instance.name for instance in instances] == ["my_agent", "policy_model", "calculus"]
    assert instances[2].settings["level"] == 9


def test_a_server_may_be_an_interpolation_of_another(gym: str, parse: Parse) -> None:
    twins = [i for i in read_instances(parse(gym, *KEYS, "+twin=${my_resources}")) if i.implementation == "calculator"]
    assert [twin.name for twin in twins] == ["my_resources", "twin"]
    assert twins[0].port != twins[1].port


def test_no_servers_is_an_error_only_for_those_who_need_one(parse: Parse) -> None:
    config = parse("+free=1")
    assert read_instances(config) == []
    with pytest.raises(NoServerInstancesError, match="no servers") as caught:
        require_instances(config)
    assert isinstance(caught.value, ValueError)
    assert "+config_paths=[" in str(caught.value.hint)


def test_values_that_are_not_set_are_all_named_with_their_places(gym: str, parse: Parse) -> None:
    with pytest.raises(ConfigError) as caught:
        read_instances(parse(gym))
    assert str(caught.value) == (
        "gym.yaml:21: 'policy_model.responses_api_models.openai_model.openai_base_url'"
        " needs ${policy_base_url}, which is not set\n"
        "gym.yaml:22: 'policy_model.responses_api_models.openai_model.openai_api_key'"
        " needs ${policy_api_key}, which is not set"
    )
    assert str(caught.value.hint).splitlines() == [
        "put these into env.yaml, or pass each of them as '+<key>=<value>':",
        "  policy_base_url: <value>",
        "  policy_api_key: <value>",
    ]


def test_an_environment_variable_that_is_not_set_is_named(gym: str, parse: Parse) -> None:
    with pytest.raises(ConfigError, match="needs the environment variable NO_SUCH_VARIABLE, which is not set"):
        read_instances(parse(gym, KEYS[1], "+policy_base_url=${oc.env:NO_SUCH_VARIABLE}"))


def test_environment_variables_are_read(gym: str, parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_URL", "http://env/v1")
    config = parse(gym, KEYS[1], "+policy_base_url=${oc.env:MY_URL}")
    assert read_instances(config)[2].settings["openai_base_url"] == "http://env/v1"


def test_an_unknown_resolver_is_named(gym: str, parse: Parse) -> None:
    with pytest.raises(ConfigError, match="not a known resolver"):
        read_instances(parse(gym, KEYS[1], "+policy_base_url=${no.such:x}"))


def test_a_configuration_that_was_never_parsed_has_no_addresses() -> None:
    with pytest.raises(ConfigError, match="server 'my_resources' has no host and port"):
        read_instances(OmegaConf.create(GYM))


# required values


def test_all_required_values_are_listed_with_hints(write: Write, failure: Failure) -> None:
    write("a.yaml", "a:\n  b: ???\n  c:\n  - 1\n  - ???\nd: ???\ne: ???\n")
    error = failure("+config_paths=[a.yaml]")
    assert isinstance(error, ConfigMissingValuesError)
    assert isinstance(error, ValueError)
    assert str(error) == (
        "4 required values are not set (???):\n  a.yaml:2: a.b\n  a.yaml:5: a.c[1]\n  a.yaml:6: d\n  a.yaml:7: e"
    )
    assert error.hint == "set them in env.yaml or on the command line: ++a.b=<value> ++a.c=<value> ++d=<value>"


def test_a_required_value_is_satisfied_by_a_higher_source(write: Write, parse: Parse) -> None:
    write("a.yaml", "a:\n  b: ???\n")
    assert parse("+config_paths=[a.yaml]", "++a.b=1").a.b == 1


# references


def test_an_unknown_reference_suggests_the_nearest_server(gym: str, failure: Failure) -> None:
    error = failure(gym, "++my_agent.responses_api_agents.simple_agent.model_server.name=policy_modl")
    assert isinstance(error, ServerRefNotFoundError)
    assert isinstance(error, ValueError)
    assert str(error) == (
        "command line: server 'my_agent', field 'model_server': responses_api_models/'policy_modl' is not defined. "
        "Did you mean: 'policy_model'?"
    )
    assert "config_paths" in str(error.hint)


def test_an_unknown_reference_lists_what_is_available_when_nothing_is_near(write: Write, failure: Failure) -> None:
    write("gym.yaml", GYM.replace("name: my_resources", "name: xyz"))
    assert str(failure("+config_paths=[gym.yaml]")) == (
        "gym.yaml:11: server 'my_agent', field 'resources_server': resources_servers/'xyz' is not defined. "
        "Available resources_servers: 'my_resources'"
    )


def test_a_reference_to_a_type_without_servers_says_so(write: Write, failure: Failure) -> None:
    write("gym.yaml", GYM.partition("policy_model:\n")[0])
    assert str(failure("+config_paths=[gym.yaml]")).endswith(
        "responses_api_models/'policy_model' is not defined. Available responses_api_models: (none)"
    )


def test_a_reference_to_a_moved_server_names_its_new_name(write: Write, gym: str, failure: Failure) -> None:
    write("derived.yaml", "calculus: ${inherit_from:my_resources}\n")
    error = failure("+config_paths=[gym.yaml,derived.yaml]")
    assert "'_inherit_from' moved it to 'calculus'; refer to that name." in str(error)


def test_references_are_checked_in_lists_but_not_deeper(gym: str, failure: Failure) -> None:
    prefix = "++my_resources.resources_servers.calculator"
    error = failure(
        gym,
        f"{prefix}.judges=[{{type: responses_api_models, name: policy_model}},{{type: responses_api_models, name: j}}]",
        f"{prefix}.nested.judge={{type: responses_api_agents, name: a}}",
    )
    assert "field 'judges[1]': responses_api_models/'j'" in str(error)
    assert "nested.judge" not in str(error)
    assert "judges[0]" not in str(error)


def test_what_only_looks_like_a_reference_is_not_checked(gym: str, parse: Parse) -> None:
    parse(gym, "++my_resources.resources_servers.calculator.optimizer={type: adam, name: x}")


def test_the_name_in_a_reference_may_be_interpolated(gym: str, parse: Parse) -> None:
    parse(gym, "++my_agent.responses_api_agents.simple_agent.model_server.name=${which}", "+which=policy_model")


# almost-servers


def test_an_almost_server_is_an_error_that_lists_every_mistake(write: Write, failure: Failure) -> None:
    write(
        "a.yaml",
        "free: 1\nbroken:\n  resources_servers:\n    calculator:\n      entrypoint: app.py\n      domain: mathh\n"
        "      datasets:\n      - {name: d, type: train, jsonl_fpath: d.jsonl, license: mine}\n",
    )
    error = failure("+config_paths=[a.yaml]")
    assert isinstance(error, AlmostServerError)
    assert isinstance(error, ValueError)
    lines = str(error).splitlines()
    assert lines[0] == "Configuration Warnings: Almost-Servers Detected"
    assert lines[2] == "Almost-Server Detected: 'broken' (a.yaml:2)"
    assert lines[3].startswith(
        "  - resources_servers -> calculator -> datasets -> 0 -> train -> license: Must be one of:"
    )
    assert "'Apache 2.0', 'MIT'" in lines[3]
    assert lines[4].startswith("  - resources_servers -> calculator -> domain: Must be one of: 'math', 'coding'")
    assert lines[5] == "  This server will NOT be started."
    assert "++error_on_almost_servers=false" in str(error.hint)


@pytest.mark.parametrize(
    ("block", "mistake"),
    [
        (
            "{resources_servers: {x: {entrypoint: a.py}}}",
            "resources_servers -> x -> domain: Field required. Must be one of",
        ),
        (
            "{resources_servers: {x: {entrypoint: a.py, domain: math}, y: {}}}",
            "resources_servers: needs exactly one implementation, has 2: x, y",
        ),
        (
            "{responses_api_agents: {x: {entrypoint: a.py}}, responses_api_models: {y: {entrypoint: a.py}}}",
            "(block): has more than one server type: responses_api_agents, responses_api_models",
        ),
        ("{responses_api_agents: {x: {entrypoint: [a]}}}", "responses_api_agents -> x -> entrypoint: "),
        ("{responses_api_agents: {x: {entrypoint: a.py, port: 70000}}}", "responses_api_agents -> x -> port: "),
        (
            "{responses_api_agents: {x: {entrypoint: a.py, num_workers: 0}}}",
            "responses_api_agents -> x -> num_workers: ",
        ),
        (
            "{responses_api_agents: {x: {entrypoint: a.py, isolation: thread}}}",
            "responses_api_agents -> x -> isolation: Must be one of: 'inline', 'process'",
        ),
        (
            "{responses_api_agents: {x: {entrypoint: a.py, isolation: inline, num_workers: 2}}}",
            "responses_api_agents -> x: num_workers > 1 needs separate processes",
        ),
        (
            "{responses_api_agents: {x: {entrypoint: a.py, datasets: [{name: d, type: test, jsonl_fpath: f}]}}}",
            "datasets -> 0: Must be one of: 'train', 'validation', 'example', 'benchmark'",
        ),
        (
            "{responses_api_agents: {x: {entrypoint: a.py, datasets: [{name: d, type: train, jsonl_fpath: f}]}}}",
            "datasets -> 0 -> train: a train dataset needs a 'license'",
        ),
    ],
)
def test_every_mistake_is_explained(write: Write, failure: Failure, block: str, mistake: str) -> None:
    write("a.yaml", f"broken: {block}\n")
    assert mistake in str(failure("+config_paths=[a.yaml]"))


def test_almost_servers_can_be_allowed(write: Write, parse: Parse, caplog: pytest.LogCaptureFixture) -> None:
    write("gym.yaml", GYM + "broken: {resources_servers: {x: {entrypoint: app.py}}}\n")
    with caplog.at_level(logging.WARNING):
        config = parse("+config_paths=[gym.yaml]", "++error_on_almost_servers=false", *KEYS)
    assert "Almost-Server Detected: 'broken'" in caplog.text
    assert "broken" not in [instance.name for instance in read_instances(config)]


def test_a_block_without_entrypoint_is_free_data(parse: Parse) -> None:
    config = parse("+free={resources_servers: {x: {domain: nonsense}}}")
    assert read_instances(config) == []


def test_a_reserved_key_is_never_a_server(parse: Parse) -> None:
    config = parse("+query={resources_servers: {x: {entrypoint: a.py, domain: math}}}")
    assert read_instances(config) == []


def test_a_common_field_that_points_nowhere_is_named(gym: str, failure: Failure) -> None:
    error = failure(gym, "++my_resources.resources_servers.calculator.num_workers=${workers}")
    assert str(error) == (
        "command line: 'my_resources.resources_servers.calculator.num_workers' needs ${workers}, which is not set"
    )


def test_secrets_never_appear_in_the_report(write: Write, failure: Failure) -> None:
    write("a.yaml", "broken: {resources_servers: {x: {entrypoint: app.py, api_key: hunter2, domain: hunter2}}}\n")
    error = failure("+config_paths=[a.yaml]")
    assert "hunter2" not in f"{error} {error.hint}"


# the dummy policy model of commands that need none


def test_commands_without_a_model_get_a_dummy_one(write: Write, parse: Parse) -> None:
    write("gym.yaml", GYM.partition("policy_model:\n")[0])
    config = parse("+config_paths=[gym.yaml]", initial=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert [(i.name, i.implementation) for i in read_instances(config)][-1] == ("policy_model", "dummy_model")
    assert config.policy_api_key == ""


def test_a_real_model_takes_the_place_of_the_dummy(gym: str, parse: Parse) -> None:
    config = parse(gym, initial=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert list(config.policy_model.responses_api_models) == ["openai_model"]
    assert read_instances(config)[-1].settings["openai_base_url"] == ""
