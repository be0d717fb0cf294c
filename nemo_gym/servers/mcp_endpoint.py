"""The MCP endpoint of a resources server: streamable HTTP, stateless, with JSON replies.

It uses the official ``mcp`` package, which takes more than a second to import and is optional, so it is loaded only
when a server asks for an endpoint. Its two major versions define servers differently; both are supported.
"""

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import orjson
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.servers.direct.handlers import AsgiReply, read_all, replay
from nemo_gym.servers.direct.routes import body_writer
from nemo_gym.servers.mcp_tools import (
    NEMO_GYM_MCP_METADATA_KEY,
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
    SESSION_TOKEN,
    ExposedTools,
    MCPServerMetadata,
    normalize_tool_name,
)
from nemo_gym.steps.recording import Callee, Span, Trail, open_span, root_span
from nemo_gym.steps.remote import PendingRollout, pending_steps

Method = TypeVar("Method", bound=Callable[..., Any])
GYM_TOOL_MARK = "__gym_tool__"
RESOURCES_TOOLS_KEY: Final = "resources_tools"
TOKEN_IN_PATH: Final = "token"  # noqa: S105 - the name of a parameter


def load_mcp(module: str) -> Any:
    """A module of the ``mcp`` package. It is untyped, because the two versions have different types."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ConfigError(
            f"tools over MCP need the mcp package ({error})", hint='pip install "rollout-gym[mcp]"'
        ) from None


def tool_server(name: str, tools: ExposedTools) -> Any:
    """The package's server for the tools of an app."""
    types, server_class = load_mcp("mcp.types"), load_mcp("mcp.server.lowlevel").Server

    async def list_tools(*_: Any) -> Any:
        listed = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in tools.listed(SESSION_TOKEN.get())
        ]
        return types.ListToolsResult.model_validate({"tools": listed})

    async def call_tool(called: Any) -> Any:
        text, is_error = await tools.call(called.name, called.arguments or {}, SESSION_TOKEN.get())
        content = [{"type": "text", "text": text}]
        return types.CallToolResult.model_validate({"content": content, "isError": is_error})

    if not hasattr(server_class, "call_tool"):  # since version 2 the handlers are passed to the constructor
        return server_class(name, on_list_tools=list_tools, on_call_tool=lambda _, params: call_tool(params))

    async def handle_list(_: Any) -> Any:
        return types.ServerResult(await list_tools())

    async def handle_call(request: Any) -> Any:
        return types.ServerResult(await call_tool(request.params))

    server = server_class(name)
    server.request_handlers |= {types.ListToolsRequest: handle_list, types.CallToolRequest: handle_call}
    return server


def function_server(name: str) -> Any:
    """The package's server for functions: ``FastMCP``, called ``MCPServer`` since version 2."""
    server_module = load_mcp("mcp.server")
    if hasattr(server_module, "MCPServer"):
        return server_module.MCPServer(name)
    return load_mcp("mcp.server.fastmcp").FastMCP(name)


class MCPEndpoint:
    """An ASGI app that handles each MCP request separately and makes the request's token available.

    The token is in a header or, for programs that are only given an address, at the end of the path.
    Agents call it with clients of their own, which know nothing of rollouts. So the steps of a call join those of the
    rollout that got the token.
    """

    def __init__(self, server: Any, *, name: str = "") -> None:
        self._name = name
        # By token, while the rollout runs: in this process, and in others.
        self._rollouts: WeakValueDictionary[str, Trail] = WeakValueDictionary()
        self._pending: WeakValueDictionary[str, PendingRollout] = WeakValueDictionary()
        if hasattr(server, "streamable_http_app"):  # a function server wraps the server that speaks the protocol
            server.streamable_http_app()
            server = server.session_manager.app
        self._server = server
        self._manager_class = load_mcp("mcp.server.streamable_http_manager").StreamableHTTPSessionManager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Without sessions only POST makes sense."""
        if scope["method"] != "POST":
            await PlainTextResponse("use POST", status_code=405, headers={"Allow": "POST"})(scope, receive, send)
            return
        in_path = scope.get("path_params", {}).get(TOKEN_IN_PATH)
        given = Headers(scope=scope).get(NEMO_GYM_MCP_SESSION_TOKEN_HEADER) or in_path
        if in_path:
            scope = {**scope, "path": scope["path"].removesuffix(f"/{in_path}")}  # steps must not show it
        token = SESSION_TOKEN.set(given)
        try:
            caller = open_span()
            trail = self._trail_of(given or "") if caller is None else None
            if trail is not None:
                caller = root_span(trail)
            if caller is None:
                await self._serve(scope, receive, send)
            else:
                await self._serve_as_step(scope, receive, send, caller)
        finally:
            SESSION_TOKEN.reset(token)

    def watch(self, metadata: MCPServerMetadata) -> MCPServerMetadata:
        """Remember whose token this is, if the rollout that is being seeded records its steps."""
        span, token = open_span(), metadata.headers.get(NEMO_GYM_MCP_SESSION_TOKEN_HEADER)
        if span is not None and token:
            self._rollouts[token] = span.trail
            pending = pending_steps.get()
            if pending is not None and span.trail.rollout:
                self._pending[token] = pending.of(span.trail.rollout)
        return metadata

    def _trail_of(self, token: str) -> Trail | None:
        """Where to record a call with this token: in the rollout itself, or for the process that runs it."""
        trail, pending = self._rollouts.get(token), self._pending.get(token)
        if trail is not None and not trail.is_sent:
            return trail
        return pending.trail if pending is not None else None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # With a new manager for each request, nothing has to be started before or stopped afterwards.
        manager = self._manager_class(self._server, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    async def _serve_as_step(self, scope: Scope, receive: Receive, send: Send, caller: Span) -> None:
        body = await read_all(receive)
        tool = called_tool(body)
        if tool is None:
            await self._serve(scope, replay(body, receive), send)
            return
        span = caller.begin(Callee("tool", self._name, scope["path"], tool, is_resources=True))
        reply = AsgiReply()

        async def watched(message: Message) -> None:
            await reply.send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                # Before the client has the reply: its next request may ask for the steps.
                span.end(_status_of_tool(reply), len(body), reply.body)
            await send(message)

        try:
            await self._serve(scope, replay(body, receive), watched)
        except BaseException as error:
            if span.outlived_by is None:  # no reply yet
                span.fail(error)
            raise


_TOOL_FAILED: Final = re.compile(rb'"isError":\s*true')


def _status_of_tool(reply: AsgiReply) -> int:
    """The protocol reports a tool that failed with status 200."""
    return 500 if reply.status < 400 and _TOOL_FAILED.search(reply.body) else reply.status


def called_tool(body: bytes) -> str | None:
    """The name of the tool that an MCP request calls; None for any other request."""
    try:
        request = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(request, dict) or request.get("method") != "tools/call":
        return None
    parameters = request.get("params")
    return str(parameters.get("name") or "") if isinstance(parameters, dict) else ""


def gym_tool(method: Method) -> Method:
    """Mark a method as an MCP tool. The model sees its name, its typed parameters and its docstring.

    A parameter ``session_id: str`` is not shown; it receives the session of the rollout.
    """
    if method.__name__ in RESERVED_MCP_TOOL_NAMES:
        raise ValueError(f"a tool can't be named {method.__name__!r}: every resources server has a route of that name")
    if "request" in inspect.signature(method).parameters:
        raise ValueError(f"the tool {method.__name__!r} can't have a parameter 'request'; use 'session_id: str'")
    setattr(method, GYM_TOOL_MARK, True)
    return method


def marked_tools(server: Any, session_id: Callable[[], str]) -> Iterator[Callable[..., Any]]:
    """The methods of a server that ``gym_tool`` has marked, as functions that know their session."""
    for name in dir(type(server)):
        if getattr(getattr(type(server), name, None), GYM_TOOL_MARK, False):
            yield _without_session_id(getattr(server, name), session_id)


def _without_session_id(method: Callable[..., Any], session_id: Callable[[], str]) -> Callable[..., Any]:
    signature = inspect.signature(method, eval_str=True)
    shown = [parameter for parameter in signature.parameters.values() if parameter.name != "session_id"]
    is_hidden = len(shown) < len(signature.parameters)

    async def tool(**arguments: Any) -> Any:
        try:
            if is_hidden:
                arguments["session_id"] = session_id()
            if inspect.iscoroutinefunction(method):
                return await method(**arguments)
            return await asyncio.to_thread(method, **arguments)
        except Exception as error:
            # For any other exception, version 2 hides the message from the model.
            raise _tool_error_class()(str(error) or type(error).__name__) from error

    return _described_as(tool, method, signature.replace(parameters=shown))


def _tool_error_class() -> type[Exception]:
    package = "mcpserver" if hasattr(load_mcp("mcp.server"), "MCPServer") else "fastmcp"
    error: type[Exception] = load_mcp(f"mcp.server.{package}.exceptions").ToolError
    return error


def _described_as(function: Method, like: Callable[..., Any], signature: inspect.Signature) -> Method:
    """Give a function the name, docstring and annotations of another one, and this signature."""
    function.__name__, function.__doc__ = like.__name__, like.__doc__
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {name: given.annotation for name, given in signature.parameters.items()}
    function.__annotations__["return"] = signature.return_annotation
    return function


def with_metadata(seed: Callable[..., Any], metadata: Callable[[Request, Any], MCPServerMetadata]) -> Any:
    """A ``seed_session`` handler whose reply says how to reach the tools, unless it already does."""
    signature = inspect.signature(seed, eval_str=True)
    parameters = dict(signature.parameters)
    own = next((name for name, given in parameters.items() if given.annotation is Request), None)
    if own is None:
        parameters["mcp_request"] = inspect.Parameter("mcp_request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    returns = None if signature.return_annotation is inspect.Signature.empty else signature.return_annotation
    is_response = inspect.isclass(returns) and issubclass(returns, Response)
    write = body_writer(None if is_response else returns)

    async def seed_session(**values: Any) -> Any:
        request = values[own] if own is not None else values.pop("mcp_request")
        reply = await (seed(**values) if inspect.iscoroutinefunction(seed) else run_in_threadpool(seed, **values))
        if isinstance(reply, Response):
            return reply
        content = orjson.loads(write(reply))
        # A session that an environment server opened says so itself, and calls the same thing by another name.
        key = RESOURCES_TOOLS_KEY if RESOURCES_TOOLS_KEY in content else NEMO_GYM_MCP_METADATA_KEY
        if isinstance(content, dict) and not content.get(key):
            row = orjson.loads(await request.body() or b"{}")
            content[key] = metadata(
                request, row.get("task_data") or {} if key == RESOURCES_TOOLS_KEY else row
            ).model_dump()
        return content

    return _described_as(seed_session, seed, inspect.Signature(list(parameters.values()), return_annotation=Any))


def with_own_tool_names(verify: Method, server_name: str) -> Method:
    """A ``verify`` handler that sees the tools' own names, without the prefix that MCP adds."""

    @wraps(verify)
    async def verify_normalized(*values: Any, **named: Any) -> Any:
        for value in (*values, *named.values()):
            if isinstance(value, BaseModel):
                for item in getattr(getattr(value, "response", None), "output", ()):
                    if getattr(item, "type", None) == "function_call":
                        item.name = normalize_tool_name(item.name, server_name)
        return await verify(*values, **named)

    return verify_normalized  # type: ignore[return-value]
