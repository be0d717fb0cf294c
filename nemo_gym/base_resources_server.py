"""Front door: the base of every resources server (tools, state, verification)."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, cast

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Route

from nemo_gym.errors import ConfigError
from nemo_gym.judge import judge_failsafe
from nemo_gym.metrics.aggregate import computes_standard_metrics
from nemo_gym.openai_utils import (
    THINK_TAGS,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    answer_text,
)
from nemo_gym.reward_profile import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.schemas.episodes import FilledText
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.schemas.rows import ROLLOUT_ID_KEY_NAME, AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.mcp_endpoint import (
    TOKEN_IN_PATH,
    MCPEndpoint,
    function_server,
    gym_tool,
    marked_tools,
    tool_server,
    with_metadata,
    with_own_tool_names,
)
from nemo_gym.servers.mcp_tools import (
    MCP_PATH,
    NEMO_GYM_MCP_METADATA_KEY,
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
    CatchallTool,
    ExposedTools,
    MCPServerMetadata,
    MCPSession,
    MCPSessionError,
    MCPTool,
    SessionTokens,
    normalize_tool_name,
)
from nemo_gym.servers.mcp_tools import SESSION_TOKEN as _MCP_SESSION_TOKEN
from nemo_gym.servers.middleware.sessions import SessionStates
from nemo_gym.servers.resources_sessions import (
    CLOSE_PATH,
    SEED_PATH,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    ResourcesVerifyRequest,
)
from nemo_gym.servers.scoring import verify_handler
from nemo_gym.servers.verdicts import completing

__all__ = [
    "NEMO_GYM_MCP_METADATA_KEY",
    "NEMO_GYM_MCP_SESSION_TOKEN_HEADER",
    "RESERVED_MCP_TOOL_NAMES",
    "_MCP_SESSION_TOKEN",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseMultiRewardVerifyResponse",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "BaseRunRequest",
    "BaseSeedSessionRequest",
    "BaseSeedSessionResponse",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "MCPResourcesServer",
    "MCPServerMetadata",
    "MCPSessionError",
    "MCPTool",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "ResourcesCloseSessionRequest",
    "ResourcesCloseSessionResponse",
    "ResourcesSeedSessionRequest",
    "ResourcesSeedSessionResponse",
    "ResourcesVerifyRequest",
    "ReverifyMode",
    "SessionStates",
    "SimpleResourcesServer",
    "gym_tool",
    "normalize_tool_name",
    "refuse_invalid_rows",
]


class ReverifyMode(StrEnum):
    """Whether saved rollouts can be scored again without running them again."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """Settings of a resources server; subclass it to add fields."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN

    expose_tools_over_mcp: bool = False
    # What ``answer_text`` leaves out of an answer; null if answers are to be read as they are.
    reasoning_tags: tuple[str, str] | None = THINK_TAGS


class BaseResourcesServer(BaseServer):
    """A server with tools, state and verification."""

    config: BaseResourcesServerConfig


class BaseRunRequest(BaseModel):
    """A task: the request for the model; subclasses add the fields of their rows."""

    model_config = ConfigDict(populate_by_name=True)

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    # Says which rollout this is; it names files and paths, and is not part of the task.
    capture_rollout_id: str | None = Field(default=None, alias=ROLLOUT_ID_KEY_NAME, exclude=True)


class BaseVerifyRequest(BaseRunRequest):
    """A task and the agent's response to it."""

    response: NeMoGymResponse


class AnyVerifyRequest(BaseVerifyRequest):
    """A task with all its fields, for a ``verify`` that does not say what it takes."""

    model_config = ConfigDict(extra="allow")


class BaseVerifyResponse(BaseVerifyRequest):
    """A finished rollout and its reward.

    With ``mask_sample`` the reward is not a measurement, for the reason given: the rollout is kept, and left out of
    every score.
    """

    reward: float
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """A finished rollout with several rewards; ``reward`` remains the one number that is trained on."""

    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """The start of a rollout; subclasses name the row fields they need."""


class BaseSeedSessionResponse(BaseModel):
    """The reply to the start of a rollout."""


class AnySeedSessionRequest(BaseSeedSessionRequest):
    """The start of a rollout, of which a server without state only needs to know how its session is called."""

    resources_session_id: FilledText | None = None


async def seed_without_state(body: AnySeedSessionRequest) -> BaseSeedSessionResponse:
    """The route of servers that do not override ``seed_session``.

    The same as that method, but unions of requests and responses would read every row twice, and try each reply.
    """
    if body.resources_session_id is None:
        return BaseSeedSessionResponse()
    seeded = ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)
    return cast("BaseSeedSessionResponse", JsonResponse(seeded.model_dump_json().encode()))


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """A resources server with the standard routes; add tools in ``setup_webserver``.

    ``attacks`` are tried by ``ng_check_environment +attack=true`` besides the usual ones: functions of what an agent
    sees that return what it says. ``known_holes`` says why some attacks may get a reward here, by name or pattern.
    """

    mcp_url_path: ClassVar[str] = MCP_PATH
    attacks: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    known_holes: ClassVar[Mapping[str, str]] = {}

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/seed_session``, ``/verify``, ``/close_session`` and ``/aggregate_metrics``."""
        app = FastAPI()
        self.setup_session_middleware(app)
        verify = verify_handler(self.verify, owner=self.config.name, body=AnyVerifyRequest)
        # Added to the routes before the tools of a subclass, which may have a catch-all route.
        if self._offers_mcp():
            endpoint = MCPEndpoint(self.mcp_server(app), name=self.config.name)
            for path in (self.mcp_url_path, f"{self.mcp_url_path}/{{{TOKEN_IN_PATH}}}"):
                app.router.routes.append(Route(path, endpoint, include_in_schema=False))

            def metadata(request: Request, seed_body: dict[str, Any]) -> MCPServerMetadata:
                return endpoint.watch(self._mcp_metadata(request, seed_body))

            app.post(SEED_PATH)(with_metadata(self.seed_session, metadata))
        else:
            is_default = type(self).seed_session is SimpleResourcesServer.seed_session
            app.post(SEED_PATH)(seed_without_state if is_default else self.seed_session)
        app.post(CLOSE_PATH)(self.close_resources_session)
        if self.config.expose_tools_over_mcp:
            verify = with_own_tool_names(verify, self.config.name)
        app.post("/verify")(completing(judge_failsafe(verify)))
        app.get("/reverify_mode")(self.reverify_mode)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    def _offers_mcp(self) -> bool:
        return self.config.expose_tools_over_mcp

    def mcp_server(self, app: FastAPI) -> Any:
        """The server of the ``mcp`` package that serves ``/mcp``."""
        return tool_server(self.config.name, self.exposed_tools(app))

    def exposed_tools(self, app: FastAPI) -> ExposedTools:
        """The tools of an app that are offered over MCP."""
        key, base_url = self.get_session_middleware_key(), f"http://{self.config.host}:{self.config.port}"
        return ExposedTools(app, server_key=key, base_url=base_url, choose=self.mcp_tools, name=self.config.name)

    def mcp_tools(self, harvested: list[MCPTool], catchall: CatchallTool | None) -> Iterable[MCPTool]:
        """Choose the tools that are offered over MCP; ``harvested`` are those of the routes.

        If the app has a route such as ``/{name}``, ``catchall(name, description, input_schema)`` makes a tool that this
        route serves; otherwise it is None.
        """
        del catchall  # only the author knows its tools
        return harvested

    def mcp_allowed_tools_for_session(self, seed_body: dict[str, Any]) -> Iterable[str] | None:
        """The names of the tools that a rollout may use over MCP, given its ``/seed_session`` body; None for all."""
        del seed_body  # for servers whose tasks have different tools
        return None

    def build_mcp_session_metadata(self, request: Request, allowed: Iterable[str] | None = None) -> MCPServerMetadata:
        """What the agent of this request's session needs to call the tools over MCP."""
        session = MCPSession(dict(request.session), None if allowed is None else list(allowed))
        token = SessionTokens(self.get_session_middleware_key()).write(session)
        return MCPServerMetadata(
            server_name=self.config.name, url_path=self.mcp_url_path, headers={NEMO_GYM_MCP_SESSION_TOKEN_HEADER: token}
        )

    def _mcp_metadata(self, request: Request, seed_body: dict[str, Any]) -> MCPServerMetadata:
        return self.build_mcp_session_metadata(request, self.mcp_allowed_tools_for_session(seed_body))

    async def seed_session(
        self, body: ResourcesSeedSessionRequest | BaseSeedSessionRequest
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        """Prepare the state of one rollout; called before anything else.

        Environment servers send a ``ResourcesSeedSessionRequest``, agents the row of the task.
        """
        if isinstance(body, ResourcesSeedSessionRequest):
            return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)
        return BaseSeedSessionResponse()

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        """Release the state of an episode; only environment servers ask for it."""
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    def answer_text(self, response: NeMoGymResponse, *, last_message: bool = False) -> str:
        """What ``verify`` should read as the answer: the text without reasoning, which ``reasoning_tags`` delimit."""
        return answer_text(response, reasoning_tags=self.config.reasoning_tags, last_message=last_message)

    async def get_reverify_mode(self) -> ReverifyMode:
        """Tell ``ng_reverify`` whether saved rollouts can be scored again."""
        return ReverifyMode(self.config.REVERIFY_MODE)

    async def reverify_mode(self) -> ReverifyMode:
        """The same, under the name of newer releases; what ``GET /reverify_mode`` replies."""
        return await self.get_reverify_mode()

    @abstractmethod
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Score one rollout."""

    @computes_standard_metrics
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Turn all results of one agent into metrics."""
        hooks = (self.compute_metrics, self.get_key_metrics, self.compute_repeat_metrics)
        return compute_aggregate_metrics(body.verify_responses, *hooks)


def refuse_invalid_rows(row: type[BaseModel]) -> Any:
    """A ``seed_session`` for servers without state: it refuses what is not a valid ``row``, before a model is called.

    Use it in the body of a class: ``seed_session: ClassVar[Any] = refuse_invalid_rows(MyRow)``.
    """

    async def seed_session(self: SimpleResourcesServer, body: BaseModel) -> BaseSeedSessionResponse:
        del self, body  # FastAPI has validated the body by now
        return BaseSeedSessionResponse()

    seed_session.__annotations__["body"] = row  # the route takes the type of its body from here
    return seed_session


class MCPResourcesServer(SimpleResourcesServer):
    """A resources server whose MCP tools are the methods marked with ``gym_tool``, not its routes."""

    def _offers_mcp(self) -> bool:
        return True

    def mcp_server(self, app: FastAPI) -> Any:
        if self.config.expose_tools_over_mcp:
            raise ConfigError(
                f"{self.config.name}: expose_tools_over_mcp is for servers whose tools are routes",
                hint="remove the key: the methods marked with gym_tool are offered without it",
            )
        del app  # routes are not tools here
        server = function_server(self.config.name)
        self.register_mcp_tools(server)
        return server

    def register_mcp_tools(self, mcp: Any) -> None:
        """Register the marked methods with the server of the ``mcp`` package; override it to add functions."""
        for tool in marked_tools(self, self.require_mcp_session_id):
            mcp.tool(name=tool.__name__, description=inspect.getdoc(tool) or "")(tool)

    def require_mcp_session_id(self) -> str:
        """The session of the MCP call that is being served. Raises ``MCPSessionError`` if its token is not valid."""
        return SessionTokens(self.get_session_middleware_key()).read(_MCP_SESSION_TOKEN.get()).session_id
