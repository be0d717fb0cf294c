"""What the embedded model costs on top of its engine, and whether other servers keep replying meanwhile.

    python benchmarks_perf/bench_local_model.py [--rounds 5] [--requests 16] [--tokens 48]

The same requests go to ``xllamacpp`` directly, from threads, and through the servers of a Gym. Both sides have engines
with the same settings and generate the same number of tokens from the same prompts, in turns. CPU time is compared,
because other programs on the machine disturb it least.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.parse import parse_config
from nemo_gym.io.process import usable_cores
from nemo_gym.servers.gym import Gym, host_gym
from responses_api_models.local_model import engine as engines
from responses_api_models.local_model.grammar import completion_grammar
from responses_api_models.local_model.prompting import plain_messages
from responses_api_models.local_model.tool_calls import Tool
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights

SLOTS, CONTEXT = 8, 16384  # the defaults of the model server
CONFIGS = (
    "resources_servers/calculator/configs/calculator.yaml,responses_api_models/local_model/configs/local_model.yaml"
)
# Long enough that a call takes all the tokens that it may have.
PARAMETERS = {
    "type": "object",
    "properties": {"expression": {"type": "string", "minLength": 100, "description": "for example 3 * (4 + 5)"}},
    "required": ["expression"],
}
CALCULATOR = Tool("calculator", "Evaluates an arithmetic expression exactly.", PARAMETERS)
PAUSE_S = 0.01


@dataclass
class Cpu:
    """CPU seconds of this process, all threads."""

    seconds: float = 0.0


@contextmanager
def measured() -> Iterator[Cpu]:
    found, start = Cpu(), time.process_time()
    yield found
    found.seconds = time.process_time() - start


def question(number: int) -> dict[str, str]:
    text = f"Ann has {number + 12} apples and buys {3 * number + 5} more. How many apples does she have now?"
    return {"role": "user", "content": text}


class Direct:
    """The engine by itself."""

    def __init__(self, model: Path, tokens: int) -> None:
        xllamacpp = engines._import_xllamacpp()
        plans = engines.plan_engines(
            model_bytes=model.stat().st_size, slots=SLOTS, context=CONTEXT, cores=usable_cores()
        )
        self._servers = [xllamacpp.Server(engines._parameters(xllamacpp, model, plan, "")) for plan in plans]
        self._tokens = tokens

    def run(self, requests: int, *, tools: bool) -> None:
        with ThreadPoolExecutor(SLOTS) as threads:
            list(threads.map(lambda number: self._ask(number, tools=tools), range(requests)))

    def _ask(self, number: int, *, tools: bool) -> None:
        body: dict[str, Any] = {"max_tokens": self._tokens, "temperature": 0.7, "seed": number, "ignore_eos": True}
        body["messages"] = plain_messages([question(number)], [CALCULATOR] if tools else [])
        if tools:
            body["grammar"] = completion_grammar([CALCULATOR], mode="required").text
        completion = self._servers[number % len(self._servers)].handle_chat_completions(body)
        assert completion["usage"]["completion_tokens"] == self._tokens, completion


class Served:
    """The same through the servers of a Gym."""

    def __init__(self, gym: Gym, tokens: int) -> None:
        self._client = gym.client
        self._tokens = tokens

    async def run(self, requests: int, *, tools: bool) -> None:
        gate = asyncio.Semaphore(SLOTS)

        async def one(number: int) -> None:
            async with gate:
                await self._ask(number, tools=tools)

        await asyncio.gather(*(one(number) for number in range(requests)))

    async def _ask(self, number: int, *, tools: bool) -> None:
        body: dict[str, Any] = {"input": [question(number)], "max_output_tokens": self._tokens, "temperature": 0.7}
        body["metadata"] = {"extra_body": json.dumps({"seed": number, "ignore_eos": True})}
        if tools:
            offered = {"name": CALCULATOR.name, "description": CALCULATOR.description, "parameters": PARAMETERS}
            body |= {"tools": [{"type": "function", **offered}], "tool_choice": "required"}
        reply = await self._client.post(server_name="policy_model", url_path="/v1/responses", json=body)
        completion = await reply.json()
        assert completion["usage"]["output_tokens"] == self._tokens, completion

    async def call_tool(self) -> float:
        """How long another server takes to reply, in milliseconds."""
        start = time.perf_counter()
        reply = await self._client.post(
            server_name="calculator", url_path="/calculator", json={"expression": "3 * (4 + 5)"}
        )
        assert "27" in await reply.text()
        return (time.perf_counter() - start) * 1000


def memory_mb() -> float:
    """The memory of this process, counting the weights, which every engine maps, once."""
    others, path = 0, ""
    weights: dict[str, int] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0]:
            path = fields[5] if len(fields) > 5 else ""
        elif fields[0] == "Rss:" and path.endswith(".gguf"):
            weights[path] = max(weights.get(path, 0), int(fields[1]))
        elif fields[0] == "Rss:":
            others += int(fields[1])
    return (others + sum(weights.values())) / 1024


def show(what: str, value: str, goal: str = "") -> None:
    print(f"{what:<44}{value:>24}   {goal}", flush=True)


async def other_servers(served: Served, *, tools: bool, requests: int) -> list[float]:
    """How long the calculator takes for a reply while the model generates."""
    found: list[float] = []
    generating = asyncio.create_task(served.run(requests, tools=tools))
    while not generating.done():
        found.append(await served.call_tool())
        await asyncio.sleep(PAUSE_S)
    await generating
    return sorted(found)


async def compare_cpu(served: Served, direct: Direct, options: argparse.Namespace, *, tools: bool) -> None:
    ratios: list[float] = []
    for number in range(options.rounds + 1):
        with measured() as ours:
            await served.run(options.requests, tools=tools)
        with measured() as theirs:
            await asyncio.to_thread(direct.run, options.requests, tools=tools)
        if number:  # the first round fills the caches of prompts
            ratios.append(ours.seconds / theirs.seconds)
    spread = f"{statistics.median(ratios):.3f}  ({min(ratios):.2f} to {max(ratios):.2f})"
    show(f"CPU beside xllamacpp alone, {'tool calls' if tools else 'text'}", spread, "at most 1.10")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    model = await ensure_weights(SMOLLM2, cache_folder(os.environ))

    async with host_gym(parse_config([f"+config_paths=[{CONFIGS}]"]).config) as gym:
        before = memory_mb()
        started = time.perf_counter()
        await Served(gym, tokens=1).run(1, tools=False)
        show("load and a first token", f"{time.perf_counter() - started:.2f} s", "under 3 s")
        served = Served(gym, options.tokens)
        await served.run(2 * SLOTS, tools=False)
        show(f"memory with {SLOTS} slots", f"{memory_mb():.0f} MB", f"under 600 MB; {before:.0f} MB before loading")
        for tools in (False, True):
            times = await other_servers(served, tools=tools, requests=options.requests)
            spread = f"{times[len(times) // 2]:.1f}, {times[int(len(times) * 0.99)]:.1f}, {times[-1]:.1f} ms"
            show("another server's reply meanwhile", spread, "median, 99 %, worst; under 50 ms")
        direct = await asyncio.to_thread(Direct, model, options.tokens)
        for tools in (False, True):
            await compare_cpu(served, direct, options, tools=tools)


if __name__ == "__main__":
    asyncio.run(main())
