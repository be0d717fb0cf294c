"""What the local model's server costs on top of its engine, and whether others are served meanwhile.

    python benchmarks_perf/bench_local_model.py [--rounds 5] [--requests 16] [--tokens 48]

The same requests are sent to ``xllamacpp`` directly, from threads, and through our server. Both generate the same
number of tokens from the same prompts; what is compared is CPU time, which other programs on the machine disturb least.
"""

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from responses_api_models.local_model import engine as engines
from responses_api_models.local_model.app import LocalModel, LocalModelConfig
from responses_api_models.local_model.options import read_wish
from responses_api_models.local_model.prompting import plain_messages
from responses_api_models.local_model.toolbox import tool_grammar
from responses_api_models.local_model.worked_examples import Tool

PARALLEL = 4
CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluates an arithmetic expression exactly.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "minLength": 100, "description": "for example 3 * (4 + 5)"}},
        "required": ["expression"],
    },
}


def question(number: int) -> str:
    return f"Ann has {number + 12} apples and buys {3 * number + 5} more. How many apples does she have now?"


class Direct:
    """The engine by itself."""

    def __init__(self, model: Path, tokens: int) -> None:
        xllamacpp = engines._import_xllamacpp()
        plans = engines.plan_engines(model_bytes=0, slots=PARALLEL, context=8192, cores=engine_count())
        keys = ["direct"] * len(plans)
        self.servers = [
            xllamacpp.Server(engines._parameters(xllamacpp, model, p, k)) for p, k in zip(plans, keys, strict=True)
        ]
        self.tokens = tokens

    def chat(self, number: int) -> None:
        body = self._body(number) | {"messages": [{"role": "user", "content": question(number)}]}
        self.servers[number % len(self.servers)].handle_chat_completions(body)

    def call(self, number: int) -> None:
        tool = Tool(CALCULATOR["name"], CALCULATOR["description"], CALCULATOR["parameters"])  # type: ignore[arg-type]
        messages = plain_messages([{"role": "user", "content": question(number)}], [tool])
        body = self._body(number) | {"messages": messages, "grammar": tool_grammar([tool], mode="required")}
        self.servers[number % len(self.servers)].handle_chat_completions(body)

    def _body(self, number: int) -> dict[str, Any]:
        return {"max_tokens": self.tokens, "temperature": 0.7, "seed": number, "ignore_eos": True}

    def run(self, requests: int, *, tools: bool) -> None:
        with ThreadPoolExecutor(PARALLEL) as threads:
            list(threads.map(self.call if tools else self.chat, range(requests)))


class Served:
    """The same through our server."""

    def __init__(self, tokens: int) -> None:
        config = LocalModelConfig(host="", port=0, entrypoint="", name="", extra_body={"ignore_eos": True})
        self.server = LocalModel(config=config, server_client=MagicMock(spec=ServerClient))
        self.tokens = tokens

    async def run(self, requests: int, *, tools: bool) -> None:
        gate = asyncio.Semaphore(PARALLEL)

        async def one(number: int) -> None:
            async with gate:
                await self.server.responses(self._params(number, tools=tools))

        await asyncio.gather(*(one(number) for number in range(requests)))

    def _params(self, number: int, *, tools: bool) -> NeMoGymResponseCreateParamsNonStreaming:
        fields: dict[str, Any] = {"tools": [CALCULATOR], "tool_choice": "required"} if tools else {}
        return NeMoGymResponseCreateParamsNonStreaming(
            input=[{"role": "user", "content": question(number)}],
            max_output_tokens=self.tokens,
            temperature=0.7,
            metadata={"extra_body": f'{{"seed": {number}}}'},
            **fields,
        )


def engine_count() -> int:
    from responses_api_models.local_model.cores import usable_cores  # noqa: PLC0415

    return usable_cores()


def cpu_of(work: Callable[[], Any]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


async def worst_delay(work: Any) -> list[float]:
    """How late a 5 ms timer of the same event loop fires while the work is done."""
    delays: list[float] = []
    task = asyncio.ensure_future(work)
    while not task.done():
        start = time.perf_counter()
        await asyncio.sleep(0.005)
        delays.append((time.perf_counter() - start - 0.005) * 1000)
    await task
    return sorted(delays)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()

    served = Served(options.tokens)
    path = await served.server._find_model()
    start, cpu = time.perf_counter(), time.process_time()
    await served.server._model.pool.load()
    print(f"load: {time.perf_counter() - start:.2f} s wall, {time.process_time() - cpu:.2f} s CPU")
    await served.run(PARALLEL, tools=False)
    print(f"memory with {PARALLEL} slots: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")

    direct = await asyncio.to_thread(Direct, path, options.tokens)
    for tools in (False, True):
        ratios = []
        for number in range(options.rounds + 1):
            ours = time.process_time()
            await served.run(options.requests, tools=tools)
            ours = time.process_time() - ours
            theirs = await asyncio.to_thread(cpu_of, lambda: direct.run(options.requests, tools=tools))  # noqa: B023
            if number:  # the first round fills the caches of prompts
                ratios.append(ours / theirs)
                print(f"  {'tools' if tools else 'text '}: direct {theirs:.2f} s CPU, served {ours:.2f} s CPU")
        print(f"CPU of served over direct, {'tools' if tools else 'text'}: {statistics.median(ratios):.3f} (median)")
    delays = await worst_delay(served.run(options.requests, tools=True))
    print(
        f"event loop while generating: timer late by {delays[len(delays) // 2]:.1f} ms (median), "
        f"{delays[int(len(delays) * 0.99)]:.1f} ms (99 %), {delays[-1]:.1f} ms (worst)"
    )


def read_only_check() -> None:
    """Keep the import of what both sides must share."""
    assert read_wish


if __name__ == "__main__":
    asyncio.run(main())
