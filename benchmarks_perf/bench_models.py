#!/usr/bin/env python3
"""What model servers and converters cost, compared with the work that cannot be avoided.

    python benchmarks_perf/bench_models.py [--n 500] [--rounds 20] [--parallel 32]
    python benchmarks_perf/bench_models.py --instructions [--n 60] [--parallel 8] [--only vllm]

Conversions of a 100-item conversation are measured beside reading and writing its JSON (at most 3 times that), calls of
the model servers beside a bare client that sends the same upstream request (at most 1.7 times that for a short
question, 1.6 times for the conversation). With token ids, every completion in the conversation carries its tokens, as a
trainer needs them. All in one process and CPU time only; the mock endpoints have their own. Rounds are interleaved,
because machines are shared and noisy, and the best one counts.

``--instructions`` counts instructions with valgrind instead, which do not depend on what else the machine does: those
of N calls, after some that are not counted, in user mode. ``--profile`` writes where they were spent.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import aiohttp
import orjson
import uvloop
from mock_engine import END, completion_text, rendered, tokens_of
from processes import ROOT, mock_engine, mock_model, run

from nemo_gym.config.parse import parse_config
from nemo_gym.conversion.anthropic.message_requests import messages_to_request, request_to_messages
from nemo_gym.conversion.completion_tokens import UNTRUNCATED
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.servers import event_loop
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from responses_api_models.vllm_model.tokens import OPTIONS

TASK = json.loads((ROOT / "resources_servers/example_single_tool_call/data/example.jsonl").read_text().splitlines()[0])
REQUEST: dict[str, Any] = TASK["responses_create_params"]
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer none"}
CONVERTER = ResponsesConverter(return_token_id_information=False, past_reasoning="separate")
MODELS = "responses_api_models"
CONVERSION_GOAL, SHORT_GOAL, LONG_GOAL = 3.0, 1.3, 1.6
TOKEN_IDS = "token ids"
Call = Callable[[], Awaitable[object]]


def conversation(items: int = 100) -> dict[str, Any]:
    """A typical conversation of an agent: reasoning, text, calls and results of ordinary length."""
    thought = 'The user wants "the weather".\nI have a tool for that: get_weather.\n' * 6
    text = "Let me look that up for you.\n- first the city\n- then the day\n" * 3
    result = json.dumps({"city": "San Francisco", "days": [{"day": day, "sky": "fog"} for day in range(12)]})
    history: list[dict[str, Any]] = [{"role": "user", "content": text}]
    while len(history) < items:
        name = f"call_{len(history)}"
        history += [
            {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": thought}]},
            {
                "type": "message",
                "id": f"msg_{name}",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
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
    return REQUEST | {"input": history[:items]}


def with_tokens(request: dict[str, Any]) -> dict[str, Any]:
    """A request whose completions carry the tokens that they were made of."""
    if isinstance(request["input"], str):
        return request
    history: list[dict[str, Any]] = []
    for item, following in zip(request["input"], [*request["input"][1:], None], strict=True):
        history.append(item)
        if item.get("role", "assistant") != "assistant" or item.get("type") == "function_call_output":
            continue
        if following is None or following.get("type") == "function_call_output" or following.get("role") == "user":
            *before, completion = CONVERTER.request_to_chat(request | {"input": history})["messages"]
            generation = [*tokens_of(completion_text(completion)), END]
            tokens = {"prompt_token_ids": rendered(before, completion_follows=True), "generation_token_ids": generation}
            history[-1] = item | tokens | {"generation_log_probs": [-0.25] * len(generation)}
    return request | {"input": history}


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
    request = conversation()
    encoded = orjson.dumps(request)
    converter = ResponsesConverter(return_token_id_information=False)
    chat = converter.request_to_chat(request)
    messages = request_to_messages(request, max_tokens=9).body
    floor = microseconds(lambda: orjson.dumps(orjson.loads(encoded)))
    there = microseconds(lambda: converter.request_to_chat(request))
    back = microseconds(lambda: converter.history_to_items(chat["messages"]))
    print(f"a conversation of {len(request['input'])} items, {len(encoded) / 1000:.0f} kB")
    print(f"  JSON, read and written                {floor:8.0f} µs")
    both = there + back
    print(f"  to Chat Completions and back          {both:8.0f} µs   {ratio(both, floor, CONVERSION_GOAL)}")
    there = microseconds(lambda: request_to_messages(request, max_tokens=9))
    back = microseconds(lambda: messages_to_request(messages))
    both = there + back
    print(f"  to Anthropic's Messages and back      {both:8.0f} µs   {ratio(both, floor, CONVERSION_GOAL)}")


def ratio(cost: float, floor: float, goal: float) -> str:
    return f"{cost / floor:.2f} x (goal {goal:g}{'' if cost <= goal * floor else ', MISSED'})"


def config_of(folder: Path, name: str, base_url: str, *extra: str) -> Any:
    overrides = {"config_paths": [f"{MODELS}/{name}/configs/{name}.yaml"], "policy_model_name": "mock"}
    overrides |= {"policy_base_url": base_url, "policy_api_key": "none", "policy_recording": str(folder / "r.jsonl")}
    settings = [f"++policy_model.{MODELS}.{name}.{setting}" for setting in extra]
    argv = [f"+{key}={json.dumps(value) if isinstance(value, list) else value}" for key, value in overrides.items()]
    return parse_config(argv + settings).config


async def cpu_ms(call: Call, n: int, parallel: int) -> float:
    """CPU time of a call, many at once."""
    await call()
    started = time.process_time()
    await repeat(call, n, parallel)
    return 1000 * (time.process_time() - started) / n


async def repeat(call: Call, n: int, parallel: int) -> None:
    pending = iter(range(n))

    async def worker() -> None:
        for _ in pending:
            await call()

    await asyncio.gather(*(worker() for _ in range(parallel)))


BARE = {
    "bare client, Responses API": "/responses",
    "bare client, Chat Completions": "/chat/completions",
    "bare client, Messages": "/messages",
    "bare client, token ids": "/chat/completions",
}
SERVERS: dict[str, tuple[str, list[str]]] = {
    "openai_model": ("openai_model", []),
    "openai_model, chat_completions": ("openai_model", ["endpoint=chat_completions"]),
    "vllm_model": ("vllm_model", []),
    "anthropic_model": ("anthropic_model", []),
    "vllm_model, token ids": ("vllm_model", ["return_token_id_information=true"]),
}
if (ROOT / MODELS / "replay_model/app.py").exists():
    SERVERS["replay_model"] = ("replay_model", ["mode=replay"])


def floor_of(name: str) -> str:
    """The bare client that sends what a server sends."""
    responses, chat, messages, tokens = BARE
    if name.endswith(TOKEN_IDS):
        return tokens
    if name.startswith("anthropic"):
        return messages
    return chat if name.startswith(("vllm", "openai_model, chat")) else responses


def bare_body(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """What a bare client sends."""
    if BARE[name] == "/responses":
        return request
    if BARE[name] == "/messages":
        return request_to_messages(request, max_tokens=8192).body
    chat = CONVERTER.request_to_chat(request)
    return {**UNTRUNCATED, **OPTIONS, **chat} if name.endswith(TOKEN_IDS) else chat


@asynccontextmanager
async def caller(name: str, base_url: str, request: dict[str, Any], folder: Path) -> AsyncIterator[Call]:
    """What makes a call of a bare client or of a model server in this process."""
    if name in BARE:
        body = bare_body(name, request)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield bare_call(session, base_url + BARE[name], body | {"model": "mock"})
        return
    if name.endswith(TOKEN_IDS):
        request = with_tokens(request)
    server, settings = SERVERS[name]
    if server == "replay_model":
        upstream = f"upstream={{base_url: '{base_url}', api_key: none, model: mock}}"
        async with host_gym(config_of(folder, server, base_url, "mode=record", upstream)) as gym:
            await server_call(gym.client, request)()
    async with host_gym(config_of(folder, server, base_url, *settings)) as gym:
        yield server_call(gym.client, request)


def bare_call(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Call:
    async def call() -> object:
        async with session.post(url, data=orjson.dumps(body), headers=HEADERS) as reply:
            return orjson.loads(await reply.read())

    return call


def server_call(client: GymClient, request: dict[str, Any]) -> Call:
    async def call() -> object:
        reply = await client.post(server_name="policy_model", url_path="/v1/responses", json=request)
        completion = orjson.loads(await reply.read())
        assert "output" in completion, completion
        return completion

    return call


async def cpu_times(
    options: argparse.Namespace, names: list[str], base_urls: dict[str, str], request: dict[str, Any]
) -> list[float]:
    """Milliseconds of CPU time of a call; the best of several rounds."""
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        calls = [
            await opened.enter_async_context(caller(name, base_urls[name], request, Path(folder))) for name in names
        ]
        rounds = [[await cpu_ms(call, options.n, options.parallel) for call in calls] for _ in range(options.rounds)]
    return [min(costs) for costs in zip(*rounds, strict=True)]


def counted(options: argparse.Namespace, names: list[str], base_urls: dict[str, str], request: str) -> list[float]:
    """Thousands of instructions of a call."""
    given = ["--request", request, "--parallel", str(options.parallel), "--n", str(options.n)]
    with tempfile.TemporaryDirectory() as folder:
        counts = options.profile or Path(folder) / "counts"
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}"]
        return [
            instructions([*valgrind, sys.executable, __file__, *given, *calls], counts) / options.n / 1000
            for calls in (["--calls", name, "--base-url", base_urls[name]] for name in names)
        ]


def instructions(command: list[str], counts: Path) -> int:
    """Count while a process makes its calls: it says when it is ready, and then waits for a line each time."""
    with subprocess.Popen(
        command, stdin=PIPE, stdout=PIPE, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for state in ("on", "off"):
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"{' '.join(command)} failed")
            run(["callgrind_control", "-i", state, str(process.pid)])
            print(file=process.stdin, flush=True)
    found = re.search(r"^totals: (\d+)", counts.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{counts} has no total")
    return int(found[1])


async def only_calls(options: argparse.Namespace) -> None:
    """Make calls of one kind, for valgrind to count."""
    # Under valgrind everything takes fifty times as long, so what happens every so often would count fifty-fold.
    event_loop.HEARTBEAT_S = 3600
    event_loop.LagWatch.watch = lambda _: None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        async with caller(options.calls, options.base_url, REQUESTS[options.request], Path(folder)) as call:
            await repeat(call, 3 * options.parallel, options.parallel)
            print("ready", flush=True)
            sys.stdin.readline()
            await repeat(call, options.n, options.parallel)
            print("ready", flush=True)
            sys.stdin.readline()


REQUESTS = {"a short question": REQUEST, "the conversation above": conversation()}


async def main(options: argparse.Namespace) -> None:
    if options.calls:
        await only_calls(options)
        return
    if not options.instructions:
        bench_conversions()
    servers = [name for name in SERVERS if options.only in name]
    names = [name for name in BARE if name in map(floor_of, servers)] + servers
    unit = "k instructions" if options.instructions else "ms"
    with mock_model() as base_url, mock_engine() as engine_url:
        base_urls = {name: engine_url if name.endswith(TOKEN_IDS) else base_url for name in names}
        for (label, request), goal in zip(REQUESTS.items(), (SHORT_GOAL, LONG_GOAL), strict=True):
            print(f"a call with {label}", flush=True)
            if options.instructions:
                costs = dict(zip(names, counted(options, names, base_urls, label), strict=True))
            else:
                costs = dict(zip(names, await cpu_times(options, names, base_urls, request), strict=True))
            for name, cost in costs.items():
                beside = "" if name in BARE else ratio(cost, costs[floor_of(name)], goal)
                print(f"  {name:37} {cost:8.3f} {unit}   {beside}".rstrip(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, help="calls in a round; 500, or 60 with --instructions")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--parallel", type=int, help="calls at once; 32, or 8 with --instructions")
    parser.add_argument("--instructions", action="store_true", help="count instructions with valgrind")
    parser.add_argument("--only", default="", help="only servers with this in their name")
    parser.add_argument("--profile", type=Path, help="file for callgrind's counts of the last server")
    parser.add_argument("--calls", help=argparse.SUPPRESS)
    parser.add_argument("--request", help=argparse.SUPPRESS)
    parser.add_argument("--base-url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.n = given.n or (60 if given.instructions else 500)
    given.parallel = given.parallel or (8 if given.instructions else 32)
    uvloop.run(main(given))
