"""Client sessions of an MCP server: each lives in a separate task from its first use until it is closed.

The ``mcp`` package insists that a session is opened and closed by the same task, so a rollout's requests, which come in
many tasks, share one that does nothing else. A session that nobody uses for a while closes itself: its rollout died.
"""

import asyncio
import contextlib
import functools
import importlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.errors import RolloutError
from nemo_gym.servers.mcp_endpoint import load_mcp

CONNECTION_CLOSED = -32000
SHOWN = 500


class MCPServerAddress(BaseModel):
    """How an MCP server is reached: a program to start, or a URL. ``python`` means the interpreter of this server."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command or a url")
        return self

    @property
    def words(self) -> list[str]:
        """The program and its arguments."""
        return [sys.executable if self.command[0] == "python" else self.command[0], *self.command[1:]]


class ToolResult(NamedTuple):
    """What a tool returned."""

    text: str
    is_error: bool


class SessionBrokenError(RolloutError):
    """The MCP server can't be reached, or has gone away: the rollout says nothing about the model."""


@contextlib.asynccontextmanager
async def connect(address: MCPServerAddress, log: IO[str]) -> AsyncIterator[Any]:
    """An initialised session of the official client; what a program writes to standard error goes to ``log``."""
    client = load_mcp("mcp")
    async with contextlib.AsyncExitStack() as stack:
        if address.url:
            http = load_mcp("mcp.client.streamable_http")
            carrier = await stack.enter_async_context(http_client(address.headers))
            opening = http.streamable_http_client(address.url, http_client=carrier)
        else:
            program, *arguments = address.words
            parameters = client.StdioServerParameters(
                command=program, args=arguments, env=address.env or None, cwd=address.cwd
            )
            opening = client.stdio_client(parameters, errlog=log)
        streams = await stack.enter_async_context(opening)
        session = await stack.enter_async_context(client.ClientSession(streams[0], streams[1]))
        await session.initialize()
        yield session


def http_client(headers: dict[str, str]) -> Any:
    """An HTTP client as the package makes it, with separate cookies and with certificates that are read only once."""
    usual, certificates = _http_defaults()
    return type(usual)(
        headers=headers, timeout=usual.timeout, follow_redirects=usual.follow_redirects, verify=certificates
    )


@functools.cache
def _http_defaults() -> tuple[Any, Any]:
    usual = load_mcp("mcp.client.streamable_http").create_mcp_http_client()
    library = importlib.import_module(type(usual).__module__.partition(".")[0])
    return usual, library.create_ssl_context()


class RolloutSession:
    """The client session of one rollout."""

    def __init__(self, address: MCPServerAddress, *, slots: asyncio.Semaphore, idle_s: float) -> None:
        self.broken: str | None = None
        self._address = address
        self._slots = slots
        self._idle_s = idle_s
        self._used = asyncio.Event()
        self._closing = False
        self._calls = 0
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    async def call(self, name: str, arguments: dict[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool. What the server refuses is an answer; a server that is gone is a ``SessionBrokenError``."""
        with self._in_use():
            return await self._call(await self._opened(), name, arguments, timeout_s)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """While something waits for the server, the session is not idle, however long that takes."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._used.set()

    async def _call(self, session: Any, name: str, arguments: dict[str, Any], timeout_s: float) -> ToolResult:
        try:
            async with asyncio.timeout(timeout_s):
                result = await session.call_tool(name, arguments)
        except TimeoutError:
            return ToolResult(f"{name} did not answer within {timeout_s:g} s", is_error=True)
        except _protocol_errors() as error:
            if error.error.code == CONNECTION_CLOSED:
                raise self._break("it went away") from error
            return ToolResult(error.error.message, is_error=True)
        except RuntimeError as error:  # an answer that does not fit the tool's own output schema
            return ToolResult(str(error), is_error=True)
        return read_result(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def tools(self) -> list[dict[str, Any]]:
        """The tools of the server, as the Responses API describes them."""
        with self._in_use():
            return await self._list_tools(await self._opened())

    async def _list_tools(self, session: Any) -> list[dict[str, Any]]:
        page_type = load_mcp("mcp.types").PaginatedRequestParams
        tools: list[dict[str, Any]] = []
        cursor = None
        while True:
            answer = await session.list_tools(params=page_type(cursor=cursor))
            page = answer.model_dump(mode="json", by_alias=True)
            tools += map(function_tool, page["tools"])
            cursor = page.get("nextCursor")
            if not cursor:
                return tools

    async def close(self) -> None:
        """End the session; for a program, end its process."""
        self._closing = True
        self._used.set()
        await self._task

    async def _opened(self) -> Any:
        if self._task.done() and self.broken is None:
            self._break("the session was idle for too long and is closed")
        if self.broken is not None:
            raise SessionBrokenError(self.broken)
        return await asyncio.shield(self._ready)  # a caller that is cancelled must not cancel it for the others

    def _break(self, reason: str) -> SessionBrokenError:
        where = self._address.url or " ".join(self._address.command)
        self.broken = self.broken or f"MCP server {where}: {reason}"
        return SessionBrokenError(self.broken)

    async def _live(self) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            try:
                async with self._slots, connect(self._address, log) as session:
                    self._ready.set_result(session)
                    await self._until_closed()
            except Exception as error:  # noqa: BLE001 - a boundary: whatever the server or its transport does
                log.seek(0)
                logged = log.read()[-SHOWN:].strip()
                reason = self._break(f"{first_cause(error)}{f'; it wrote: {logged}' if logged else ''}")
                if not self._ready.done():
                    self._ready.set_exception(reason)
                    self._ready.exception()  # marks it as retrieved; asyncio would complain if no caller is left

    async def _until_closed(self) -> None:
        while not self._closing:
            self._used.clear()
            try:
                async with asyncio.timeout(self._idle_s):
                    await self._used.wait()
            except TimeoutError:
                if not self._calls:  # a long call is not idleness
                    return


def _protocol_errors() -> Any:
    """The package's exception for an error of the protocol, by the name that it has in the installed version."""
    errors = load_mcp("mcp.shared.exceptions")
    return errors.MCPError if hasattr(errors, "MCPError") else errors.McpError


def first_cause(error: BaseException) -> str:
    """The first exception inside the groups that task groups make, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def read_result(result: dict[str, Any]) -> ToolResult:
    """The text of a result; parts that are not text are given as JSON."""
    parts = [part["text"] if part["type"] == "text" else _json(part) for part in result.get("content", [])]
    if not parts and "structuredContent" in result:
        parts = [_json(result["structuredContent"])]
    return ToolResult("\n".join(parts), is_error=bool(result.get("isError")))


def function_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of an MCP server as a function of the Responses API."""
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool["inputSchema"],
        "strict": False,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
