"""The tools of any MCP server as the tools of an environment: one client session for each rollout."""

import asyncio
import re
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from pydantic import ConfigDict, Field, PrivateAttr
from starlette.responses import JSONResponse, Response

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionStates,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import answer_text
from nemo_gym.server_utils import SESSION_ID_KEY, close_with_app
from resources_servers.mcp_tools.connection import MCPServerAddress, RolloutSession, SessionBrokenError

MAX_AROUND: Final = 200  # characters around an expected word on the last line
_NUMBER: Final = re.compile(r"(?<![\w.,])[-+]?\d[\d,]*(?:\.\d+)?(?!\w)")
# What makes a number a part of another one: a calculation before it, a word after it.
_CALCULATION: Final = re.compile(r"\d[%)]?[ \t]{0,5}(?:[-+*/\u00d7]|\\times|\\cdot|)[ \t]{0,5}\Z")
# What a line has that names several values: the expected one is only one of them.
_ALTERNATIVES: Final = re.compile(r"\bor\b|,[^,]*,[^,]*,", re.IGNORECASE)
_MULTIPLIER: Final = re.compile(r" (?:hundred|thousand|million|billion|trillion|dozen)\b", re.IGNORECASE)


class MCPToolsConfig(BaseResourcesServerConfig):
    """Which MCP server, and how long and how often it is used at once."""

    mcp_server: MCPServerAddress
    tool_timeout_s: float = Field(default=60, gt=0)
    session_idle_s: float = Field(default=3600, gt=0)
    max_open_sessions: int = Field(default=64, ge=1)


class MCPToolsVerifyRequest(BaseVerifyRequest):
    """A row with the agent's response; fields of a row that are not known here are kept."""

    model_config = ConfigDict(extra="allow")

    expected_answer: str


class MCPToolsVerifyResponse(MCPToolsVerifyRequest, BaseVerifyResponse):
    """The row with its reward and how the tools were used."""

    tool_calls: int
    tool_errors: int


class RolloutTools:
    """The session of one rollout, and how many of its calls failed."""

    def __init__(self, session: RolloutSession) -> None:
        self.session = session
        self.errors = 0


class MCPToolsServer(SimpleResourcesServer):
    """Passes tool calls on. Subclass it and override ``verify`` to score in another way."""

    config: MCPToolsConfig

    _rollouts: SessionStates[RolloutTools] = PrivateAttr(default_factory=SessionStates)
    _listed: asyncio.Task[list[dict[str, Any]]] | None = PrivateAttr(default=None)
    _slots: asyncio.Semaphore | None = PrivateAttr(default=None)

    def setup_webserver(self) -> FastAPI:
        """Serve every tool of the MCP server under its name."""
        app = super().setup_webserver()
        app.get("/tools")(self.tools)
        app.post("/{tool:path}")(self.call_tool)
        close_with_app(app, self._close_sessions)
        return app

    async def tools(self) -> list[dict[str, Any]]:
        """List the tools, in the form that a row has them in ``responses_create_params.tools``."""
        if self._listed is None:
            self._listed = asyncio.create_task(self._list_tools())
        try:
            return await asyncio.shield(self._listed)
        except SessionBrokenError:
            self._listed = None  # the next one asks again
            raise

    async def call_tool(self, request: Request, tool: str, body: dict[str, Any]) -> Response:
        """Call a tool in the session of the rollout, which the first call opens."""
        key = session_of(request)
        rollout = self._rollouts.get(key)
        if rollout is None and not await self._may_have(tool):
            return JSONResponse({"error": f"there is no tool {tool!r}"}, status_code=400)
        rollout = self._rollouts.get(key) or self._begin(key)  # another call may have opened it meanwhile
        result = await rollout.session.call(tool, body, timeout_s=self.config.tool_timeout_s)
        if result.is_error:
            rollout.errors += 1
            return JSONResponse({"error": result.text}, status_code=400)
        return PlainTextResponse(result.text)

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: MCPToolsVerifyRequest
    ) -> MCPToolsVerifyResponse:
        """Reward a last message that ends with the expected answer, and end the session.

        A rollout whose MCP server went away fails, because a reward of 0 would blame the model.
        """
        rollout = self._rollouts.pop(session_of(request), None)
        if rollout is not None:
            await rollout.session.close()
            if rollout.session.broken is not None:
                raise SessionBrokenError(rollout.session.broken)
        verdict = {
            "reward": float(
                concludes(
                    answer_text(body.response, reasoning_tags=self.config.reasoning_tags, last_message=True),
                    body.expected_answer,
                )
            ),
            "tool_calls": sum(item.type == "function_call" for item in body.response.output),
            "tool_errors": 0 if rollout is None else rollout.errors,
        }
        return MCPToolsVerifyResponse(**{**dict(body), **verdict})  # a saved rollout has an older verdict in its fields

    async def _may_have(self, tool: str) -> bool:
        """False for a tool that the server did not list: it is not worth a session."""
        try:
            return any(listed["name"] == tool for listed in await self.tools())
        except SessionBrokenError:
            return True  # the session of the rollout will find out, and the rollout will fail

    async def _list_tools(self) -> list[dict[str, Any]]:
        session = self._open()
        try:
            return await session.tools()
        finally:
            await session.close()

    def _begin(self, key: str) -> RolloutTools:
        rollout = self._rollouts[key] = RolloutTools(self._open())
        return rollout

    def _open(self) -> RolloutSession:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.config.max_open_sessions)
        return RolloutSession(self.config.mcp_server, slots=self._slots, idle_s=self.config.session_idle_s)

    async def _close_sessions(self) -> None:
        await asyncio.gather(*(rollout.session.close() for rollout in self._rollouts.values()))
        self._rollouts.clear()


def session_of(request: Request) -> str:
    """Identify the rollout that a request belongs to."""
    return str(request.session[SESSION_ID_KEY])


def concludes(text: str, expected: str) -> bool:
    """Whether the last number of a text, or its last line, is or contains what is expected, ignoring case.

    A text that names many values in the hope that one of them counts is not an answer, and ``3 + 2`` does not say 2.
    """
    words = expected.strip()
    if _NUMBER.fullmatch(words):
        numbers = list(_NUMBER.finditer(text))
        if (
            not numbers
            or _CALCULATION.search(text, 0, numbers[-1].start())
            or _MULTIPLIER.match(text, numbers[-1].end())
        ):
            return False
        return numbers[-1][0].replace(",", "") == words.replace(",", "")
    last = text.strip().rpartition("\n")[2]
    found = re.search(
        rf"(?<![\w./]){re.escape(words)}(?!\w|\.\d|/\w)", last[: len(words) + MAX_AROUND + 1], re.IGNORECASE
    )
    if found is None or len(last) > len(words) + MAX_AROUND:
        return False
    return _ALTERNATIVES.search(f"{last[: found.start()]} {last[found.end() :]}") is None


if __name__ == "__main__":
    MCPToolsServer.run_webserver()
