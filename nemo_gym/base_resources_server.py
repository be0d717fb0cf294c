"""Front door: the base of every resources server (tools, state, verification)."""

import inspect
from abc import abstractmethod
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.routing import Route

from nemo_gym.errors import ConfigError
from nemo_gym.judge import judge_failsafe
from nemo_gym.metrics.aggregate import answers_standard_metrics
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.servers.mcp_endpoint import (
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
from nemo_gym.servers.sessions import SessionStates
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


class BaseResourcesServer(BaseServer):
    """A server with tools, state and verification."""

    config: BaseResourcesServerConfig


class BaseRunRequest(BaseModel):
    """A task: the request for the model; subclasses add the fields of their rows."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming


class BaseVerifyRequest(BaseRunRequest):
    """A task and the agent's response to it."""

    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    """A finished rollout and its reward."""

    reward: float


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """A finished rollout with several rewards; ``reward`` remains the one number that is trained on."""

    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """The start of a rollout; subclasses name the row fields they need."""


class BaseSeedSessionResponse(BaseModel):
    """The answer to the start of a rollout."""


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """A resources server with the standard routes; add tools in ``setup_webserver``."""

    mcp_url_path: ClassVar[str] = MCP_PATH

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/seed_session``, ``/verify`` and ``/aggregate_metrics``."""
        app = FastAPI()
        self.setup_session_middleware(app)
        verify = self.verify
        # Added to the routes before the tools of a subclass, which may have a catch-all route.
        if self._offers_mcp():
            endpoint = MCPEndpoint(self._mcp_server(app), name=self.config.name)
            app.router.routes.append(Route(self.mcp_url_path, endpoint, include_in_schema=False))

            def metadata(request: Request, seed_body: dict[str, Any]) -> MCPServerMetadata:
                return endpoint.watch(self._mcp_metadata(request, seed_body))

            app.post("/seed_session")(with_metadata(self.seed_session, metadata))
        else:
            app.post("/seed_session")(self.seed_session)
        if self.config.expose_tools_over_mcp:
            verify = with_own_tool_names(verify, self.config.name)
        app.post("/verify")(completing(judge_failsafe(verify)))
        app.get("/reverify_mode")(self.get_reverify_mode)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    def _offers_mcp(self) -> bool:
        return self.config.expose_tools_over_mcp

    def _mcp_server(self, app: FastAPI) -> Any:
        """The server of the ``mcp`` package that answers ``/mcp``."""
        key, base_url = self.get_session_middleware_key(), f"http://{self.config.host}:{self.config.port}"
        tools = ExposedTools(app, server_key=key, base_url=base_url, choose=self.mcp_tools, name=self.config.name)
        return tool_server(self.config.name, tools)

    def mcp_tools(self, harvested: list[MCPTool], catchall: CatchallTool | None) -> Iterable[MCPTool]:
        """Choose the tools that are offered over MCP; ``harvested`` are those of the routes.

        If the app has a route such as ``/{name}``, ``catchall(name, description, input_schema)`` makes a tool that this
        route answers; otherwise it is None.
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

    async def seed_session(self, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        """Prepare the state of one rollout; called before anything else."""
        del body  # for servers with state
        return BaseSeedSessionResponse()

    async def get_reverify_mode(self) -> dict[str, ReverifyMode]:
        """Answer ``ng_reverify``: whether saved rollouts can be scored again."""
        return {"reverify_mode": ReverifyMode(self.config.REVERIFY_MODE)}

    @abstractmethod
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Score one rollout."""

    @answers_standard_metrics
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Turn all results of one agent into metrics."""
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)


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

    def _mcp_server(self, app: FastAPI) -> Any:
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
