"""Answers are kept for any number of processes, within bounds, and a damaged one is no answer.

Whatever was generated once is not generated again; repeats stay different.
"""

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.config.locate import STARTED_IN_ENV_VAR
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from nemo_gym.servers.middleware.rollout_scope import mark_rollout
from nemo_gym.servers.models.cache import GenerationCache, identity, open_cache

KEY = "ab" * 20


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


async def test_what_was_put_is_found_also_by_others(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path / "new" / "cache")
    assert await cache.get(KEY) is None
    await cache.put(KEY, b'{"a":1}\n{"b":2}')
    assert await GenerationCache(tmp_path / "new" / "cache").get(KEY) == b'{"a":1}\n{"b":2}'
    assert await cache.get("cd" * 20) is None


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_answer_is_removed(tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    cache = GenerationCache(tmp_path)
    cache.write(KEY, b"answer")
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert cache.read(KEY) is None
    assert "damaged" in caplog.text
    assert files(tmp_path) == []
    cache.write(KEY, b"answer")
    assert cache.read(KEY) == b"answer"


def test_the_folder_stays_within_its_size_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path, max_bytes=20_000)
    for number in range(40):
        cache.write(f"{number:040d}", b"x" * 1000)
        path = cache._path(f"{number:040d}")
        if path.exists():
            os.utime(path, (number, number))
        cache.read(f"{0:040d}")
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 21_500
    assert cache.read(f"{0:040d}") is not None
    assert cache.read(f"{39:040d}") is not None
    assert cache.read(f"{1:040d}") is None


def test_an_answer_larger_than_everything_is_not_kept(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path, max_bytes=100)
    cache.write(KEY, b"x" * 200)
    assert files(tmp_path) == []


def test_drafts_of_processes_that_died_are_removed(tmp_path: Path) -> None:
    cache = GenerationCache(tmp_path)
    draft = tmp_path / "drafts" / "1-1"
    draft.write_bytes(b"half")
    os.utime(draft, (1, 1))
    cache.write(KEY, b"answer")
    assert not draft.exists()
    assert cache.read(KEY) == b"answer"


def test_a_folder_that_can_not_be_made_is_the_users_to_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cache: .*can't be written"):
        GenerationCache(tmp_path / "file" / "cache")


def test_a_folder_that_fails_later_costs_nothing_but_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = GenerationCache(tmp_path / "cache")
    (tmp_path / "cache" / "drafts").rmdir()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").touch()
    cache.write(KEY, b"answer")
    cache.write(KEY, b"answer")
    assert cache.read(KEY) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


WRITER = """
import sys
from pathlib import Path
from nemo_gym.servers.models.cache import GenerationCache

cache = GenerationCache(Path(sys.argv[1]), max_bytes=60_000)
for number in range(300):
    key, content = f"{number % 50:040d}", f"{number % 50}".encode() * 500
    found = cache.read(key)
    assert found in (None, content), "somebody else's answer"
    cache.write(key, content)
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for writer in writers:
        _, errors = writer.communicate()
        assert writer.returncode == 0, errors
        assert not errors
    cache = GenerationCache(tmp_path, max_bytes=60_000)
    cache.trim()
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 60_000


RESPONSE = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": [], "parallel_tool_calls": True}


class CountingConfig(BaseResponsesAPIModelConfig):
    model: str = "small"
    api_key: str = "secret"
    max_tokens: int = 1
    max_retries: int = 1
    extra: dict[str, Any] = Field(default_factory=dict)


class Counting(SimpleResponsesAPIModel):
    config: CountingConfig
    calls: int = 0

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        raise ValueError("as asked")

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        self.calls += 1
        return NeMoGymResponse(**RESPONSE, tool_choice="auto", tools=[], metadata={"number": str(self.calls)})


def serve(config: dict[str, Any], **settings: Any) -> tuple[Counting, LocalServer]:
    client = ServerClient(
        head_server_config=BaseServerConfig(host="", port=1), global_config_dict=OmegaConf.create(config)
    )
    own = CountingConfig(host="127.0.0.1", port=1, entrypoint="", name="counting", **settings)
    server = Counting(config=own, server_client=client)
    return server, LocalServer(build_app(server), label="counting", base_url="http://127.0.0.1:1")


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def ask(local: LocalServer, rollout: int | None, *questions: str, **params: Any) -> list[str]:
    async def attempt() -> list[str]:
        if rollout is not None:
            mark_rollout(0, rollout, 1)
        replies = [
            await local.call("POST", "/v1/responses", json={"input": question, **params}) for question in questions
        ]
        return [(await reply.json())["metadata"]["number"] for reply in replies]

    return await asyncio.create_task(attempt())


async def test_a_second_run_costs_nothing_and_repeats_stay_different(tmp_path: Path) -> None:
    config = {"cache": str(tmp_path / "cache")}
    server, local = serve(config)
    first = [await ask(local, rollout, "a", "b") for rollout in range(3)]
    assert first == [["1", "2"], ["3", "4"], ["5", "6"]]
    again, local = serve(config)
    assert [await ask(local, rollout, "a", "b") for rollout in range(3)] == first
    assert (server.calls, again.calls) == (6, 0)


async def test_an_attempt_that_asks_the_same_twice_gets_two_answers_and_gets_them_again(tmp_path: Path) -> None:
    server, local = serve({"cache": str(tmp_path)})
    assert await ask(local, 0, "a", "a") == ["1", "2"]
    assert await ask(local, 0, "a", "a") == ["1", "2"]
    assert server.calls == 2


async def test_those_without_a_rollout_are_told_apart_by_their_order(tmp_path: Path) -> None:
    _, local = serve({"cache": str(tmp_path)})
    assert await ask(local, None, "a", "a", "b") == ["1", "2", "3"]
    again, local = serve({"cache": str(tmp_path)})
    assert await ask(local, None, "a", "b", "a") == ["1", "3", "2"]
    assert again.calls == 0


async def test_parameters_tell_requests_apart_and_their_order_does_not(tmp_path: Path) -> None:
    server, local = serve({"cache": str(tmp_path)})
    await ask(local, 0, "a", temperature=1.0, top_p=0.5)
    await ask(local, 0, "a", top_p=0.5, temperature=1.0, max_output_tokens=None)
    assert server.calls == 1
    await ask(local, 0, "a", top_p=0.5, temperature=0.5)
    await ask(local, 0, "a", top_p=0.5, temperature=1.0, metadata={"extra_body": '{"seed": 1}'})
    assert server.calls == 3


async def test_answers_are_the_same_bytes_with_and_without_a_cache(tmp_path: Path) -> None:
    bodies = []
    for config in ({}, {"cache": str(tmp_path)}, {"cache": str(tmp_path)}):
        server, local = serve(config)
        reply = await local.call("POST", "/v1/responses", json={"input": "a"})
        bodies.append((reply.status, await reply.read(), reply.headers["Content-Type"]))
        over_http = TestClient(server.setup_webserver()).post("/v1/responses", json={"input": "a", "model": "x"})
        assert over_http.status_code == 200
    assert bodies[0] == bodies[1] == bodies[2]


async def test_messages_and_responses_share_what_was_generated(tmp_path: Path) -> None:
    server, local = serve({"cache": str(tmp_path)})
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    bodies = []
    for stream in (False, True):
        mark_rollout(0, 0, 1)
        reply = await local.call("POST", "/v1/messages", json={**body, "stream": stream})
        bodies.append((reply.status, reply.headers["Content-Type"].partition(";")[0]))
    assert bodies == [(200, "application/json"), (200, "text/event-stream")]
    assert server.calls == 1


async def test_failures_are_not_kept_and_bad_requests_are_refused_as_ever(tmp_path: Path) -> None:
    _, local = serve({"cache": str(tmp_path)})
    for _ in range(2):
        reply = await local.call("POST", "/v1/chat/completions", json={"messages": []})
        assert (reply.status, await reply.json()) == (500, "ValueError('as asked')")
    assert (await local.call("POST", "/v1/responses", json={"input": 1})).status == 422
    assert kept(tmp_path) == []


def test_what_is_generated_depends_on_some_settings_and_not_on_others() -> None:
    def of(**settings: Any) -> bytes:
        return identity(Counting, CountingConfig(host="h", port=1, entrypoint="", name="n", **settings))

    assert of() == of(api_key="other", max_retries=5, extra={"token": "x"})
    assert b"secret" not in of()
    assert len({of(), of(model="large"), of(max_tokens=2), of(extra={"top_k": 1})}) == 4


def test_without_a_cache_nothing_is_wrapped() -> None:
    server, local = serve({})
    assert server._cached_calls is None
    [noting] = [route.endpoint for route in local.app.routes if getattr(route, "path", "") == "/v1/responses"]
    assert noting.__wrapped__ == server.responses


@pytest.mark.parametrize("settings", [{"cache": "x", "cache_max_gb": 0}, {"cache": ["x"]}])
def test_mistakes_are_the_users_to_fix(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cache"):
        open_cache(OmegaConf.create(settings))


def test_a_relative_folder_is_meant_where_the_command_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a server process, whose working directory is the server's folder."""
    monkeypatch.setenv(STARTED_IN_ENV_VAR, str(tmp_path))
    cache = open_cache(OmegaConf.create({"cache": "folder"}))
    assert cache is not None
    assert cache.folder == tmp_path / "folder"
