"""``run_examples`` as trainers of NeMo RL's kind call it: rows in, results in the order in which they end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf", reason="needs the extra train")

from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.training.sequences import sequence_of
from tests.ports import free_port
from tests.training.gym_config import AGENT, gym_config, short_tasks


async def consume(helper: RolloutCollectionHelper, rows: list[dict[str, Any]], head: Any) -> list[dict[str, Any]]:
    """What such a trainer does: await every result, check the tokens itself, keep a log of messages."""
    results: list[dict[str, Any]] = []
    for awaitable in helper.run_examples(rows, head_server_config=head):
        row, result = await awaitable
        seen: list[int] = []
        log: list[dict[str, Any]] = []
        for item in result["response"]["output"]:
            if "generation_token_ids" not in item:
                continue
            prompt, generation = item["prompt_token_ids"], item["generation_token_ids"]
            assert prompt[: len(seen)] == seen, "the turns are not one sequence"
            log.append({"role": "user", "token_ids": prompt[len(seen) :]})
            log.append({"role": "assistant", "token_ids": generation, "log_probs": item["generation_log_probs"]})
            seen = [*prompt, *generation]
        results.append({"index": row["_rowidx"], "message_log": log, "reward": result["reward"], "full": result})
    await close_http_client()
    return sorted(results, key=lambda result: result["index"])


async def test_a_trainer_gets_every_row_back_with_its_tokens(tiny_model: Path) -> None:
    rows = [{**task, "agent_ref": {"name": AGENT}, "_rowidx": n} for n, task in enumerate(short_tasks(6))]
    config = gym_config(tiny_model)
    config.head_server.port = free_port()
    async with host_gym(config, head=True) as gym:
        # A trainer has an event loop of its own and finds the servers through their head server.
        head = gym.client.head_server_config
        results = await asyncio.to_thread(asyncio.run, consume(RolloutCollectionHelper(), rows, head))
    assert [result["index"] for result in results] == list(range(6))
    for number, result in enumerate(results):
        full = {**result["full"], "_ng_task_index": number, "_ng_rollout_index": 0}
        assert sequence_of(full).message_log() == result["message_log"]
        assert result["reward"] in {0.0, 1.0}
