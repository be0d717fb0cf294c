"""Names of servers on the wire and in configurations: references between them, and what every server knows of itself.

Unknown keys are ignored everywhere, because authors' classes add their own. ``domain`` is optional here although a
configured resources server must have one: a test builds its server without any configuration file.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict


class ModelServerRef(BaseModel):
    """A model server, by instance name."""

    type: Literal["responses_api_models"]
    name: str


class ResourcesServerRef(BaseModel):
    """A resources server, by instance name."""

    type: Literal["resources_servers"]
    name: str


class AgentServerRef(BaseModel):
    """An agent server, by instance name."""

    type: Literal["responses_api_agents"]
    name: str


ServerRef = ModelServerRef | ResourcesServerRef | AgentServerRef


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

    # `model_server` is a usual field; older releases of pydantic warn of everything that begins with `model_`.
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    host: str
    port: int
    num_workers: int | None = None


class BaseRunServerConfig(BaseServerConfig):
    """A server that can be started: where it listens and which file starts it."""

    entrypoint: str
    domain: Domain | None = None


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """A server that can be started, under the instance name that others use for it."""

    name: str
