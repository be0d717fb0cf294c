#!/usr/bin/env python3
"""What long rollouts with token ids cost, beside a bare client that makes the same calls to the endpoint.

    python benchmarks_perf/bench_long.py [--turns 50 200] [--rollouts 4] [--rounds 3] [--memory]

A rollout of the simple agent calls a tool in every turn, and the model writes 200 tokens a turn. The endpoint returns
tokens as vLLM does and has a process of its own. The bare client sends what the rollout sent, parses every reply and
does nothing else. CPU time of one process; rounds are interleaved, and the best one counts. Also printed: how our own
share grows, the bytes from the agent to the model server with ids and without, and the size of a saved row beside its
messages and ids, each once. ``--memory`` measures 64 rollouts of 100 turns at once instead.
"""

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson
import uvloop
from processes import ROOT, mock_engine

from nemo_gym.config.parse import parse_config
from nemo_gym.io.process import settle_heap
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.store.outcome import Completed, PlannedRollout
from nemo_gym.schemas.call_tokens import read_calls
from nemo_gym.schemas.record import Record
from nemo_gym.servers.direct import handlers
from nemo_gym.servers.gym import host_gym

GOAL, GROWTH_GOAL, WIRE_GOAL, ROW_GOAL, MEMORY_GOAL_MB = 1.8, 4.5, 1.2, 1.2, 512
AGENT = "example_single_tool_call_simple_agent"
TASK = json.loads((ROOT / "resources_servers/example_single_tool_call/data/example.jsonl").read_text().splitlines()[0])


def gym_config(url: str, *, ids: bool = True) -> Any:
    """The weather environment with a model server that records tokens."""
    settings = f"++policy_model.responses_api_models.vllm_model.return_token_id_information={str(ids).lower()}"
    environment = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"
    model = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
    return parse_config(
        [
            f"+config_paths=[{environment},{model}]",
            f"+policy_base_url={url}",
            "+policy_api_key=none",
            "+policy_model_name=mock",
            f"++{AGENT}.responses_api_agents.simple_agent.max_steps=1000",
            settings,
        ]
    ).config


@contextmanager
def counted_bytes() -> Iterator[dict[str, int]]:
    """Counts the bytes that the agent sends to the model server."""
    sent = {"bytes": 0}
    call = handlers.LocalServer.call

    def counting(self: Any, method: str, path: str, **options: Any) -> Any:
        if path == "/v1/responses" and isinstance(options.get("json"), dict) and "input" in options["json"]:
            sent["bytes"] += len(orjson.dumps(options["json"]))
        return call(self, method, path, **options)

    handlers.LocalServer.call = counting  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        handlers.LocalServer.call = call  # type: ignore[method-assign]


async def collect(attempt: AgentAttempt, rollouts: int) -> list[bytes]:
    """Run rollouts at once; their lines."""
    plan = [
        PlannedRollout.of({**TASK, "_ng_task_index": 0, "_ng_rollout_index": number, "agent_ref": {"name": AGENT}})
        for number in range(rollouts)
    ]

    async def run(planned: PlannedRollout) -> bytes:
        outcome = await attempt(planned)
        assert isinstance(outcome, Completed), outcome.line[:2000]
        return outcome.line

    return await asyncio.gather(*(asyncio.create_task(run(planned)) for planned in plan))


async def replay(url: str, recorded: list[tuple[str, Any]], rollouts: int) -> None:
    """The bare client: the same requests, written and read as JSON."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    connector, root = aiohttp.TCPConnector(limit=0), url.removesuffix("/v1")
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def run() -> None:
            for path, body in recorded:
                async with session.post(root + path, data=orjson.dumps(body), headers=headers) as reply:
                    orjson.loads(await reply.read())

        await asyncio.gather(*(run() for _ in range(rollouts)))


async def recorded(url: str) -> list[tuple[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(url.removesuffix("/v1") + "/recorded") as reply:
        found = await reply.read()
    return [(path, orjson.loads(body)) for path, body in orjson.loads(found)]


async def measure(turns: int, rollouts: int, rounds: int) -> dict[str, float]:
    """CPU milliseconds a rollout, ours and the bare client's, and sizes."""
    with mock_engine(turns) as url:
        async with host_gym(gym_config(url)) as gym:
            attempt = AgentAttempt(gym.client)
            await collect(attempt, 1)
            settle_heap()  # as the command does
            await recorded(url)
            with counted_bytes() as sent:
                [line] = await collect(attempt, 1)
            requests = await recorded(url)
            ours, bare = [], []
            for _ in range(rounds):
                started = time.process_time()
                await collect(attempt, rollouts)
                ours.append(time.process_time() - started)
                await recorded(url)
                started = time.process_time()
                await replay(url, requests, rollouts)
                bare.append(time.process_time() - started)
                await recorded(url)
        async with host_gym(gym_config(url, ids=False)) as gym:
            attempt = AgentAttempt(gym.client)
            with counted_bytes() as plain:
                await collect(attempt, 1)
    scale = 1000 / rollouts
    wire = {"sent_mb": sent["bytes"] / 1e6, "wire": sent["bytes"] / plain["bytes"]}
    calls = len(requests) / turns
    return {"ours": min(ours) * scale, "bare": min(bare) * scale, "calls": calls, **wire, **sizes(line)}


def sizes(line: bytes) -> dict[str, float]:
    """The size of a row, and that of what it has to hold: its messages and ids, each once."""
    record = Record.parse(line)
    calls = list(read_calls(record.items))
    assert all(call.continues for call in calls)
    ids = sum(len(orjson.dumps([call.added, call.generation, call.log_probs])) for call in calls)
    names = ("prompt_token_ids_added", "generation_token_ids", "generation_log_probs", "generation_sampling")
    items = [{name: value for name, value in item.items() if name not in names} for item in record.items]
    rest = {**record.fields, "response": {**record.response, "output": items}}
    return {"row_mb": len(line) / 1e6, "row": len(line) / (ids + len(orjson.dumps(rest)))}


async def memory() -> None:
    with mock_engine(100) as url:
        async with host_gym(gym_config(url)) as gym:
            attempt = AgentAttempt(gym.client)
            await collect(attempt, 64)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"64 rollouts of 100 turns at once: {peak:.0f} MB (goal {MEMORY_GOAL_MB}) {verdict(peak <= MEMORY_GOAL_MB)}")


def verdict(is_met: bool) -> str:  # noqa: FBT001 - printed
    return "ok" if is_met else "MISSED"


def report(found: dict[int, dict[str, float]]) -> None:
    for turns, each in found.items():
        ratio = each["ours"] / each["bare"]
        print(
            f"{turns} turns: {each['ours']:.0f} ms of CPU, bare client {each['bare']:.0f} ms: {ratio:.2f} x "
            f"(goal {GOAL}) {verdict(ratio <= GOAL)}; {each['calls']:.1f} requests a turn"
        )
        print(f"  agent to model server {each['sent_mb']:.2f} MB, {each['wire']:.3f} x without ids (goal {WIRE_GOAL})")
        print(f"  saved row {each['row_mb']:.2f} MB, {each['row']:.3f} x its messages and ids (goal {ROW_GOAL})")
    low, high = min(found), max(found)
    if low != high:
        own = [found[turns]["ours"] - found[turns]["bare"] for turns in (low, high)]
        growth, most = own[1] / own[0], GROWTH_GOAL * high / low / 4
        print(f"our own share from {low} to {high} turns: {growth:.1f} x (goal {most:.1f}) {verdict(growth <= most)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        uvloop.run(memory())
        return
    report({turns: uvloop.run(measure(turns, options.rollouts, options.rounds)) for turns in options.turns})


if __name__ == "__main__":
    main()
