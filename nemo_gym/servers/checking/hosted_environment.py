"""Runs one environment with its agent in this process, with a scripted player in place of every model.

No port is opened. Judges and simulated users are models too, but they can't be scripted well. Their player answers with
a label that their prompt mentions, so that most answers can be parsed, but their verdicts mean nothing.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request
from omegaconf import DictConfig
from starlette.responses import JSONResponse
from starlette.routing import Match

from nemo_gym.config.instances import ServerInstance, find_references, read_instances
from nemo_gym.config.keys import RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.schemas.rows import NG_FAILURE_CLASS_KEY
from nemo_gym.servers.checking.players import Item, Player, Row, message
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.faults import first_cause
from nemo_gym.servers.loader import build_app, build_server
from nemo_gym.servers.server_client import GymClient

HEARTBEAT_S: Final = 0.001
LABEL: Final = re.compile(r"\[\[[^\[\]\n]{1,30}\]\]|\b[A-Z]{3,12}\b")


@dataclass(slots=True)
class ActivePlayer:
    """The player of one rollout, and how often it has been asked."""

    player: Player
    prompt: list[Any]
    step: int = 0


_ACTIVE_PLAYER: ContextVar[ActivePlayer | None] = ContextVar("active_player", default=None)


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """How a rollout or a verification ended: with a verdict, or with the reason for not having one."""

    verdict: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    failure_class: str | None = None
    seconds: float = 0.0
    blocked_s: float = 0.0

    @property
    def reward(self) -> Any:
        """The reward as the verifier returned it, of any type."""
        return self.verdict.get("reward")


@dataclass
class HostedEnvironment:
    """An environment that can be played."""

    client: GymClient
    server: Any  # the resources server itself, whose state is inspected
    app: FastAPI
    resources: str
    agent: str
    is_judged: bool

    async def play(self, row: Row, player: Player) -> PlayedRollout:
        """Run a whole rollout with the environment's own agent."""
        prompt = row.get("responses_create_params", {}).get("input")
        token = _ACTIVE_PLAYER.set(ActivePlayer(player, prompt if isinstance(prompt, list) else [prompt]))
        try:
            return await self._timed(self.agent, "/run", row)
        finally:
            _ACTIVE_PLAYER.reset(token)

    def has_route(self, path: str) -> bool:
        """Whether the environment answers a POST to this path."""
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        return any(route.matches(scope)[0] is Match.FULL for route in self.app.routes)

    async def seed(self, row: Row) -> Any:
        """Start a rollout and return the reply."""
        return await self.client.post(server_name=self.resources, url_path="/seed_session", json=row)

    async def verify(self, row: Row, output: list[Item]) -> PlayedRollout:
        """Only verify an answer, in its own session."""
        seeded = await self.seed(row)
        if not seeded.ok:
            return PlayedRollout(failure=f"/seed_session: {first_cause(await seeded.read())}")
        body = {**row, "response": response_of(output)}
        return await self._timed(self.resources, "/verify", body, cookies=seeded.cookies)

    async def _timed(self, server: str, path: str, body: Row, *, cookies: Any = None) -> PlayedRollout:
        async with _heartbeat() as pulse:
            started = time.perf_counter()
            reply = await self.client.post(server_name=server, url_path=path, json=body, cookies=cookies)
            content = await reply.read()
            seconds = time.perf_counter() - started
        if not reply.ok:
            return PlayedRollout(failure=f"{path}: status {reply.status}: {first_cause(content)}", seconds=seconds)
        verdict = orjson.loads(content)
        if not isinstance(verdict, dict):
            return PlayedRollout(failure=f"{path}: the verdict is not an object", seconds=seconds)
        failure_class = verdict.get(NG_FAILURE_CLASS_KEY)
        failure = f"{path}: {failure_class}" if failure_class else None
        return PlayedRollout(verdict, failure, failure_class, seconds, pulse.longest_s)


@asynccontextmanager
async def host_environment(config: DictConfig) -> AsyncIterator[HostedEnvironment]:
    """Build the servers of a configuration with one environment."""
    instances = read_instances(config)
    environment = _only(instances, RESOURCES_SERVERS)
    agents = [one for one in instances if one.server_type == RESPONSES_API_AGENTS]
    chosen = [one for one in agents if environment.name in _referred(one, RESOURCES_SERVERS)]
    if not chosen:
        raise ConfigError(f"no agent of the configuration refers to {environment.name}", hint="add one to its YAML")
    head = BaseServerConfig.model_validate(config["head_server"])
    client = GymClient(head_server_config=head, global_config_dict=config)
    for name in {name for one in instances for name in _referred(one, RESPONSES_API_MODELS)}:
        client.attach(name, LocalServer(_model_app(), label=name, base_url="http://127.0.0.1:1"))
    servers: list[Any] = []
    apps: list[FastAPI] = []
    async with AsyncExitStack() as stack:
        for instance in (environment, chosen[0]):
            servers.append(build_server(instance, client))
            apps.append(build_app(servers[-1], folder=instance.directory))
            label = servers[-1].get_session_middleware_key()
            client.attach(instance.name, LocalServer(apps[-1], label=label, base_url="http://127.0.0.1:1"))
            await stack.enter_async_context(apps[-1].router.lifespan_context(apps[-1]))
        judged = bool(_referred(environment, RESPONSES_API_MODELS))
        yield HostedEnvironment(client, servers[0], apps[0], environment.name, chosen[0].name, judged)


def _only(instances: list[ServerInstance], kind: str) -> ServerInstance:
    found = [one for one in instances if one.server_type == kind]
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise ConfigError(
            f"one environment is checked at a time, but the configuration has {len(found)} {kind} ({names})",
            hint="name a configuration with one resources server",
        )
    return found[0]


def _referred(instance: ServerInstance, kind: str) -> set[str]:
    return {reference.name for _, reference in find_references(instance.settings) if reference.type == kind}


def response_of(output: list[Item]) -> dict[str, Any]:
    """The items of a model as a response."""
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "resp_1", "created_at": 0, "model": "player", "output": output, **fixed}


def _model_app() -> FastAPI:
    app = FastAPI()

    @app.post("/v1/responses")
    async def responses(request: Request) -> JSONResponse:
        return JSONResponse(response_of(_answer(await request.json())))

    return app


def _answer(asked: Mapping[str, Any]) -> list[Item]:
    active = _ACTIVE_PLAYER.get()
    said = asked.get("input")
    prompt = said if isinstance(said, list) else [{"role": "user", "content": said}]
    if active is None or not _same_start(prompt, active.prompt):
        return [message(_label(prompt))]  # for a judge or a simulated user
    active.step += 1
    return active.player.answer(active.step - 1, asked.get("tools") or [])


def _same_start(asked: list[Any], prompt: list[Any]) -> bool:
    """Whether a request continues the row's own conversation."""
    return [_text(item) for item in asked[: len(prompt)]] == [_text(item) for item in prompt]


def _text(item: Any) -> str:
    return str(item.get("content", item.get("arguments", ""))) if isinstance(item, dict) else str(item)


def _label(prompt: list[Any]) -> str:
    text = _text(prompt[-1]) if prompt else ""
    labels = sorted(set(LABEL.findall(text)))
    return random.Random(text).choice(labels) if labels else "Yes."  # noqa: S311 - a game, not a secret


@dataclass(slots=True)
class _Pulse:
    longest_s: float = 0.0


@asynccontextmanager
async def _heartbeat() -> AsyncIterator[_Pulse]:
    """Measure the longest time for which the event loop was blocked within the context."""
    pulse = _Pulse()

    async def beat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now = time.perf_counter()
            pulse.longest_s = max(pulse.longest_s, now - last - HEARTBEAT_S)
            last = now

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield pulse
        await asyncio.sleep(HEARTBEAT_S)  # so that the measuring task runs once more
    finally:
        task.cancel()
        await asyncio.wait([task])
