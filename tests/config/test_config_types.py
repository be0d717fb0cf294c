"""The public types: what environment authors and commands import from ``nemo_gym.config_types``."""

import pickle

import pytest
from omegaconf import OmegaConf

from nemo_gym import config_types
from nemo_gym.config_types import (
    AgentServerRef,
    BaseNeMoGymCLIConfig,
    BaseRunServerInstanceConfig,
    ConfigError,
    ConfigPathNotFoundError,
    Domain,
    ModelServerRef,
    ResourcesServerRef,
    is_almost_server,
    is_server_ref,
    maybe_get_server_instance_config,
)

MODEL = {"responses_api_models": {"openai_model": {"entrypoint": "app.py", "extra": 1}}}
RESOURCES = {
    "resources_servers": {
        "calculator": {
            "entrypoint": "app.py",
            "domain": "math",
            "datasets": [{"name": "d", "type": "example", "jsonl_fpath": "d.jsonl"}],
        }
    },
    "note": "extra keys are fine",
}


def test_everything_that_is_promised_can_be_imported() -> None:
    for name in config_types.__all__:
        assert getattr(config_types, name) is not None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("responses_api_models", ModelServerRef),
        ("resources_servers", ResourcesServerRef),
        ("responses_api_agents", AgentServerRef),
    ],
)
def test_a_reference_is_recognised_by_its_type(kind: str, expected: type) -> None:
    assert isinstance(is_server_ref({"type": kind, "name": "x"}), expected)
    assert isinstance(is_server_ref(OmegaConf.create({"type": kind, "name": "x"})), expected)


@pytest.mark.parametrize(
    "value", [{"type": "adam", "name": "x"}, {"type": "resources_servers"}, {"name": "x"}, "x", None, {"type": []}]
)
def test_other_values_are_no_references(value: object) -> None:
    assert is_server_ref(value) is None


def test_a_test_may_build_a_server_configuration_with_empty_names() -> None:
    config = BaseRunServerInstanceConfig(host="0.0.0.0", port=8080, entrypoint="", name="")
    assert config.domain is None
    assert config.num_workers is None


def test_a_server_configuration_ignores_keys_it_does_not_know() -> None:
    data = {"host": "h", "port": 1, "entrypoint": "e", "name": "n", "domain": "math", "unknown": 1}
    config = BaseRunServerInstanceConfig.model_validate(data)
    assert config.domain is Domain.MATH
    assert "unknown" not in config.model_dump()


@pytest.mark.parametrize("wrap", [dict, OmegaConf.create])
def test_a_server_block_becomes_an_instance_config(wrap: type) -> None:
    server, error = maybe_get_server_instance_config("calc", wrap(RESOURCES))
    assert error is None
    assert server is not None
    assert (server.name, server.SERVER_TYPE, server.implementation) == ("calc", "resources_servers", "calculator")
    assert server.get_server_ref() == ResourcesServerRef(type="resources_servers", name="calc")
    assert [dataset.name for dataset in server.datasets or []] == ["d"]
    assert server.get_inner_run_server_config().entrypoint == "app.py"
    model, _ = maybe_get_server_instance_config("m", wrap(MODEL))
    assert model is not None
    assert model.datasets is None
    assert model.get_inner_run_server_config_dict() == {"entrypoint": "app.py", "extra": 1}
    assert model.get_server_ref().type == "responses_api_models"


def test_what_is_no_server_is_neither_a_config_nor_an_error() -> None:
    assert maybe_get_server_instance_config("x", {"free": "data"}) == (None, None)
    assert maybe_get_server_instance_config("x", 3) == (None, None)


def test_a_broken_server_gives_its_validation_error() -> None:
    server, error = maybe_get_server_instance_config("x", {"resources_servers": {"y": {"entrypoint": "app.py"}}})
    assert server is None
    assert error is not None
    assert error.errors()[0]["loc"] == ("resources_servers", "y", "domain")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (MODEL, True),
        ({"resources_servers": {"x": {"entrypoint": "app.py"}}}, True),
        ({"resources_servers": {"x": {"domain": "math"}}}, False),
        ({"resources_servers": "x"}, False),
        ({"other": {"x": {"entrypoint": "app.py"}}}, False),
        ("text", False),
    ],
)
def test_an_almost_server_has_a_server_type_and_an_entrypoint(block: object, expected: bool) -> None:
    assert is_almost_server(block) is expected


def test_a_command_takes_its_parameters_out_of_the_whole_configuration() -> None:
    class Parameters(BaseNeMoGymCLIConfig):
        limit: int = 3

    assert Parameters.model_validate({"limit": "5", "help": True, "other": {}}).limit == 5


def test_errors_carry_their_hint_and_survive_pickling() -> None:
    error = ConfigPathNotFoundError("no such file", hint="look elsewhere")
    assert (str(error), error.hint) == ("no such file", "look elsewhere")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.hint) == (ConfigPathNotFoundError, "no such file", "look elsewhere")


def test_every_named_error_is_a_config_error() -> None:
    errors = [value for name, value in vars(config_types).items() if name.endswith("Error")]
    assert len(errors) == 13
    assert all(issubclass(error, ConfigError) for error in errors)
