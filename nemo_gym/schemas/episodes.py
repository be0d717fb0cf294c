"""Episodes: a rollout as an environment server runs it, and what its servers tell each other about their sessions.

An environment server chooses the ids of an episode and of the sessions that it opens at a resources server and at an
agent; both refuse keys that they do not know, so that a misspelt one is noticed before a model is called. An agent is
told which tools it may use and how to reach them (``ToolAccess``), and which sandbox is its own (``SandboxAccess``).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from nemo_gym.schemas.rows import ROLLOUT_ID_PATTERN

REASON_CHARS: Final = 2000
FailureStage = Literal["admission", "seed", "agent", "verification", "cleanup"]
_RETRY_SUFFIX: Final = re.compile(r"-a[1-9]\d*$")
Name = Annotated[str, StringConstraints(pattern=ROLLOUT_ID_PATTERN.pattern)]
FilledText = Annotated[str, StringConstraints(min_length=1)]
TaskInput = TypeVar("TaskInput")
EpisodeResult = TypeVar("EpisodeResult")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


# ---- which episode ---------------------------------------------------------------------------------------------------
class EpisodeId(BaseModel):
    """One attempt of a rollout. ``capture_key`` names it in paths and files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: Name
    attempt: int = Field(default=0, ge=0)

    @field_validator("rollout_id")
    @classmethod
    def _has_no_attempt(cls, rollout_id: str) -> str:
        if _RETRY_SUFFIX.search(rollout_id):
            raise ValueError("ends like the id of a retry; give the number of the attempt as 'attempt'")
        return rollout_id

    @property
    def capture_key(self) -> str:
        """The id of the rollout, with a suffix for retries."""
        return f"{self.rollout_id}-a{self.attempt}" if self.attempt else self.rollout_id


class TaskId(BaseModel):
    """A task of a set of tasks, which is usually called ``<environment>:<taskset>``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    taskset: FilledText
    task_id: FilledText


class EpisodeFailure(_Strict):
    """Why an episode has no result; a ``terminal`` one is never tried again."""

    failure_reason: str = Field(max_length=REASON_CHARS)
    terminal: bool
    failure_kind: str | None = None
    stage: FailureStage | None = None

    @model_serializer(mode="wrap")
    def _without_unknowns(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {k: v for k, v in fields.items() if v is not None or k not in ("failure_kind", "stage")}


class MaterializedTask(_Strict, Generic[TaskInput]):
    """A task with everything that its episode needs."""

    task_id: TaskId
    task_input: TaskInput


class BaseEpisodeRequest(_Strict, Generic[TaskInput]):
    """The request to run one episode."""

    episode_id: EpisodeId
    task: MaterializedTask[TaskInput]


class BaseEpisodeResponse(_Strict, Generic[EpisodeResult]):
    """How an episode ended: with a result, or with a failure."""

    episode_id: EpisodeId
    task_id: TaskId
    result: EpisodeResult | None = None
    failure: EpisodeFailure | None = None

    @model_validator(mode="after")
    def _has_one_ending(self) -> Self:
        if (self.result is None) == (self.failure is None):
            raise ValueError("an episode has either a result or a failure")
        return self


def is_materialized_task_row(row: Mapping[str, Any]) -> bool:
    """Whether a row of a task file is a whole ``MaterializedTask``, and not the flat fields of a task."""
    return isinstance(row.get("task_id"), Mapping) and "task_input" in row


# ---- what an agent may use -------------------------------------------------------------------------------------------
def _is_http_url(url: str) -> str:
    AnyHttpUrl(url)  # which would change the text, by adding a slash
    return url


HttpUrl = Annotated[str, AfterValidator(_is_http_url)]


class DirectHTTPToolAccess(_Strict):
    """Tools that are routes: ``POST <base_url>/<tool>`` with these cookies and headers."""

    kind: Literal["direct_http"] = "direct_http"
    name: Name
    required: bool
    base_url: HttpUrl
    cookies: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)


class MCPStreamableHTTPConnection(_Strict):
    """Where an MCP server is."""

    transport: Literal["streamable_http"] = "streamable_http"
    url: HttpUrl
    headers: dict[str, str] = Field(default_factory=dict)


class MCPToolAccess(_Strict):
    """The tools of an MCP server."""

    kind: Literal["mcp"] = "mcp"
    name: Name
    required: bool
    connection: MCPStreamableHTTPConnection


ToolAccess = Annotated[DirectHTTPToolAccess | MCPToolAccess, Field(discriminator="kind")]


def refuse_repeated_names(accesses: list[Any]) -> list[Any]:
    """The same accesses, unless two of them have one name."""
    names = [access.name for access in accesses]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"several tool accesses are called {', '.join(repeated)}")
    return accesses


ToolAccesses = Annotated[list[ToolAccess], AfterValidator(refuse_repeated_names)]


class DirectSandboxConnection(_Strict):
    """A sandbox to connect to: the block of the configuration that names its provider, and what that provider needs."""

    kind: Literal["direct"] = "direct"
    provider_config_ref: FilledText
    descriptor: dict[str, Any]


class SandboxAccess(_Strict):
    """A sandbox that belongs to an episode, and the folder to work in."""

    connection: DirectSandboxConnection
    workdir: str


# ---- sessions of agents ----------------------------------------------------------------------------------------------
class AgentSeedSessionRequest(_Strict):
    """Opens a session at an agent."""

    agent_session_id: FilledText
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: ToolAccesses = Field(default_factory=list)
    sandbox_access: SandboxAccess | None = None


class AgentSeedSessionResponse(_Strict):
    """The session is open."""

    agent_session_id: FilledText


class AgentCloseSessionRequest(_Strict):
    """Closes a session at an agent."""

    agent_session_id: FilledText
    episode_id: EpisodeId
