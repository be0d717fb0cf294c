"""Every route of every shipped server, driven by direct dispatch, a full ASGI call and real HTTP: the answers agree."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from nemo_gym.config.parse import parse_config
from nemo_gym.io.json import encode_json
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.venvs import read_requirements, unmet

ROOT = Path(__file__).parents[2]
# The embedded model has a test of its own: it would have to be loaded, and it samples.
ENVIRONMENTS = sorted(
    path.parents[1]
    for path in ROOT.glob("resources_servers/*/configs/*.yaml")
    if path.stem == path.parents[1].name and (path.parents[1] / "data" / "example.jsonl").is_file()
)
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "m",
    "output": [
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "cold"},
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "The answer is 42.", "annotations": []}],
        },
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
NONSENSE: list[Any] = [None, b'{"broken": ', [1, 2], {"unexpected": [1]}, {"responses_create_params": {"input": 5}}]


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    cookies: frozenset[str]


@pytest.fixture(params=ENVIRONMENTS, ids=lambda path: path.name)
def environment(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
async def gym(environment: Path, mock_model: Any) -> AsyncIterator[Gym]:
    if missing := unmet(read_requirements(environment)):
        pytest.skip(f"pip install {' '.join(missing)}")
    config = f"{environment}/configs/{environment.name}.yaml"
    overrides = [
        f"+config_paths=[{config},responses_api_models/openai_model/configs/openai_model.yaml]",
        f"+policy_base_url={mock_model.base_url}",
        "+policy_api_key=none",
        "+policy_model_name=mock",
    ]
    async with host_gym(parse_config(overrides).config) as gym:
        yield gym


def sample(schema: dict[str, Any], defs: dict[str, Any]) -> Any:
    """A value that fits a JSON schema, as plain as possible."""
    schema = defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "enum" in schema or "const" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], defs)
    match schema.get("type"):
        case "object":
            return {name: sample(schema["properties"][name], defs) for name in schema.get("required", [])}
        case "array":
            return [sample(schema["items"], defs)] if "items" in schema else []
        case "string":
            return "1 + 1"
        case "integer" | "number":
            return 3
    return None


def bodies(route: APIRoute, row: dict[str, Any]) -> Iterator[Any]:
    """A body that fits the route, and several that do not."""
    known = {
        "/run": row,
        "/seed_session": row,
        "/verify": {**row, "response": RESPONSE},
        "/v1/responses": row["responses_create_params"],
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
        "/aggregate_metrics": {"verify_responses": [{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}]},
    }
    if route.path in known:
        yield known[route.path]
    elif route.dependant.body_params:
        schema = TypeAdapter(route.dependant.body_params[0].field_info.annotation).json_schema()
        yield sample(schema, schema.get("$defs", {}))
    yield from NONSENSE


def answer(status: int, body: bytes, cookies: Any) -> Answer:
    try:
        content = json.loads(body)
    except ValueError:
        content = body
    if isinstance(content, dict):  # what was measured is never the same twice
        content = {name: value for name, value in content.items() if not name.endswith("_cpu_s")}
        if "api_key" in content:  # of an attempt that was opened, which has a name and a key of its own
            content = sorted(content)
    return Answer(status, content, frozenset(cookies))


async def by_direct_dispatch(server: LocalServer, method: str, path: str, body: Any) -> Answer:
    reply = await server.call(method, path, json=body)
    return answer(reply.status, await reply.read(), reply.cookies)


async def by_asgi(server: LocalServer, method: str, path: str, body: Any) -> Answer:
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(transport=transport, base_url=server.base_url) as client:
        content = encode_json(body)
        headers = {"content-type": "application/json"} if content else {}
        reply = await client.request(method, path, content=content, headers=headers)
    return answer(reply.status_code, reply.content, reply.cookies)


async def by_http(server: LocalServer, method: str, path: str, body: Any) -> Answer:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        content = encode_json(body)
        headers = {"content-type": "application/json"} if content else {}
        async with session.request(method, server.base_url + path, data=content, headers=headers) as reply:
            return answer(reply.status, await reply.read(), reply.cookies)


async def test_every_route_answers_alike_on_every_transport(gym: Gym, environment: Path) -> None:
    row = json.loads((environment / "data" / "example.jsonl").read_text("utf-8").splitlines()[0])
    compared = 0
    for name, server in gym.client.local_servers.items():
        for route in [route for route in server.app.routes if isinstance(route, APIRoute)]:
            method = min(route.methods)
            for body in bodies(route, row):
                answers = [await by(server, method, route.path, body) for by in (by_direct_dispatch, by_asgi, by_http)]
                assert answers[0] == answers[1] == answers[2], f"{name} {method} {route.path} {body!r:.200}"
                compared += 1
        unknown = [await by(server, "POST", "/no_such_tool", {}) for by in (by_direct_dispatch, by_asgi, by_http)]
        assert unknown[0] == unknown[1] == unknown[2]
    assert compared > 40
