"""A recorded run replays to the same rollout file, with no endpoint behind it."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict, reset_global_config
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.tally import Summary
from nemo_gym.schemas.record import Record
from nemo_gym.servers.gym import host_gym

if TYPE_CHECKING:
    from conftest import MockModel

EXAMPLE = "resources_servers/example_single_tool_call"
FILES = f"{EXAMPLE}/configs/example_single_tool_call.yaml"
REPLAY = "policy_model.responses_api_models.replay_model"
OPENAI = "upstream_model.responses_api_models.openai_model"
RESPONSE = {
    "object": "response",
    "created_at": 0,
    "model": "m",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


@pytest.fixture(autouse=True)
def _forget_configuration() -> Iterator[None]:
    yield
    reset_global_config()


@asynccontextmanager
async def moody_endpoint(**more: Any) -> AsyncIterator[str]:
    """An endpoint that calls the tool and then answers, never twice alike and in no particular order."""
    numbers = itertools.count()

    async def answer(request: web.Request) -> web.Response:
        body, number = await request.json(), next(numbers)
        await asyncio.sleep(random.random() / 50)
        if number % 7 == 3:
            return web.json_response({"error": {"message": "no"}}, status=400)
        if any(item.get("type") == "function_call_output" for item in body["input"]):
            part = {"type": "output_text", "text": f"It is {number} degrees.", "annotations": []}
            item = {"type": "message", "id": f"m{number}", "role": "assistant", "status": "completed"}
            return web.json_response({**RESPONSE, **more, "id": f"r{number}", "output": [{**item, "content": [part]}]})
        call = {"type": "function_call", "id": f"f{number}", "call_id": f"c{number}", "name": "get_weather"}
        call["arguments"] = json.dumps({"city": f"city {number}"})
        return web.json_response({**RESPONSE, **more, "id": f"r{number}", "output": [call]})

    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def collect(output: Path, *overrides: str, repeats: int = 4) -> Summary:
    reset_global_config()
    paths = f"+config_paths=[{FILES}]"
    config = get_global_config_dict(GlobalConfigDictParserConfig(overrides=[paths, *overrides]))
    collection = RolloutCollectionConfig(
        agent_name="example_single_tool_call_simple_agent",
        input_jsonl_fpath=f"{EXAMPLE}/data/example.jsonl",
        output_jsonl_fpath=str(output),
        num_repeats=repeats,
        patience_s=0,  # an endpoint that is gone stays gone here
    )
    async with host_gym(config) as gym:
        return await RolloutCollectionHelper().collect(collection, client=gym.client)


def replay_model(recording: Path, mode: str, upstream: str = "null") -> list[str]:
    settings = {"entrypoint": "app.py", "recording": recording, "mode": mode, "upstream": upstream}
    return [f"++{REPLAY}.{name}={value}" for name, value in settings.items()]


def upstream_model(base_url: str, **settings: Any) -> list[str]:
    given = {"entrypoint": "app.py", "openai_base_url": base_url, "openai_api_key": "none", "openai_model": "m"}
    return [f"++{OPENAI}.{name}={value}" for name, value in {**given, **settings}.items()]


def lines(path: Path) -> list[bytes]:
    return sorted(path.read_bytes().splitlines(), key=lambda line: Record.parse(line).sort_key())


def failures(path: Path) -> list[tuple[Any, ...]]:
    records = map(json.loads, path.with_name(f"{path.stem}_failures.jsonl").read_bytes().splitlines())
    return sorted((*Record(one).sort_key(), one["_ng_attempt"], one["_ng_failure_class"]) for one in records)


UPSTREAM = "{type: responses_api_models, name: upstream_model}"


async def test_a_recorded_run_replays_to_the_same_file(tmp_path: Path, mock_model: "MockModel") -> None:
    recording, first, second = (tmp_path / name for name in ("recording.jsonl", "first.jsonl", "second.jsonl"))
    await collect(first, *replay_model(recording, "record", UPSTREAM), *upstream_model(mock_model.base_url))
    calls = mock_model.stats()["model_calls"]
    assert calls == len(recording.read_bytes().splitlines()) == 2 * len(lines(first))
    await collect(second, *replay_model(recording, "replay"))
    assert lines(second) == lines(first)
    assert mock_model.stats()["model_calls"] == calls


async def test_answers_that_are_never_alike_and_failures_replay_to_the_same_files(tmp_path: Path) -> None:
    recording, first, second = (tmp_path / name for name in ("recording.jsonl", "first.jsonl", "second.jsonl"))
    async with moody_endpoint() as base_url:
        endpoint = f"{{base_url: '{base_url}', api_key: none}}"
        await collect(first, *replay_model(recording, "record", endpoint))
    await collect(second, *replay_model(recording, "replay"))
    assert lines(first)
    assert lines(second) == lines(first)
    assert failures(first)
    assert failures(second) == failures(first)


async def test_a_replay_of_something_else_fails_and_says_what_differs(tmp_path: Path, mock_model: "MockModel") -> None:
    recording = tmp_path / "recording.jsonl"
    await collect(
        tmp_path / "first.jsonl",
        *replay_model(recording, "record", UPSTREAM),
        *upstream_model(mock_model.base_url),
        repeats=1,
    )
    kept = recording.read_bytes().splitlines(keepends=True)
    recording.write_bytes(b"".join(kept[:1]))
    summary = await collect(tmp_path / "second.jsonl", *replay_model(recording, "replay"), repeats=1)
    assert summary.tally.completed == 0
    [(kind, tally)] = summary.tally.failures.items()
    assert kind == "rejected"
    assert "the nearest recorded request" in tally.example


async def test_with_a_cache_a_second_run_asks_for_nothing(tmp_path: Path) -> None:
    async with moody_endpoint() as base_url:
        model = [one.replace("upstream_model", "policy_model", 1) for one in upstream_model(base_url, max_retries=0)]
        cache = f"+cache={tmp_path / 'cache'}"
        first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
        await collect(first, *model, cache)
    # There is nobody to ask any more.
    summary = await collect(second, *model, cache)
    assert set(lines(first)) == set(lines(second))
    answers = {json.loads(line)["response"]["id"] for line in lines(first)}
    assert len(answers) == len(lines(first)) > 10
    assert set(summary.tally.failures) <= {"unreachable"}


async def test_what_the_cache_answers_is_not_spent_and_cached_prompts_have_their_price_in_every_turn(
    tmp_path: Path,
) -> None:
    usage = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
    usage |= {"input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 0}}
    prices = "{input: 1e6, output: 0, cached_input: 1e5}"
    async with moody_endpoint(usage=usage) as base_url:
        model = [
            one.replace("upstream_model", "policy_model", 1)
            for one in upstream_model(base_url, max_retries=0, prices=prices)
        ]
        cache = f"+cache={tmp_path / 'cache'}"
        first = await collect(tmp_path / "first.jsonl", *model, cache)
        second = await collect(tmp_path / "second.jsonl", *model, cache)

    calls, rest = divmod(first.tally.spending.tokens, 11)
    assert calls >= 2 * first.tally.completed > 0
    assert rest == 0
    assert first.tally.spending.usd == pytest.approx(calls * (6 * 1 + 4 * 0.1))
    # Only what had failed the first time, and what that led to, was paid for.
    answered = {json.loads(line)["response"]["id"] for line in lines(tmp_path / "first.jsonl")}
    anew = [line for line in lines(tmp_path / "second.jsonl") if json.loads(line)["response"]["id"] not in answered]
    assert second.tally.completed > len(anew)
    assert second.tally.spending.tokens <= 11 * 2 * (
        len(anew) + sum(one.attempts for one in second.tally.failures.values())
    )
