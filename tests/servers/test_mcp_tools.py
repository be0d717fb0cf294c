"""Tools of resources servers over MCP, called by the official client over real HTTP."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Request, Response
from omegaconf import DictConfig
from pydantic import BaseModel

from nemo_gym.api.environment import Environment
from nemo_gym.base_resources_server import (
    _MCP_SESSION_TOKEN,
    NEMO_GYM_MCP_METADATA_KEY,
    NEMO_GYM_MCP_SESSION_TOKEN_HEADER,
    RESERVED_MCP_TOOL_NAMES,
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    MCPResourcesServer,
    MCPServerMetadata,
    MCPSessionError,
    MCPTool,
    SimpleResourcesServer,
    gym_tool,
    normalize_tool_name,
)
from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.loader import build_app, construct
from nemo_gym.servers.mcp_tools import MCPSession, SessionTokens
from nemo_gym.steps.recording import current_span, first_span

pytest.importorskip("mcp", reason="needs the extra mcp")

CLIENT = ServerClient.detached()
RESPONSE = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": [], "parallel_tool_calls": True}
RESPONSE |= {"tool_choice": "auto", "tools": []}


class Amount(BaseModel):
    """How much."""

    amount: int


class Purse(SimpleResourcesServer):
    """Each rollout has a purse; the tools are routes."""

    config: BaseResourcesServerConfig
    purses: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it
    seen: list[str] = []  # noqa: RUF012 - pydantic copies it

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/put")(self.put)
        app.post("/count")(self.count)
        app.post("/spill")(self.spill)
        app.post("/{name}")(self.anything)
        return app

    async def put(self, request: Request, body: Amount) -> dict[str, int]:
        """Put money into the purse."""
        key = request.session[SESSION_ID_KEY]
        before = self.purses.get(key, 0)
        await asyncio.sleep(0)
        self.purses[key] = before + body.amount
        return {"total": self.purses[key]}

    async def count(self, request: Request) -> dict[str, int]:
        return {"total": self.purses.get(request.session[SESSION_ID_KEY], 0)}

    async def spill(self) -> None:
        raise RuntimeError("the purse has a hole")

    async def anything(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        return {name: body}

    def mcp_tools(self, harvested: list[MCPTool], catchall: Any) -> Iterable[MCPTool]:
        return [*harvested, catchall("echo", "Say it again.", {"type": "object", "properties": {"x": {}}})]

    def mcp_allowed_tools_for_session(self, seed_body: dict[str, Any]) -> Iterable[str] | None:
        return seed_body.get("tools_of_task")

    async def seed_session(self, response: Response, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        response.set_cookie("seeded", "yes")
        return BaseSeedSessionResponse()

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        self.seen += [item.name for item in body.response.output if item.type == "function_call"]
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


class Weather(MCPResourcesServer):
    """The tools are methods."""

    config: BaseResourcesServerConfig

    @gym_tool
    async def get_weather(self, city: str, session_id: str) -> str:
        """Look out of the window."""
        return f"cold in {city} for {session_id}"

    @gym_tool
    def get_season(self) -> str:
        return "winter"

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


def build(kind: type[SimpleResourcesServer], **settings: Any) -> Any:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="purse", **settings)
    return kind(config=config, server_client=CLIENT)


@asynccontextmanager
async def served(server: Any) -> AsyncIterator[str]:
    """The address of a server behind real HTTP."""
    with bind("127.0.0.1", 0, owner="test") as listener:
        port = listener.getsockname()[1]
        local = LocalServer(build_app(server), label="purse", base_url=f"http://127.0.0.1:{port}")
        async with listening({port: local}, [listener]):
            yield local.base_url


async def seed(url: str, **row: Any) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/seed_session", json=row) as reply:
        assert reply.status == 200
        assert "seeded" in reply.cookies or not row
        content: dict[str, Any] = await reply.json()
        return content


@asynccontextmanager
async def official_client(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    from mcp import ClientSession
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    async with (
        create_mcp_http_client(headers=headers) as http,
        streamable_http_client(f"{url}/mcp", http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


async def call(session: Any, name: str, /, **arguments: Any) -> tuple[str, bool]:
    result = (await session.call_tool(name, arguments)).model_dump(mode="json", by_alias=True)
    return result["content"][0]["text"], bool(result["isError"])


async def listed(session: Any) -> dict[str, dict[str, Any]]:
    tools = (await session.list_tools()).model_dump(mode="json", by_alias=True)["tools"]
    return {tool["name"]: tool for tool in tools}


async def test_typed_routes_are_tools_with_their_schemas_and_reserved_routes_are_not() -> None:
    async with served(build(Purse, expose_tools_over_mcp=True)) as url:
        metadata = MCPServerMetadata.model_validate((await seed(url))[NEMO_GYM_MCP_METADATA_KEY])
        assert (metadata.server_name, metadata.url_path, metadata.transport) == ("purse", "/mcp", "http")
        async with official_client(url, metadata.headers) as session:
            tools = await listed(session)
            assert set(tools) == {"put", "count", "spill", "echo"}
            assert not set(tools) & RESERVED_MCP_TOOL_NAMES
            assert tools["put"]["description"] == "Put money into the purse."
            assert tools["put"]["inputSchema"]["required"] == ["amount"]
            assert await call(session, "put", amount=2) == ('{"total":2}', False)
            assert await call(session, "put", amount=3) == ('{"total":5}', False)
            assert await call(session, "count") == ('{"total":5}', False)
            assert await call(session, "echo", x=1) == ('{"echo":{"x":1}}', False)


async def test_tools_of_an_environment_are_exposed_without_what_the_model_does_not_see() -> None:
    environment = Environment(name="purse")
    environment.setup(lambda task: {"total": task["start"]})

    @environment.tool
    def put(amount: int, state: dict[str, int]) -> dict[str, int]:
        """Put money into the purse."""
        state["total"] += amount
        return state

    environment.verify(lambda task, response, state: float(state["total"] == 5))
    settings = {"host": "127.0.0.1", "port": 1, "entrypoint": "", "name": "purse", "expose_tools_over_mcp": True}
    server = construct(environment.server_class(), settings, CLIENT, where="purse")
    row = {"start": 2, "responses_create_params": {"input": "?"}}
    async with served(server) as url, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        async with http.post(f"{url}/seed_session", json=row) as reply:
            metadata = MCPServerMetadata.model_validate((await reply.json())[NEMO_GYM_MCP_METADATA_KEY])
        async with official_client(url, metadata.headers) as session:
            tools = await listed(session)
            assert {name: list(tool["inputSchema"]["properties"]) for name, tool in tools.items()} == {
                "put": ["amount"]
            }
            assert tools["put"]["description"] == "Put money into the purse."
            assert await call(session, "put", amount=3) == ('{"total":5}', False)
        async with http.post(f"{url}/verify", json={**row, "response": RESPONSE}) as reply:
            assert (await reply.json())["reward"] == 1.0


async def test_whatever_goes_wrong_is_told_to_the_model() -> None:
    async with served(build(Purse, expose_tools_over_mcp=True)) as url:
        headers = (await seed(url))["mcp"]["headers"]
        async with official_client(url, headers) as session:
            text, is_error = await call(session, "put", amount="many")
            assert is_error
            assert "valid integer" in text
            text, is_error = await call(session, "spill")
            assert is_error
            assert "the purse has a hole" in text
            assert await call(session, "verify") == ("there is no tool 'verify'", True)
        for bad in ({}, {NEMO_GYM_MCP_SESSION_TOKEN_HEADER: "e30=.00"}):
            async with official_client(url, bad) as session:
                text, is_error = await call(session, "count")
                assert is_error
                assert NEMO_GYM_MCP_SESSION_TOKEN_HEADER in text


async def test_a_session_sees_and_calls_only_the_tools_of_its_task() -> None:
    async with served(build(Purse, expose_tools_over_mcp=True)) as url:
        headers = (await seed(url, tools_of_task=["count"]))["mcp"]["headers"]
        async with official_client(url, headers) as session:
            assert set(await listed(session)) == {"count"}
            assert await call(session, "put", amount=1) == ("there is no tool 'put'", True)
            assert await call(session, "count") == ('{"total":0}', False)


@pytest.mark.parametrize("kind", [Purse, Weather])
async def test_a_call_over_mcp_is_a_step_of_the_rollout_that_got_the_token(kind: type[SimpleResourcesServer]) -> None:
    server = build(kind, expose_tools_over_mcp=kind is Purse)
    with bind("127.0.0.1", 0, owner="test") as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        types = {"name": "purse", "server_type": "resources_servers"}
        local = LocalServer(build_app(server), label="purse", base_url=url, **types)
        async with listening({listener.getsockname()[1]: local}, [listener]):
            rollout = first_span()
            token = current_span.set(rollout)
            seeded = await local.call("POST", "/seed_session", json={})
            current_span.reset(token)
            async with official_client(url, (await seeded.json())["mcp"]["headers"]) as session:
                await listed(session)
                for name in ("put", "spill") if kind is Purse else ("get_season",):
                    await call(session, name, **({"amount": 2} if name == "put" else {}))
            async with official_client(url, (await seed(url))["mcp"]["headers"]) as session:
                await call(session, "count" if kind is Purse else "get_season")  # of nobody who records
    steps = [(step.kind, step.route, step.tool, step.parent, step.status) for step in rollout.trail.steps]
    if kind is Weather:
        assert steps == [("seed", "/seed_session", "", None, 200), ("tool", "/mcp", "get_season", None, 200)]
    else:
        assert steps == [
            ("seed", "/seed_session", "", None, 200),
            ("tool", "/mcp", "put", None, 200),
            ("call", "/put", "", 1, 200),
            ("tool", "/mcp", "spill", None, 500),
            ("call", "/spill", "", 3, 500),
        ]


@pytest.mark.parametrize("settings", [{}, {"isolation": "process"}])
async def test_calls_over_mcp_of_an_environment_in_its_own_process_are_steps(
    gym_config: Callable[..., DictConfig], settings: dict[str, Any]
) -> None:
    config = gym_config(a={"expose_tools_over_mcp": True, "other": "b", **settings}, b={})
    async with host_gym(config) as gym:
        [url] = [f"http://{instance.host}:{instance.port}" for instance in gym.instances if instance.name == "a"]
        rollouts = []
        for _ in range(2):
            rollouts.append(first_span())
            current_span.set(rollouts[-1])
            seeded = await gym.client.post("a", "/seed_session", json={})
            current_span.set(None)
            headers = (await seeded.json())["mcp"]["headers"]
            async with official_client(url, headers) as session:
                assert (await call(session, "greet", name="you"))[0] == '{"text":"hello, you"}'
                await call(session, "ask_other", name="me")
            current_span.set(rollouts[-1])
            row = {"responses_create_params": {"input": "hi"}, "response": RESPONSE}
            verified = await gym.client.post("a", "/verify", json=row, cookies=seeded.cookies)
            current_span.set(None)
            assert verified.status == 200
    for rollout in rollouts:
        steps = sorted(rollout.trail.steps, key=lambda step: step.start)
        assert [(step.kind, step.server, step.route, step.tool, step.status) for step in steps] == [
            ("seed", "a", "/seed_session", "", 200),
            ("tool", "a", "/mcp", "greet", 200),
            ("call", "a", "/greet", "", 200),
            ("tool", "a", "/mcp", "ask_other", 200),
            ("call", "a", "/ask_other", "", 200),
            ("call", "b", "/greet", "", 200),
            ("verify", "a", "/verify", "", 200),
        ]
        assert all(step.end <= steps[-1].start + 1e-3 for step in steps[:-1])


def message(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_two_hundred_rollouts_at_once_never_share_a_purse() -> None:
    server = build(Purse, expose_tools_over_mcp=True)
    local = LocalServer(build_app(server), label="purse", base_url="http://127.0.0.1:1")
    accept = {"accept": "application/json, text/event-stream"}

    async def rollout(number: int) -> int:
        seeded = await local.call("POST", "/seed_session", json={})
        token = (await seeded.json())["mcp"]["headers"]
        put = message("tools/call", {"name": "put", "arguments": {"amount": number}})
        for _ in range(2):
            await local.call("POST", "/mcp", json=put, headers={**accept, **token})
        # The route and the tool reach the same purse: the cookie and the token mean the same session.
        count = await local.call("POST", "/count", cookies=seeded.cookies)
        return int((await count.json())["total"])

    assert await asyncio.gather(*map(rollout, range(200))) == [2 * number for number in range(200)]


RESPONSE = {
    "id": "resp_1",
    "created_at": 0.0,
    "model": "m",
    "object": "response",
    "output": [
        {"type": "function_call", "call_id": "1", "name": "mcp__purse__put", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "mcp__other__put", "arguments": "{}"},
        {"type": "function_call", "call_id": "3", "name": "count", "arguments": "{}"},
    ],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}


@pytest.mark.parametrize(("exposed", "first"), [(True, "put"), (False, "mcp__purse__put")])
async def test_verify_sees_the_names_that_the_environment_knows(exposed: bool, first: str) -> None:
    server = build(Purse, expose_tools_over_mcp=exposed)
    local = LocalServer(build_app(server), label="purse", base_url="http://127.0.0.1:1")
    row = {"responses_create_params": {"input": "hi"}, "response": RESPONSE}
    reply = await local.call("POST", "/verify", json=row)
    assert reply.status == 200
    assert server.seen == [first, "mcp__other__put", "count"]
    assert json.loads(await reply.read())["response"]["output"][0]["name"] == first


@pytest.mark.parametrize(
    ("name", "server_name", "own"),
    [
        ("mcp__purse__put", None, "put"),
        ("mcp__purse__put_in", "purse", "put_in"),
        ("mcp__other__put", "purse", "mcp__other__put"),
        ("put", None, "put"),
        ("mcp__purse", None, "mcp__purse"),
        ("mcp__purse__", "purse", "mcp__purse__"),
        ("mcp__purse__a__b", None, "a__b"),
    ],
)
def test_names_lose_the_prefix_that_agents_add(name: str, server_name: str | None, own: str) -> None:
    assert normalize_tool_name(name, server_name) == own


def test_exposure_leaves_the_short_way_open_and_its_absence_leaves_no_trace() -> None:
    plain, exposed = (build_app(build(Purse, expose_tools_over_mcp=exposed)) for exposed in (False, True))
    short = [set(LocalServer(app, label="", base_url="http://h:1")._routes) for app in (plain, exposed)]
    assert ("POST", "/seed_session") in short[0]
    assert ("POST", "/put") in short[0]
    assert short[0] == short[1]
    assert [layer.cls for layer in plain.user_middleware] == [layer.cls for layer in exposed.user_middleware]
    assert {getattr(route, "path", None) for route in exposed.routes} - {
        getattr(route, "path", None) for route in plain.routes
    } == {"/mcp", "/mcp/{token}"}


async def test_an_unexposed_server_hands_out_no_token() -> None:
    local = LocalServer(build_app(build(Purse)), label="purse", base_url="http://127.0.0.1:1")
    assert await (await local.call("POST", "/seed_session", json={})).json() == {}


def test_the_package_is_not_imported_until_a_server_uses_it() -> None:
    program = "import sys, nemo_gym.base_resources_server as b; b.MCPResourcesServer; print('mcp' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


async def test_marked_methods_are_tools_and_know_their_session() -> None:
    async with served(build(Weather)) as url:
        metadata = (await seed(url))["mcp"]
        async with official_client(url, metadata["headers"]) as session:
            tools = await listed(session)
            assert set(tools) == {"get_weather", "get_season"}
            assert tools["get_weather"]["description"] == "Look out of the window."
            assert set(tools["get_weather"]["inputSchema"]["properties"]) == {"city"}
            text, is_error = await call(session, "get_weather", city="Oslo")
            assert not is_error
            assert text.startswith("cold in Oslo for ")
            assert await call(session, "get_season") == ("winter", False)
        async with official_client(url, {}) as session:
            text, is_error = await call(session, "get_weather", city="Oslo")
            assert is_error
            assert NEMO_GYM_MCP_SESSION_TOKEN_HEADER in text


def test_the_session_id_is_read_from_the_token_at_hand() -> None:
    server = build(Weather)
    with pytest.raises(MCPSessionError, match="missing"):
        server.require_mcp_session_id()
    tokens = SessionTokens(server.get_session_middleware_key())
    before = _MCP_SESSION_TOKEN.set(tokens.write(MCPSession({SESSION_ID_KEY: "mine"})))
    try:
        assert server.require_mcp_session_id() == "mine"
    finally:
        _MCP_SESSION_TOKEN.reset(before)
    with pytest.raises(MCPSessionError, match="not hold a token of this server"):
        SessionTokens("another server").read(tokens.write(MCPSession({SESSION_ID_KEY: "mine"})))


def test_a_tool_needs_a_name_of_its_own_and_no_request() -> None:
    with pytest.raises(ValueError, match="can't be named 'verify'"):

        @gym_tool
        def verify(self: Any) -> None: ...

    with pytest.raises(ValueError, match="parameter 'request'"):

        @gym_tool
        def look(self: Any, request: Request) -> None: ...


def test_marked_methods_and_exposed_routes_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="tools are routes"):
        build(Weather, expose_tools_over_mcp=True).setup_webserver()


async def test_only_post_is_answered() -> None:
    async with (
        served(build(Purse, expose_tools_over_mcp=True)) as url,
        aiohttp.ClientSession() as http,
        http.get(f"{url}/mcp") as reply,
    ):
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")
