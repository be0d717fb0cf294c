"""An environment with its tasks, and how to run it with its agent in this process, with scripted players as models.

No port is opened. Judges and simulated users are models too: *bystanders* of a rollout, which may be scripted as well.
Otherwise a bystander replies with a label that its prompt mentions, so that most replies can be parsed, but they mean
nothing.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request
from omegaconf import DictConfig
from starlette.responses import JSONResponse
from starlette.routing import Match

from nemo_gym.audit.players import Item, Player, Row, ScriptedCall, message
from nemo_gym.audit.stalls import STALLED
from nemo_gym.config.instances import ServerInstance, find_references, read_instances
from nemo_gym.config.keys import RESOURCES_SERVERS, RESPONSES_API_AGENTS, RESPONSES_API_MODELS
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.schemas.rows import NG_FAILURE_CLASS_KEY
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app, build_server
from nemo_gym.servers.middleware.faults import first_cause
from nemo_gym.servers.server_client import GymClient

HEARTBEAT_S: Final = 0.001
SERVER_ERROR: Final = 500
LABEL: Final = re.compile(r"\[\[[^\[\]\n]{1,30}\]\]|\b[A-Z]{3,12}\b")


@dataclass(frozen=True, slots=True)
class EnvironmentSubject:
    """An environment, the agent it is played with, and its tasks, wherever all of this comes from.

    ``recorded`` holds saved rollouts of the tasks.
    """

    config: DictConfig
    environment: ServerInstance
    agent: ServerInstance
    tasks: Sequence[Row]
    recorded: Sequence[Row] = ()

    @classmethod
    def of(cls, config: DictConfig, tasks: Sequence[Row], recorded: Sequence[Row] = ()) -> "EnvironmentSubject":
        """The only environment of a configuration, with the first agent that refers to it.

        A benchmark has that of its own agent; its configuration may inherit from that of another environment.
        """
        instances = read_instances(config)
        found = [one for one in instances if one.server_type == RESOURCES_SERVERS]
        measured = {name for one in instances if _measures(one) for name in _referred(one, RESOURCES_SERVERS)}
        if len(found) > 1 and len(measured) == 1:
            found = [one for one in found if one.name in measured]
        if len(found) != 1:
            names = ", ".join(one.name for one in found) or "none"
            raise ConfigError(
                f"one environment is checked at a time, but the configuration has {len(found)} ({names})",
                hint="name a configuration with one resources server",
            )
        agents = [one for one in instances if one.server_type == RESPONSES_API_AGENTS]
        agents.sort(key=_measures, reverse=True)
        agent = next((one for one in agents if found[0].name in _referred(one, RESOURCES_SERVERS)), None)
        if agent is None:
            raise ConfigError(f"no agent of the configuration refers to {found[0].name}", hint="add one to its YAML")
        return cls(config, found[0], agent, tasks, recorded)

    @property
    def is_judged(self) -> bool:
        """Whether a model takes part in the verdict, so that rewards mean nothing here."""
        return bool(_referred(self.environment, RESPONSES_API_MODELS))


def _measures(instance: ServerInstance) -> bool:
    """Whether an agent is that of a benchmark."""
    return any(each.get("type") == "benchmark" for each in instance.settings.get("datasets") or ())


def _referred(instance: ServerInstance, kind: str) -> set[str]:
    return {reference.name for _, reference in find_references(instance.settings) if reference.type == kind}


Bystander = Callable[[Mapping[str, Any]], str]  # what a judge or a simulated user replies to a request


@dataclass(slots=True)
class ActivePlayer:
    """The player of one rollout, and the number of its calls so far."""

    player: Player
    prompt: list[Any]
    bystander: Bystander
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

    @property
    def crash(self) -> str | None:
        """The reason for a failure that the environment did not expect."""
        return self.failure if self.failure_class is None else None

    @property
    def is_stalled(self) -> bool:
        """Whether it was interrupted because it did not end."""
        return STALLED in (self.crash or "")


@dataclass
class HostedEnvironment:
    """An environment that can be played."""

    client: GymClient
    server: Any  # the resources server itself, whose state is inspected
    app: FastAPI
    resources: str
    agent: str

    async def play(self, row: Row, player: Player, bystander: Bystander | None = None) -> PlayedRollout:
        """Run a whole rollout with the environment's own agent."""
        prompt = row.get("responses_create_params", {}).get("input")
        active = ActivePlayer(player, prompt if isinstance(prompt, list) else [prompt], bystander or any_label)
        token = _ACTIVE_PLAYER.set(active)
        try:
            return await self._post(self.agent, "/run", row)
        finally:
            _ACTIVE_PLAYER.reset(token)

    def has_route(self, path: str) -> bool:
        """Whether the environment has a POST route at this path."""
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
        body = {**row, "response": scripted_response(output)}
        async with _heartbeat() as pulse:
            verified = await self._post(self.resources, "/verify", body, cookies=seeded.cookies)
        return replace(verified, blocked_s=pulse.longest_s)

    async def call_tools(self, row: Row, calls: Iterable[ScriptedCall]) -> list[str | None]:
        """Call tools in a session of their own, one after another; why each failed, or None if it did not."""
        cookies = (await self.seed(row)).cookies
        failures = []
        for name, arguments in calls:
            path = f"/{name}"
            reply = await self.client.post(server_name=self.resources, url_path=path, json=arguments, cookies=cookies)
            failures.append(first_cause(await reply.read()) if reply.status >= SERVER_ERROR else None)
        return failures

    async def _post(self, server: str, path: str, body: Row, *, cookies: Any = None) -> PlayedRollout:
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
        return PlayedRollout(verdict, failure, failure_class, seconds)


@asynccontextmanager
async def host_environment(subject: EnvironmentSubject) -> AsyncIterator[HostedEnvironment]:
    """Build the environment and its agent."""
    head = BaseServerConfig.model_validate(subject.config["head_server"])
    client = GymClient(head_server_config=head, global_config_dict=subject.config)
    pair = (subject.environment, subject.agent)
    for name in {name for one in pair for name in _referred(one, RESPONSES_API_MODELS)}:
        client.attach(name, LocalServer(_model_app(), label=name, base_url="http://127.0.0.1:1"))
    servers: list[Any] = []
    apps: list[FastAPI] = []
    async with AsyncExitStack() as stack:
        for instance in pair:
            servers.append(build_server(instance, client))
            apps.append(build_app(servers[-1], folder=instance.directory))
            label = servers[-1].get_session_middleware_key()
            client.attach(instance.name, LocalServer(apps[-1], label=label, base_url="http://127.0.0.1:1"))
            await stack.enter_async_context(apps[-1].router.lifespan_context(apps[-1]))
        yield HostedEnvironment(client, servers[0], apps[0], subject.environment.name, subject.agent.name)


def scripted_response(output: list[Item]) -> dict[str, Any]:
    """The items of a model as a response."""
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "resp_1", "created_at": 0, "model": "player", "output": output, **fixed}


def _model_app() -> FastAPI:
    app = FastAPI()

    @app.post("/v1/responses")
    async def responses(request: Request) -> JSONResponse:
        # Other rollouts run on while a model thinks; without this, rollouts in one process would not interleave.
        await asyncio.sleep(0)
        return JSONResponse(scripted_response(_answer(await request.json())))

    return app


def _answer(request: Mapping[str, Any]) -> list[Item]:
    active = _ACTIVE_PLAYER.get()
    given = request.get("input")
    prompt = given if isinstance(given, list) else [{"role": "user", "content": given}]
    if active is None or not _same_start(prompt, active.prompt):
        return [message((active.bystander if active else any_label)(request))]
    active.step += 1
    return active.player.answer(active.step - 1, request)


def _same_start(given: list[Any], prompt: list[Any]) -> bool:
    """Whether a request continues the row's own conversation."""
    return [_text(item) for item in given[: len(prompt)]] == [_text(item) for item in prompt]


def _text(item: Any) -> str:
    return str(item.get("content", item.get("arguments", ""))) if isinstance(item, dict) else str(item)


def request_text(request: Mapping[str, Any]) -> str:
    """The last thing that a bystander was told."""
    given = request.get("input")
    items = given if isinstance(given, list) else [given]
    return _text(items[-1]) if items else ""


def any_label(request: Mapping[str, Any]) -> str:
    """One of the labels that a judge's prompt mentions, always the same for the same prompt."""
    text = request_text(request)
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
