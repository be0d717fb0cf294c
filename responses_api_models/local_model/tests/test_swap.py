"""New weights for a running server: real engines, tiny models."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("gguf", reason="needs the extra train")

from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.tests.conftest import ask, build_model
from tests.training.tiny import tiny_gguf

TOKEN = "a-long-weights-token"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [tiny_gguf(folder / f"{seed}.gguf", seed=seed) for seed in range(2)]


@pytest.fixture
async def server(files: list[Path]) -> AsyncIterator[LocalModel]:
    settings = {"n_ctx": 512, "n_parallel": 1, "return_token_id_information": True}
    server = build_model(model_path=str(files[0]), weights_token=TOKEN, **settings)
    yield server
    await server._model.pool.close()


def session(server: LocalModel) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(server.setup_webserver())
    return httpx.AsyncClient(transport=transport, base_url="http://model", headers=ALLOWED)


async def tokens_and_version(server: LocalModel, **options: object) -> tuple[list[int], int]:
    item = (await ask(server, **options)).output[-1]
    return item.generation_token_ids, item.policy_version  # type: ignore[union-attr]


async def test_answers_come_from_the_new_weights(server: LocalModel, files: list[Path]) -> None:
    before = await tokens_and_version(server)
    async with session(server) as client:
        answer = await client.post("/weights", json={"model_path": str(files[1])})
        assert answer.json() == {"version": 1, "paused": False, "in_flight": 0}
        after = await tokens_and_version(server)
        await client.post("/weights", json={"model_path": str(files[0]), "version": 5})
    again = await tokens_and_version(server)
    assert [version for _, version in (before, after, again)] == [0, 1, 5]
    assert before[0] == again[0] != after[0]


async def test_turns_in_flight_finish_with_the_old_weights_and_waiting_ones_begin_with_the_new(
    server: LocalModel, files: list[Path]
) -> None:
    long = {"max_output_tokens": 300, "metadata": {"extra_body": '{"ignore_eos": true}'}}
    expected, _ = await tokens_and_version(server, **long)
    pool = server._model.pool
    running = asyncio.create_task(tokens_and_version(server, **long))
    old = await pool._current()
    while not any(slot.busy for slot in old.slots._slots):  # noqa: ASYNC110 - an engine has no events
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(tokens_and_version(server))  # there is one slot
    while not old.slots._waiting and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    async with session(server) as client:
        await client.post("/weights", json={"model_path": str(files[1])})
    assert await running == (expected, 0)
    assert (await waiting)[1] == 1
    assert not pool._old
    assert not old.engines  # the old engines have ended with their last turn


async def test_many_swaps_under_load_lose_nothing(server: LocalModel, files: list[Path]) -> None:
    async with session(server) as client:
        turns = [asyncio.create_task(tokens_and_version(server, temperature=1.0)) for _ in range(24)]
        for number in range(1, 4):
            swapped = await client.post("/weights", json={"model_path": str(files[number % 2])})
            assert swapped.json()["version"] == number
        versions = [version for _, version in await asyncio.gather(*turns)]
    assert set(versions) <= {0, 1, 2, 3}
    assert not server._model.pool._old


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}], ids=["none", "wrong"])
async def test_only_the_token_opens_the_route(server: LocalModel, files: list[Path], headers: dict[str, str]) -> None:
    transport = httpx.ASGITransport(server.setup_webserver())
    async with httpx.AsyncClient(transport=transport, base_url="http://model", headers=headers) as client:
        assert (await client.post("/weights", json={"model_path": str(files[1])})).status_code == 401
    assert (await tokens_and_version(server))[1] == 0


async def test_without_a_token_there_is_no_route_and_no_version(files: list[Path]) -> None:
    server = build_model(model_path=str(files[0]), n_ctx=512, n_parallel=1)
    async with session(server) as client:
        assert (await client.post("/weights", json={"model_path": str(files[1])})).status_code == 404
    assert not hasattr((await ask(server)).output[-1], "policy_version")
    await server._model.pool.close()


async def test_a_file_that_can_not_be_loaded_changes_nothing(server: LocalModel, tmp_path: Path, weights: Path) -> None:
    before = await tokens_and_version(server)
    (tmp_path / "text.gguf").write_text("hello")
    async with session(server) as client:
        for path, reason in (("text.gguf", "not a GGUF"), ("none.gguf", "cannot be read")):
            refused = await client.post("/weights", json={"model_path": str(tmp_path / path)})
            assert refused.status_code == 400
            assert reason in refused.text
        other = await client.post("/weights", json={"model_path": str(weights)})
        assert other.status_code == 400
        assert "another tokenizer" in other.text
    assert await tokens_and_version(server) == before


async def test_a_paused_server_keeps_requests_waiting(server: LocalModel) -> None:
    async with session(server) as client:
        assert (await client.post("/pause", params={"drain": True})).json()["paused"]
        waiting = asyncio.create_task(tokens_and_version(server))
        await asyncio.sleep(0)
        assert (await client.get("/weights")).json() == {"version": 0, "paused": True, "in_flight": 0}
        assert not waiting.done()
        await client.post("/resume")
    assert (await waiting)[1] == 0
