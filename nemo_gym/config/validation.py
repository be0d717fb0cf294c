"""Decides whether a top-level block is a server, and says what keeps an almost-server from being one."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.config.interpolation import plain
from nemo_gym.config.keys import RESERVED_KEYS, SERVER_TYPES
from nemo_gym.config.server_types import (
    ResourcesServerInstanceConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIModelServerInstanceConfig,
    ServerInstanceConfig,
)
from nemo_gym.schemas.refs import Domain, ServerRef

_INSTANCE_CONFIGS: Final[tuple[type[ServerInstanceConfig], ...]] = (
    ResourcesServerInstanceConfig,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIModelServerInstanceConfig,
)
_SERVER_REF: Final[TypeAdapter[ServerRef]] = TypeAdapter(ServerRef)


def maybe_get_server_instance_config(
    name: str, server_instance_config_dict: Any
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """The server under this name, or what is wrong with it. Neither, if the block has no server type at all."""
    data = plain(server_instance_config_dict)
    if not isinstance(data, Mapping):
        return None, None
    for config_class in _INSTANCE_CONFIGS:
        if config_class.SERVER_TYPE in data:
            try:
                return config_class.model_validate({**data, "name": name}), None
            except ValidationError as error:
                return None, error
    return None, None


def is_almost_server(server_instance_config_dict: Any) -> bool:
    """Whether a block was meant as a server: it names a server type and an entrypoint."""
    data = plain(server_instance_config_dict)
    if not isinstance(data, Mapping):
        return False
    implementations = [data[kind] for kind in SERVER_TYPES if isinstance(data.get(kind), Mapping)]
    settings = [value for implementation in implementations for value in implementation.values()]
    return any(isinstance(value, Mapping) and "entrypoint" in value for value in settings)


def is_server_ref(config_dict: Any) -> ServerRef | None:
    """The reference that ``{type: ..., name: ...}`` stands for, if it is one."""
    data = plain(config_dict)
    if not isinstance(data, Mapping) or data.get("type") not in SERVER_TYPES:
        return None
    try:
        return _SERVER_REF.validate_python(dict(data))
    except ValidationError:
        return None


def blocks(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """The top-level blocks that may be servers, in order."""
    for name in config:
        if not isinstance(name, str) or name in RESERVED_KEYS:
            continue
        try:
            block = config[name]
        except (InterpolationResolutionError, MissingMandatoryValue):
            # a reference that points nowhere is free data until somebody reads it
            continue
        if isinstance(block, DictConfig):
            yield name, block


def explain(error: ErrorDetails) -> str:
    """One line for one validation error. It never shows the value, which may be a secret."""
    location = " -> ".join(map(str, error["loc"])) or "(block)"
    return f"- {location}: {_reason(error)}"


def _reason(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if expected := context.get("expected_tags") or (error["type"] != "value_error" and context.get("expected")):
        return f"Must be one of: {str(expected).replace(' or ', ', ')}"
    if error["type"] == "missing" and error["loc"][-1] == "domain":
        return f"Field required. Must be one of: {', '.join(map(repr, map(str, Domain)))}"
    return error["msg"].removeprefix("Value error, ")
