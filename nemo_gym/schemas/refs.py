"""References to servers by name, and the configuration that every server has.

Unknown keys are ignored everywhere, because authors' classes add their own. ``domain`` is optional here, although a
configured resources server must have one, because tests build servers without a configuration file.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict


class ModelServerRef(BaseModel):
    """A reference to a model server by its instance name."""

    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(BaseModel):
    """A reference to a resources server by its instance name."""

    type: Literal["resources_servers"]
    name: str


class AgentServerRef(BaseModel):
    """A reference to an agent server by its instance name."""

    type: Literal["responses_api_agents"]
    name: str


class EnvironmentServerRef(BaseModel):
    """A reference to an environment server by its instance name."""

    type: Literal["environment_servers"]
    name: str


ServerRef = ModelServerRef | ResourcesServerRef | AgentServerRef | EnvironmentServerRef


class Domain(StrEnum):
    """What an environment trains or tests."""

    MATH = "math"
    CODING = "coding"
    AGENT = "agent"
    KNOWLEDGE = "knowledge"
    INSTRUCTION_FOLLOWING = "instruction_following"
    LONG_CONTEXT = "long_context"
    SAFETY = "safety"
    GAMES = "games"
    TRANSLATION = "translation"
    E2E = "e2e"
    RLHF = "rlhf"
    OTHER = "other"


class BaseServerConfig(BaseModel):
    """Where a server listens."""

    # `model_server` is a common field; older releases of pydantic warn about every name that begins with `model_`.
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    host: str
    port: int
    num_workers: int | None = None


class BaseRunServerConfig(BaseServerConfig):
    """A server that can be started: where it listens and which file starts it."""

    entrypoint: str
    domain: Domain | None = None


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """A server that can be started, with the instance name by which others refer to it."""

    name: str
