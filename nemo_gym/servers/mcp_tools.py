"""The tools of a resources server for clients of the Model Context Protocol, and the session that a call belongs to.

The POST routes of an app are its tools. A rollout gets a signed token when it is seeded, and a call with that token
runs in the rollout's session, just like a call of the route. The server stores nothing: the token contains the session
and the names of the tools it may use. Nothing here needs the ``mcp`` package; ``mcp_endpoint`` does.
"""

import base64
import re
import secrets
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, TypeAdapter

from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.middleware.sessions import (
    SESSION_ID_KEY,
    SessionCookies,
    SessionLostError,
    SessionMiddleware,
    session_secret,
)

NEMO_GYM_MCP_METADATA_KEY: Final = "mcp"
NEMO_GYM_MCP_SESSION_TOKEN_HEADER: Final = "X-NeMo-Gym-Session-Token"  # noqa: S105 - the name of a header
RESERVED_MCP_TOOL_NAMES: Final = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "mcp"})
MCP_PATH: Final = "/mcp"
# Routes that agents call and models do not. An author who wants a tool with such a name adds it in `mcp_tools`.
AGENT_ROUTES: Final = RESERVED_MCP_TOOL_NAMES | {"next_turn"}

# The token of the MCP request that is being served.
SESSION_TOKEN: ContextVar[str | None] = ContextVar("nemo_gym_mcp_session_token", default=None)

_PREFIXED_NAME = re.compile(r"mcp__(?:.+?)__(?P<name>.+)")
_CATCHALL_PATH = re.compile(r"/\{[^{}/]+\}")


class MCPSessionError(Exception):
    """A tool was called over MCP without the token of a rollout, or with one that was not signed here."""


class MCPServerMetadata(BaseModel):
    """What an agent needs to use a server's tools over MCP, in the ``mcp`` field of the ``/seed_session`` reply."""

    server_name: str
    url_path: str = MCP_PATH
    transport: str = "http"
    headers: dict[str, str] = Field(default_factory=dict)


class MCPSession(NamedTuple):
    """The session behind a token, and the names of the tools it may use (None: all)."""

    data: dict[str, Any]
    tools: list[str] | None = None

    @property
    def session_id(self) -> str:
        """The id under which the server keeps the state of the rollout."""
        return str(self.data[SESSION_ID_KEY])

    def allows(self, name: str) -> bool:
        """Whether the session may use a tool."""
        return self.tools is None or name in self.tools


@cache
def _secret() -> str:
    """The signing key of this process. Workers of one server share it through the environment."""
    return session_secret()


class SessionTokens:
    """Writes and reads the tokens of one server."""

    def __init__(self, server_key: str) -> None:
        self._key = blake2b(f"{_secret()} mcp {server_key}".encode()).digest()

    def write(self, session: MCPSession) -> str:
        payload = base64.urlsafe_b64encode(orjson.dumps([session.data, session.tools])).decode()
        return f"{payload}.{self._signature(payload)}"

    def read(self, token: str | None) -> MCPSession:
        """The session of a token. Raises ``MCPSessionError`` if the token is missing or invalid."""
        if not token:
            raise MCPSessionError(f"the header {NEMO_GYM_MCP_SESSION_TOKEN_HEADER} is missing")
        payload, _, signature = token.partition(".")
        if not secrets.compare_digest(self._signature(payload).encode(), signature.encode(errors="replace")):
            raise MCPSessionError(
                f"the header {NEMO_GYM_MCP_SESSION_TOKEN_HEADER} does not hold a token of this server"
            )
        return MCPSession(*orjson.loads(base64.urlsafe_b64decode(payload)))

    def _signature(self, payload: str) -> str:
        return blake2b(payload.encode(errors="replace"), key=self._key, digest_size=20).hexdigest()


def normalize_tool_name(name: str, server_name: str | None = None) -> str:
    """A tool's own name, without the prefix ``mcp__<server>__`` that agents add."""
    if server_name is not None:
        return name.removeprefix(f"mcp__{server_name}__") or name
    match = _PREFIXED_NAME.fullmatch(name)
    return match["name"] if match else name


@dataclass(frozen=True, slots=True)
class MCPTool:
    """A tool as MCP clients see it, and the path of the route that serves it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    path: str


CatchallTool = Callable[[str, str, dict[str, Any]], MCPTool]
ChooseTools = Callable[[list[MCPTool], CatchallTool | None], Iterable[MCPTool]]


def find_tools(app: FastAPI) -> list[MCPTool]:
    """The POST routes of an app that take no body, or a JSON object of a known type."""
    found: dict[str, MCPTool] = {}
    for route in _post_routes(app):
        name = route.path.strip("/").replace("/", "_")
        schema = None if "{" in route.path or name in AGENT_ROUTES else _input_schema(route)
        if name and schema is not None:
            found.setdefault(name, MCPTool(name, route.description or "", schema, route.path))
    return list(found.values())


def catchall_tool(app: FastAPI) -> CatchallTool | None:
    """A function that makes a tool for a route such as ``/{name}``; None if the app has no such route."""
    if any(_CATCHALL_PATH.fullmatch(route.path) for route in _post_routes(app)):
        return lambda name, description, input_schema: MCPTool(name, description, input_schema, f"/{name}")
    return None


def _post_routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())]


def _input_schema(route: APIRoute) -> dict[str, Any] | None:
    """The JSON Schema of a route's body, with an object at its root; None if the body is something else."""
    if route.body_field is None:
        return {"type": "object", "properties": {}}
    body: Any = route.body_field.field_info.annotation
    schema = TypeAdapter(body).json_schema()
    if "$ref" in schema:
        schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]}
    return schema if schema.get("type") == "object" else None


class ToolReply(NamedTuple):
    """The result of a tool, as shown to the model."""

    text: str
    is_error: bool


class ExposedTools:
    """The tools of one app. They are read on first use, when the author has finished adding routes.

    ``server_key`` signs the tokens of sessions; ``choose`` selects the tools to offer among those of the routes.
    """

    def __init__(self, app: FastAPI, *, server_key: str, base_url: str, choose: ChooseTools, name: str = "") -> None:
        self.tokens = SessionTokens(server_key)
        self._app = app
        self._choose = choose
        self._server = LocalServer(app, label=server_key, base_url=base_url, name=name, server_type=RESOURCES_SERVERS)

    @cached_property
    def by_name(self) -> dict[str, MCPTool]:
        """All tools, whatever a token allows."""
        chosen = self._choose(find_tools(self._app), catchall_tool(self._app))
        return {tool.name: tool for tool in chosen if tool.name not in RESERVED_MCP_TOOL_NAMES}

    @cached_property
    def _cookies(self) -> SessionCookies:
        layers: dict[Any, Any] = {layer.cls: layer.kwargs for layer in self._app.user_middleware}
        cookies = layers[SessionMiddleware]["cookies"]
        assert isinstance(cookies, SessionCookies)
        return cookies

    def listed(self, token: str | None) -> list[MCPTool]:
        """The tools that a token allows; all tools if there is no token."""
        session = self.tokens.read(token) if token else None
        return [tool for tool in self.by_name.values() if session is None or session.allows(tool.name)]

    async def call(self, name: str, arguments: dict[str, Any], token: str | None) -> ToolReply:
        """Call a tool in the session of a token. Errors are returned to the model."""
        try:
            session = self.tokens.read(token)
            self._cookies.require_own(session.data)
        except (MCPSessionError, SessionLostError) as error:
            return ToolReply(str(error), is_error=True)
        tool = self.by_name.get(name)
        if tool is None or not session.allows(name):
            return ToolReply(f"there is no tool {name!r}", is_error=True)
        cookie = self._cookies.seal(session.data)
        reply = await self._server.call("POST", tool.path, json=arguments, cookies={self._cookies.name: cookie})
        return ToolReply((await reply.read()).decode(errors="replace"), is_error=reply.status >= 400)
