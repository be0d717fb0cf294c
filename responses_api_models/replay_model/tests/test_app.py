"""What was answered once is answered again, byte for byte; what was not is an error that says how near it came."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.loader import build_app
from nemo_gym.servers.middleware.rollout_scope import mark_rollout
from nemo_gym.servers.models.failures import ModelCallError
from responses_api_models.replay_model.app import ReplayModel, ReplayModelConfig

RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


@asynccontextmanager
async def endpoint() -> AsyncIterator[dict[str, Any]]:
    """An endpoint that never answers twice alike, with blanks where nobody needs them; ``fail`` makes it refuse."""
    numbers, received = itertools.count(), []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        received.append((request.path, body))
        if body.get("input") == "fail":
            return web.json_response({"error": {"message": "too long"}}, status=400)
        text = json.dumps({**RESPONSE, "id": f"r{next(numbers)}"}, indent=2)
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/{route:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield {"base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "api_key": "secret", "received": received}
    finally:
        await close_http_client()
        await runner.cleanup()


def build(recording: Path, mode: str, upstream: Any = None, client: ServerClient | None = None) -> ReplayModel:
    client = client or ServerClient.detached()
    settings = {"recording": str(recording), "mode": mode, "upstream": upstream}
    config = ReplayModelConfig(host="", port=0, entrypoint="", name="replay", **settings)
    return ReplayModel(config=config, server_client=client)


def local(server: Any, name: str = "replay") -> LocalServer:
    return LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1")


async def ask(server: LocalServer, body: Any, rollout: int | None = None, path: str = "/v1/responses") -> Any:
    async def attempt() -> Any:
        if rollout is not None:
            mark_rollout(0, rollout, 1)
        return await server.call("POST", path, json=body)

    reply = await asyncio.create_task(attempt())
    return reply.status, await reply.read()


async def test_what_is_recorded_is_replayed_byte_for_byte_without_the_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    questions = [("a", 0), ("a", 1), ("b", 0), ("a", 0), ("a", None)]
    async with endpoint() as upstream:
        recorder = local(build(path, "record", upstream))
        said = [await ask(recorder, {"input": text, "temperature": 1}, rollout) for text, rollout in questions]
        chat = await ask(recorder, {"messages": []}, path="/v1/chat/completions")
        assert [route for route, _ in upstream["received"]] == ["/v1/responses"] * 5 + ["/v1/chat/completions"]
    assert len(set(said)) == 5
    assert b'{\n  "id": "r0"' in said[0][1]
    replayed = local(build(path, "replay"))
    assert [await ask(replayed, {"temperature": 1, "input": text}, rollout) for text, rollout in questions[:2]] == said[
        :2
    ]
    assert await ask(replayed, {"messages": []}, path="/v1/chat/completions") == chat
    assert len(path.read_bytes().splitlines()) == 6


async def test_failures_are_recorded_and_replayed_as_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    async with endpoint() as upstream:
        failed = await ask(local(build(path, "record", upstream)), {"input": "fail"})
    assert failed[0] == 400
    assert b"too long" in failed[1]
    assert b"secret" not in path.read_bytes()
    server = local(build(path, "replay"))
    assert await ask(server, {"input": "fail"}) == failed
    reply = await server.call("POST", "/v1/responses", json={"input": "fail"})
    assert reply.headers["X-NG-Failure-Class"] == "rejected"


async def test_an_unknown_request_names_the_nearest_and_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    async with endpoint() as upstream:
        recorder = local(build(path, "record", upstream))
        for rollout in range(3):
            for number in range(3):
                body = {"input": [{"role": "user", "content": f"What is {rollout} + {number}?"}], "tools": ["x" * 99]}
                await ask(recorder, body, rollout)
    status, body = await ask(
        local(build(path, "replay")),
        {"tools": ["x" * 99], "input": [{"role": "user", "content": "What is 1 + 7?"}]},
        1,
    )
    error = json.loads(body)["error"]
    assert (status, error["type"]) == (400, "rejected")
    assert "nearest recorded request (of task 0 rollout 1) differs at input[0].content" in error["message"]
    assert 'requested "What is 1 + 7?"' in error["message"]
    assert "lenient" in error["hint"]


async def test_a_rollout_that_asks_more_often_than_recorded_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    async with endpoint() as upstream:
        await ask(local(build(path, "record", upstream)), {"input": "a"}, 0)
    server = local(build(path, "replay"))

    async def twice() -> list[int]:
        mark_rollout(0, 0, 1)
        return [(await server.call("POST", "/v1/responses", json={"input": "a"})).status for _ in range(2)]

    assert await asyncio.create_task(twice()) == [200, 400]
    assert (await ask(server, {"input": "a"}, 0))[0] == 200


async def test_lenient_asks_for_what_is_missing_and_remembers_it(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    async with endpoint() as upstream:
        known = await ask(local(build(path, "record", upstream)), {"input": "a"}, 0)
        server = local(build(path, "lenient", {**upstream, "model": "other"}))
        assert await ask(server, {"input": "a"}, 0) == known
        new = await ask(server, {"input": "b"}, 0)
        assert upstream["received"][-1][1] == {"input": "b", "model": "other"}
        assert await ask(server, {"input": "b"}, 0) == new
        assert len(upstream["received"]) == 2
    assert await ask(local(build(path, "replay")), {"input": "b"}, 0) == new


async def test_any_model_server_can_be_recorded_and_keeps_its_session(tmp_path: Path) -> None:
    client = ServerClient.detached()
    async with endpoint() as upstream:
        inner = local(build(tmp_path / "inner.jsonl", "record", upstream), "inner")
        client.attach("inner", inner)
        ref = {"type": "responses_api_models", "name": "inner"}
        outer = local(build(tmp_path / "outer.jsonl", "record", ref, client))
        first = await outer.call("POST", "/v1/responses", json={"input": "a"})
        assert first.status == 200
        again = await outer.call("POST", "/v1/responses", json={"input": "b"}, cookies=first.cookies)
        session = "ReplayModel___replay"
        assert first.cookies[session].value == again.cookies[session].value
        bad = await outer.call("POST", "/v1/responses", json=[1])
        assert bad.status == 422
    assert await ask(local(build(tmp_path / "outer.jsonl", "replay")), {"input": "a"}) == (200, await first.read())


async def test_those_with_parameters_at_hand_get_objects(tmp_path: Path) -> None:
    async with endpoint() as upstream:
        server = build(tmp_path / "recording.jsonl", "record", upstream)
        assert (await server.responses(NeMoGymResponseCreateParamsNonStreaming(input="a"))).id == "r0"
        with pytest.raises(ModelCallError, match="too long"):
            await server.responses(NeMoGymResponseCreateParamsNonStreaming(input="fail"))


async def test_an_endpoint_that_does_not_answer_is_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    dead = {"base_url": "http://127.0.0.1:9/v1", "api_key": "secret", "max_retries": 0}
    failed = await ask(local(build(path, "record", dead)), {"input": "a"})
    await close_http_client()
    assert failed[0] == 502
    assert await ask(local(build(path, "replay")), {"input": "a"}) == failed


def test_mistakes_are_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="mode record needs an upstream"):
        build(tmp_path / "x", "record")
    with pytest.raises(ConfigError, match="can't be opened") as caught:
        build(tmp_path / "missing.jsonl", "replay")
    assert caught.value.hint == "record one first, with mode: record"
