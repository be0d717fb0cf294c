"""Parts that the tests of the collection engine share: rows, and agents that do as they are told."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.rollouts.store.outcome import PlannedRollout
from nemo_gym.schemas.rows import RolloutKey

Script = Callable[[dict[str, Any], int], Any]  # (row, how often it was sent) -> what to answer


def make_row(task: int = 0, rollout: int = 0, agent: str = "alpha", **fields: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": f"question {task}"},
        "agent_ref": {"name": agent},
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        **fields,
    }


@pytest.fixture
def row() -> Callable[..., dict[str, Any]]:
    return make_row


@pytest.fixture
def planned() -> Callable[..., PlannedRollout]:
    def make(
        task: int = 0, rollout: int = 0, *, attempt: int = 1, last: int = 1, agent: str = "alpha"
    ) -> PlannedRollout:
        return PlannedRollout(RolloutKey(task, rollout), agent, make_row(task, rollout, agent), attempt, last)

    return make


@pytest.fixture
def tasks_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a task file with so many different tasks."""

    def write(count: int, name: str = "tasks.jsonl", **fields: Any) -> Path:
        path = tmp_path / name
        rows = ({"responses_create_params": {"input": f"question {n}"}, "n": n, **fields} for n in range(count))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@dataclass
class ScriptedAgents:
    """Agents on a real port that answer as a script says, and a client that finds them."""

    url: str
    received: list[dict[str, Any]] = field(default_factory=list)
    aggregated: list[dict[str, Any]] = field(default_factory=list)
    session: aiohttp.ClientSession | None = None
    in_flight: int = 0
    most_in_flight: int = 0

    async def post(self, *, server_name: str, url_path: str, json: Any) -> aiohttp.ClientResponse:
        assert self.session is not None
        return await self.session.post(f"{self.url}/{server_name}{url_path}", json=json)

    def sent(self) -> list[tuple[int, int]]:
        return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in self.received]


async def _answer(agents: ScriptedAgents, script: Script, request: web.Request) -> web.StreamResponse:
    row = await request.json()
    times = sum(row["_ng_task_index"] == r["_ng_task_index"] for r in agents.received)
    agents.received.append(row)
    agents.in_flight += 1
    agents.most_in_flight = max(agents.most_in_flight, agents.in_flight)
    try:
        answer = script(row, times)
        if asyncio.iscoroutine(answer):
            answer = await answer
    finally:
        agents.in_flight -= 1
    return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)


@asynccontextmanager
async def serve_agents(script: Script) -> AsyncIterator[ScriptedAgents]:
    app = web.Application()
    agents = ScriptedAgents("")

    async def run(request: web.Request) -> web.StreamResponse:
        return await _answer(agents, script, request)

    async def aggregate(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        agents.aggregated.append({"agent": request.match_info["agent"], **body})
        rewards = [r["reward"] for r in body["verify_responses"]]
        return web.json_response({"key_metrics": {"mean/reward": sum(rewards) / len(rewards)}})

    app.router.add_post("/{agent}/run", run)
    app.router.add_post("/{agent}/aggregate_metrics", aggregate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    agents.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession() as agents.session:
            yield agents
    finally:
        await runner.cleanup()


@pytest.fixture
def agents_with() -> Callable[[Script], AbstractAsyncContextManager[ScriptedAgents]]:
    """Starts agents that answer as the script says."""
    return serve_agents


@pytest.fixture
def read_jsonl() -> Callable[[Path], list[Any]]:
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]
