#!/usr/bin/env python3
"""What model servers and converters cost, compared with the work that cannot be avoided.

    python benchmarks_perf/bench_models.py [--n 2000] [--rounds 5] [--parallel 32]

Conversions of a 100-item conversation are measured beside reading and writing its JSON (at most 3 times that), calls of
the model servers beside a bare client that sends the same upstream request (at most 1.3 times that for a short
question, 1.6 times for the conversation). All but the last three items of the conversation were sent before, as in an
agent's next turn, so a server that remembers how it began converts only these. All in one process and CPU time only;
the mock endpoint has its own. Rounds are interleaved, because machines are shared and noisy, and the best one counts.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from processes import ROOT, mock_model

from nemo_gym.config.parse import parse_config
from nemo_gym.conversion.anthropic.calling import request_to_messages
from nemo_gym.conversion.anthropic.serving import messages_to_request
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.servers.gym import host_gym

TASK = json.loads((ROOT / "resources_servers/example_single_tool_call/data/example.jsonl").read_text().splitlines()[0])
ASKED: dict[str, Any] = TASK["responses_create_params"]
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer none"}
MODELS = "responses_api_models"
CONVERSION_GOAL, SHORT_GOAL, LONG_GOAL = 3.0, 1.3, 1.6
Call = Callable[[], Awaitable[object]]


def conversation(items: int = 100) -> dict[str, Any]:
    """A typical conversation of an agent: reasoning, text, calls and results of ordinary length."""
    thought = 'The user wants "the weather".\nI have a tool for that: get_weather.\n' * 6
    said = "Let me look that up for you.\n- first the city\n- then the day\n" * 3
    result = json.dumps({"city": "San Francisco", "days": [{"day": day, "sky": "fog"} for day in range(12)]})
    history: list[dict[str, Any]] = [{"role": "user", "content": said}]
    while len(history) < items:
        name = f"call_{len(history)}"
        history += [
            {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": thought}]},
            {
                "type": "message",
                "id": f"msg_{name}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": said, "annotations": []}],
            },
            {
                "type": "function_call",
                "id": name,
                "call_id": name,
                "name": "get_weather",
                "arguments": '{"city": "San Francisco"}',
                "status": "completed",
            },
            {"type": "function_call_output", "call_id": name, "output": result},
        ]
    return ASKED | {"input": history[:items]}


def microseconds(work: Callable[[], object], *, repeats: int = 100, rounds: int = 30) -> float:
    """CPU time of one call, in the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(repeats):
            work()
        best = min(best, time.process_time() - started)
    return 1e6 * best / repeats


def bench_conversions() -> None:
    asked = conversation()
    encoded = orjson.dumps(asked)
    converter = ResponsesConverter(return_token_id_information=False)
    chat = converter.request_to_chat(asked)
    messages = request_to_messages(asked, max_tokens=9).body
    floor = microseconds(lambda: orjson.dumps(orjson.loads(encoded)))
    there = microseconds(lambda: converter.request_to_chat(asked))
    back = microseconds(lambda: converter.history_to_items(chat["messages"]))
    print(f"a conversation of {len(asked['input'])} items, {len(encoded) / 1000:.0f} kB")
    print(f"  JSON, read and written                {floor:8.0f} µs")
    both = there + back
    print(f"  to Chat Completions and back          {both:8.0f} µs   {ratio(both, floor, CONVERSION_GOAL)}")
    there = microseconds(lambda: request_to_messages(asked, max_tokens=9))
    back = microseconds(lambda: messages_to_request(messages))
    both = there + back
    print(f"  to Anthropic's Messages and back      {both:8.0f} µs   {ratio(both, floor, CONVERSION_GOAL)}")


def ratio(cost: float, floor: float, goal: float) -> str:
    return f"{cost / floor:.2f} x (goal {goal:g}{'' if cost <= goal * floor else ', MISSED'})"


def config_of(folder: Path, name: str, base_url: str, *extra: str) -> Any:
    overrides = {"config_paths": [f"{MODELS}/{name}/configs/{name}.yaml"], "policy_model_name": "mock"}
    overrides |= {"policy_base_url": base_url, "policy_api_key": "none", "policy_recording": str(folder / "r.jsonl")}
    words = [f"++policy_model.{MODELS}.{name}.{setting}" for setting in extra]
    argv = [f"+{key}={json.dumps(value) if isinstance(value, list) else value}" for key, value in overrides.items()]
    return parse_config(argv + words).config


async def cpu_ms(call: Call, n: int, parallel: int) -> float:
    """CPU time of a call, many at once."""
    pending = iter(range(n))

    async def worker() -> None:
        for _ in pending:
            await call()

    await call()
    started = time.process_time()
    await asyncio.gather(*(worker() for _ in range(parallel)))
    return 1000 * (time.process_time() - started) / n


def bare_call(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Call:
    async def call() -> object:
        async with session.post(url, data=orjson.dumps(body), headers=HEADERS) as reply:
            return orjson.loads(await reply.read())

    return call


async def measure(
    arguments: argparse.Namespace, base_url: str, asked: dict[str, Any], label: str, *, goal: float
) -> None:
    """Every model server beside the bare client that sends what it sends."""
    chat = ResponsesConverter(return_token_id_information=False).request_to_chat(asked) | {"model": "mock"}
    costs: dict[str, float] = {}
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        bare = {
            "responses": bare_call(session, f"{base_url}/responses", asked | {"model": "mock"}),
            "chat": bare_call(session, f"{base_url}/chat/completions", chat),
        }
        for _ in range(arguments.rounds):
            for name, call in bare.items():
                note(costs, name, await cpu_ms(call, arguments.n, arguments.parallel))
            for name, server, settings in SERVERS:
                note(costs, name, await served(server, settings, base_url, asked, arguments))
    print(f"a call with {label}")
    for name, floor in (("responses", "bare client, Responses API"), ("chat", "bare client, Chat Completions")):
        print(f"  {floor:37} {costs[name]:8.3f} ms")
    for name, _, _ in SERVERS:
        floor = costs["chat" if name.startswith(("vllm", "openai_model, chat")) else "responses"]
        print(f"  {name:37} {costs[name]:8.3f} ms   {ratio(costs[name], floor, goal)}")


SERVERS: list[tuple[str, str, list[str]]] = [
    ("openai_model", "openai_model", []),
    ("openai_model, chat_completions", "openai_model", ["endpoint=chat_completions"]),
    ("vllm_model", "vllm_model", []),
]
if (ROOT / MODELS / "replay_model/app.py").exists():
    SERVERS.append(("replay_model", "replay_model", ["mode=replay"]))


def note(costs: dict[str, float], name: str, cost: float) -> None:
    costs[name] = min(cost, costs.get(name, float("inf")))


async def served(
    server: str, settings: list[str], base_url: str, asked: dict[str, Any], arguments: argparse.Namespace
) -> float:
    """CPU time of a call of a model server in this process."""
    with tempfile.TemporaryDirectory() as folder:
        if server == "replay_model":
            upstream = f"upstream={{base_url: '{base_url}', api_key: none, model: mock}}"
            await ask(config_of(Path(folder), server, base_url, "mode=record", upstream), asked, arguments)
        return await ask(config_of(Path(folder), server, base_url, *settings), asked, arguments)


async def ask(config: Any, asked: dict[str, Any], arguments: argparse.Namespace) -> float:
    async with host_gym(config) as gym:

        async def call() -> object:
            reply = await gym.client.post(server_name="policy_model", url_path="/v1/responses", json=asked)
            answer = orjson.loads(await reply.read())
            assert "output" in answer, answer
            return answer

        return await cpu_ms(call, arguments.n, arguments.parallel)


async def main(arguments: argparse.Namespace) -> None:
    bench_conversions()
    with mock_model() as base_url:
        await measure(arguments, base_url, ASKED, "a short question", goal=SHORT_GOAL)
        await measure(arguments, base_url, conversation(), "the conversation above", goal=LONG_GOAL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=32)
    uvloop.run(main(parser.parse_args()))
