import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.agents import prices_by_name
from nemo_gym.schemas.rows import Prices


def config(prices: object) -> DictConfig:
    made = OmegaConf.create(
        {
            "policy_model": {"responses_api_models": {"openai_model": {"prices": prices}}},
            "agent": {"responses_api_agents": {"simple_agent": {"model_server": {"name": "policy_model"}}}},
            "other": {"responses_api_agents": {"simple_agent": {"model_server": {"name": "no_such_model"}}}},
            "odd": {"responses_api_agents": {"simple_agent": {"model_server": "not a reference"}}},
            "number": 3,
        }
    )
    assert isinstance(made, DictConfig)
    return made


def test_an_agent_has_the_prices_of_its_model() -> None:
    prices = Prices(input=0.15, output=0.6)
    assert prices_by_name(config({"input": 0.15, "output": 0.6})) == {"policy_model": prices, "agent": prices}
    assert prices_by_name(config(None)) == {}


@pytest.mark.parametrize(
    "prices", [{"input": 1}, {"input": -1, "output": 1}, {"in": 1, "input": 1, "output": 1}, "cheap"]
)
def test_prices_that_can_not_be_read_are_refused_with_an_example(prices: object) -> None:
    with pytest.raises(ConfigError, match="prices of policy_model") as caught:
        prices_by_name(config(prices))
    assert "input: 0.15" in str(caught.value.hint)
