"""A call knows which rollout it belongs to, wherever it is made."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.middleware.rollout_scope import (
    HEADER,
    Occurrences,
    RolloutScope,
    adopt_mark,
    current_mark,
    current_scope,
    mark_rollout,
    wants_marks,
)

MARKED = """
from fastapi import FastAPI
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.servers.middleware.rollout_scope import current_scope


class Marked(SimpleResourcesServer):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/scope")(self.scope)
        return app

    async def scope(self) -> dict[str, object]:
        scope = current_scope()
        return {"scope": scope and list(scope[:3])}

    async def verify(self, body):
        raise NotImplementedError


if __name__ == "__main__":
    Marked.run_webserver()
"""


async def test_calls_of_an_attempt_bear_its_mark_and_others_do_not() -> None:
    async def attempt(task: int) -> tuple[int, int, int]:
        mark_rollout(task, 2, 3)
        await asyncio.sleep(0)
        scope = await asyncio.create_task(ask())
        assert scope is not None
        return scope[:3]

    async def ask() -> RolloutScope | None:
        return current_scope()

    found = await asyncio.gather(*(asyncio.create_task(attempt(task)) for task in range(3)))
    assert found == [(task, 2, 3) for task in range(3)]
    assert current_scope() is None


async def test_the_mark_reaches_servers_near_and_far(project: Any, gym_config: Callable[..., DictConfig]) -> None:
    (project / "app.py").write_text(MARKED)
    config = gym_config(near={}, far={"isolation": "process"})

    async def ask(name: str, *, marked: bool) -> Any:
        if marked:
            mark_rollout(5, 1, 1)
        reply = await gym.client.post(server_name=name, url_path="/scope", json={})
        return (await reply.json())["scope"]

    async with host_gym(config) as gym:
        for name in ("near", "far"):
            assert await asyncio.create_task(ask(name, marked=True)) == [5, 1, 1]
            assert await asyncio.create_task(ask(name, marked=False)) is None
        port = config.near.resources_servers.toy_for_tests.port
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{port}/scope", headers={HEADER: "7.0.2.abc"}) as reply,
        ):
            assert await reply.json() == {"scope": [7, 0, 2]}


@pytest.mark.parametrize("mark", ["", "1", "1.2.3", "1.2.3.", "a.b.c.d", "1.2.3.x y", "1.2.3.ff\n", "9" * 30])
def test_what_is_no_mark_is_nothing(mark: str) -> None:
    assert RolloutScope.parse(mark) is None


async def test_a_mark_is_adopted_from_headers() -> None:
    async def serve(headers: list[tuple[bytes, bytes]]) -> str:
        adopt_mark(headers)
        return current_mark()

    assert await asyncio.create_task(serve([(b"host", b"x"), (b"x-ng-rollout", b"1.2.3.ff")])) == "1.2.3.ff"
    assert await asyncio.create_task(serve([(b"host", b"x")])) == ""


def test_every_attempt_counts_for_itself() -> None:
    asked = Occurrences()
    first, again = RolloutScope(0, 0, 1, "a"), RolloutScope(0, 0, 1, "b")
    assert [asked.next(first, "x"), asked.next(first, "x"), asked.next(first, "y")] == [0, 1, 0]
    assert asked.next(again, "x") == 0
    assert [asked.next(None, "x"), asked.next(None, "x"), asked.next(None, "y")] == [0, 1, 0]


def test_old_attempts_are_forgotten() -> None:
    asked = Occurrences(remembered=2)
    for run in "abc":
        asked.next(RolloutScope(0, 0, 1, run), "x")
    assert asked.next(RolloutScope(0, 0, 1, "c"), "x") == 1
    assert asked.next(RolloutScope(0, 0, 1, "a"), "x") == 0


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, False),
        ({"cache": "folder"}, True),
        ({"m": {"responses_api_models": {"replay_model": {}}}, "x": "${nowhere}"}, True),
        ({"m": {"responses_api_models": {"openai_model": {}}}, "n": 1}, False),
        ({"m": {"responses_api_models": {"vllm_model": {"base_url": ["a", "b"]}}}}, True),
        ({"m": {"responses_api_models": {"vllm_model": {"base_url": ["a"]}}}}, False),
    ],
)
def test_marks_are_made_only_for_those_who_ask(config: dict[str, Any], wanted: bool) -> None:
    assert wants_marks(OmegaConf.create(config)) is wanted
    assert wants_marks(None) is False
