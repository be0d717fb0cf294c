"""Finds the prices of the models that agents use."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import Prices

AGENT_TYPE = "responses_api_agents"


def prices_by_agent(config: DictConfig) -> dict[str, Prices]:
    """The prices of each agent's ``model_server``, for those whose model has any."""
    found: dict[str, Prices] = {}
    for agent in map(str, config):
        reference = _settings(config, agent, AGENT_TYPE).get("model_server")
        model = reference.get("name") if isinstance(reference, DictConfig) else None
        given = _settings(config, str(model), *SERVER_TYPES).get("prices") if model else None
        if given is not None:
            found[agent] = _read(str(model), OmegaConf.to_container(given) if OmegaConf.is_config(given) else given)
    return found


def _settings(config: DictConfig, name: str, *kinds: str) -> Mapping[Any, Any]:
    block = config.get(name)
    kind = next((kind for kind in kinds if isinstance(block, DictConfig) and kind in block), None)
    inner = next(iter(block[kind].values()), None) if kind is not None and block[kind] else None
    return inner if isinstance(inner, DictConfig) else {}


def _read(model: str, given: Any) -> Prices:
    try:
        return Prices.model_validate(given)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'prices'}: {e['msg']}" for e in error.errors())
        raise ConfigError(
            f"the prices of {model} can't be read: {reasons}",
            hint="write prices: {input: 0.15, output: 0.60}, in USD for a million tokens; cached_input if you like",
        ) from None
