"""Saved rollouts are scored again, exactly once each, with failures that say what they are."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request
from omegaconf import OmegaConf

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.judge import JudgeError
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.reverify import Reverification, SavedRollouts, ToolReplay, VerifyAttempt, reverify_owed
from nemo_gym.rollouts.run import RunControl
from nemo_gym.rollouts.tally import Summary
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app

RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class Row(BaseVerifyRequest):
    do: str = ""


class Counter(SimpleResourcesServer):
    """Rewards the number of times that its tool was called in the session."""

    counts: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it
    seeded: list[str] = []  # noqa: RUF012
    verified: int = 0

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:  # type: ignore[override]
        self.seeded.append(request.session[SESSION_ID_KEY])
        self.counts[request.session[SESSION_ID_KEY]] = 0
        return BaseSeedSessionResponse()

    async def add(self, request: Request) -> int:
        self.counts[request.session[SESSION_ID_KEY]] += 1
        return self.counts[request.session[SESSION_ID_KEY]]

    async def verify(self, request: Request, body: Row) -> BaseVerifyResponse:  # type: ignore[override]
        self.verified += 1
        match body.do:
            case "crash":
                raise ValueError("as asked")
            case "judge":
                raise JudgeError("no verdict")
            case "refuse":
                raise HTTPException(429, headers={"Retry-After": "0"})
        return BaseVerifyResponse(**body.model_dump(), reward=float(self.counts[request.session[SESSION_ID_KEY]]))


@pytest.fixture
def server() -> Counter:
    client = ServerClient.detached()
    config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="counter")
    counter = Counter(config=config, server_client=client)
    client.attach("counter", LocalServer(build_app(counter), label="counter", base_url="http://127.0.0.1:1"))
    return counter


def record(task: int, rollout: int = 0, do: str = "", calls: int = 0, **fields: Any) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    for number in range(calls):
        output.append({"type": "function_call", "call_id": f"c{number}", "name": "add", "arguments": "{}"})
        output.append({"type": "function_call_output", "call_id": f"c{number}", "output": str(number + 1)})
    return {
        "_ng_task_index": task,
        "responses_create_params": {"input": f"question {task}"},
        "response": {**RESPONSE, "output": output},
        "reward": 0.5,
        "do": do,
        "agent_ref": {"name": "alpha"},
        **fields,
        "_ng_rollout_index": rollout,
    }


def save(path: Path, *records: dict[str, Any], tail: str = "") -> SavedRollouts:
    path.write_text("".join(json.dumps(one) + "\n" for one in records) + tail)
    return _SelfClosing(path)


class _SelfClosing(SavedRollouts):
    """Closes its file when the test is over."""

    def __del__(self) -> None:
        self.close()


async def run(saved: SavedRollouts, server: Counter, **options: Any) -> Summary:
    tools = options.pop("tools", None)
    attempt = VerifyAttempt(
        client=server.server_client, saved=saved, verifiers={"alpha": "counter"}, timeout_s=5.0, tools=tools
    )
    wanted = Reverification(saved=saved, output=saved.path.with_name("new.jsonl"), **options)
    control = RunControl(limit=FixedLimit(4), pause=lambda *_: 0.0)
    return await reverify_owed(wanted, attempt, control)


def results(saved: SavedRollouts) -> dict[tuple[int, int], float]:
    lines = map(json.loads, saved.path.with_name("new.jsonl").read_text().splitlines())
    return {(one["_ng_task_index"], one["_ng_rollout_index"]): one["reward"] for one in lines}


async def test_every_rollout_is_scored_once_in_a_session_of_its_own(
    tmp_path: Path, server: Counter, read_jsonl: Callable[[Path], list[Any]]
) -> None:
    saved = save(tmp_path / "old.jsonl", record(1), record(0, 1), record(0, 0), tail='{"torn')
    summary = await run(saved, server)
    assert (summary.tally.completed, summary.exit_code) == (3, 0)
    assert results(saved) == {(1, 0): 0.0, (0, 1): 0.0, (0, 0): 0.0}
    assert len(set(server.seeded)) == server.verified == 3
    assert saved.left_out == 1
    new = read_jsonl(tmp_path / "new.jsonl")
    assert all(one["agent_ref"] == {"name": "alpha"} and one["response"]["id"] == "r" for one in new)


async def test_recorded_tool_calls_can_be_made_again_first(tmp_path: Path, server: Counter) -> None:
    odd = record(1, calls=2)
    odd["response"]["output"] += [
        {"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "y", "name": "add", "arguments": "{"},
        {"type": "function_call_output", "call_id": "y", "output": "no JSON"},
    ]
    odd["response"]["output"][1]["output"] = "7"
    saved = save(tmp_path / "old.jsonl", record(0, calls=3), odd)
    tools = ToolReplay()
    await run(saved, server, tools=tools)
    assert results(saved) == {(0, 0): 3.0, (1, 0): 2.0}
    assert tools == ToolReplay(calls=5, different=1)


async def test_failures_are_typed_and_never_a_reward(
    tmp_path: Path, server: Counter, read_jsonl: Callable[[Path], list[Any]]
) -> None:
    kinds = ("crash", "judge", "refuse")
    saved = save(
        tmp_path / "old.jsonl", *(record(n, do=do) for n, do in enumerate(kinds)), record(3, response=None), record(4)
    )
    summary = await run(saved, server)
    assert results(saved) == {(4, 0): 0.0}
    assert summary.exit_code == 3
    failures = {
        (one["_ng_task_index"], one["_ng_failure_class"]) for one in read_jsonl(tmp_path / "new_failures.jsonl")
    }
    assert failures == {
        (0, "verifier_error"),
        (1, "judge_failed"),
        (2, "rate_limited"),
        (3, "invalid_response"),
    }


async def test_what_is_left_is_scored_when_resumed(tmp_path: Path, server: Counter) -> None:
    saved = save(tmp_path / "old.jsonl", *(record(n) for n in range(5)))
    await run(saved, server)
    new = tmp_path / "new.jsonl"
    lines = new.read_bytes().splitlines(keepends=True)
    new.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    await run(saved, server, resume=True)
    assert server.verified == 5 + 3
    assert sorted(results(saved)) == [(n, 0) for n in range(5)]
    assert len(new.read_bytes().splitlines()) == 5


async def test_rows_come_from_the_plan_where_there_is_one(tmp_path: Path, server: Counter) -> None:
    bare = {name: value for name, value in record(0).items() if name != "do"}
    plan = {name: value for name, value in record(0, do="crash").items() if name not in ("response", "reward")}
    other = record(7, extra="kept")
    saved = save(tmp_path / "old.jsonl", bare, other)
    unused = {**plan, "_ng_rollout_index": 5}
    (tmp_path / "old_materialized_inputs.jsonl").write_text(json.dumps(plan) + "\n" + json.dumps(unused) + "\n")
    rows = list(saved.rows())
    assert rows[0] == plan
    assert rows[1] == {name: value for name, value in other.items() if name not in ("response", "reward")}
    assert len(rows) == 2
    await run(saved, server)
    assert results(saved) == {(7, 0): 0.0}


async def test_the_rollouts_themselves_are_not_written_over(tmp_path: Path, server: Counter) -> None:
    saved = save(tmp_path / "new.jsonl", record(0))
    before = saved.path.read_bytes()
    with pytest.raises(ConfigError, match="would replace them"):
        await run(saved, server)
    assert saved.path.read_bytes() == before


async def test_a_verifier_that_takes_too_long_is_given_up(tmp_path: Path, server: Counter) -> None:
    saved = save(tmp_path / "old.jsonl", record(0))

    class Slow(ServerClient):
        async def post(self, *args: Any, **options: Any) -> Any:
            await asyncio.sleep(60)

    slow = Slow(head_server_config=BaseServerConfig(host="", port=1), global_config_dict=OmegaConf.create({}))
    attempt = VerifyAttempt(client=slow, saved=saved, verifiers={"alpha": "counter"}, timeout_s=0.01)
    wanted = Reverification(saved=saved, output=tmp_path / "new.jsonl")
    summary = await reverify_owed(wanted, attempt, RunControl(limit=FixedLimit(1), pause=lambda *_: 0.0))
    assert set(summary.tally.failures) == {"timeout"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigPathNotFoundError, match="no such file"):
        SavedRollouts(tmp_path / "missing.jsonl")


def test_long_lines_and_repeats_are_read_as_they_are(tmp_path: Path) -> None:
    long = record(0, text="x" * 300_000)
    saved = save(tmp_path / "old.jsonl", long, record(1), record(0, text="again"))
    assert saved.record(RolloutKey(0, 0)) == long
    assert (len(saved), saved.left_out, saved.agents()) == (2, 1, ["alpha"])
    saved.close()
