"""Sessions of a resources server that an environment server opens and closes by an id of its own.

The same ``/seed_session`` takes the row of a task, as agents send it, and a request that names its session. Only the
latter sessions are closed. A server with state keeps a contract: the same seed twice is the same session, closing twice
or without a seed succeeds, a seed after its close is refused, and a failed release is an error, so that the caller can
repeat it. ``nemo_gym.testing.session_conformance`` checks that of an app.
"""

from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.schemas.episodes import EpisodeId, FilledText, SandboxAccess, TaskId
from nemo_gym.servers.mcp_tools import MCPServerMetadata

SEED_PATH: Final = "/seed_session"
CLOSE_PATH: Final = "/close_session"
VerificationInput = TypeVar("VerificationInput")


class ResourcesSeedSessionRequest(BaseModel):
    """Opens a session for one episode; ``task_data`` are the fields of its task."""

    model_config = ConfigDict(extra="forbid")

    resources_session_id: FilledText
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, Any]


class ResourcesSeedSessionResponse(BaseModel):
    """The session is open; how to reach its tools over MCP and its sandbox, if it has them."""

    model_config = ConfigDict(extra="forbid")

    resources_session_id: FilledText
    resources_tools: MCPServerMetadata | None = None
    sandbox_access: SandboxAccess | None = None


class ResourcesCloseSessionRequest(BaseModel):
    """Closes the session of an episode."""

    model_config = ConfigDict(extra="forbid")

    resources_session_id: FilledText
    episode_id: EpisodeId


class ResourcesCloseSessionResponse(BaseModel):
    """The session is closed."""

    model_config = ConfigDict(extra="forbid")

    resources_session_id: FilledText


class ResourcesVerifyRequest(BaseModel, Generic[VerificationInput]):
    """What to score in the session of an episode."""

    model_config = ConfigDict(extra="forbid")

    episode_id: EpisodeId
    task_id: TaskId
    verification_input: VerificationInput = Field()
