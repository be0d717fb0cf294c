"""Rollouts as files, and libraries over them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.view.library import Library

Record = dict[str, Any]


@pytest.fixture
def record() -> Callable[..., Record]:
    """Makes a record as a collector writes it."""

    def make(task: int = 0, rollout: int = 0, reward: float | None = 1.0, **more: Any) -> Record:
        question, answer = more.pop("question", f"Question {task}?"), more.pop("answer", f"Answer {rollout}.")
        agent = more.pop("agent", "math")
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}
        return {
            "_ng_task_index": task,
            "responses_create_params": {"input": [{"role": "user", "content": question}]},
            "response": {
                "output": [
                    {"type": "function_call", "name": "lookup", "arguments": '{"key": "zebra"}', "call_id": "c"},
                    {"type": "function_call_output", "call_id": "c", "output": f"found {task * 1000 + rollout}"},
                    said,
                ],
                "usage": {"input_tokens": 10 + task, "output_tokens": 5, "total_tokens": 15 + task},
            },
            **({} if reward is None else {"reward": reward}),
            **more,
            "agent_ref": {"name": agent},
            "_ng_rollout_index": rollout,
        }

    return make


@pytest.fixture
def failure() -> Callable[..., Record]:
    """Makes a failed attempt as a collector writes it."""

    def make(task: int = 0, rollout: int = 0, kind: str = "timeout", agent: str = "math") -> Record:
        return {
            "_ng_task_index": task,
            "_ng_failure_class": kind,
            "error_message": f"{kind} after 3 s",
            "_ng_duration_s": 3.5,
            "agent_ref": {"name": agent},
            "_ng_rollout_index": rollout,
        }

    return make


def lines(records: list[Record]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes records to a file in the folder of the test."""

    def put(name: str, records: list[Record], *, append: bool = False) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if append else "wb") as file:
            file.write(lines(records))
        return path

    return put


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Callable[..., Library]]:
    """Opens files, all indexed."""
    opened: list[Library] = []

    def open_library(*patterns: Path | str) -> Library:
        found = Library([str(pattern) for pattern in patterns], cache=tmp_path / "cache")
        opened.append(found)
        found.index_all()
        return found

    yield open_library
    for each in opened:
        each.close()


@pytest.fixture
def steps() -> Callable[..., Record]:
    """Makes the steps of an attempt: a model call that waited and was repeated, a tool, a verification with a judge."""

    def make(task: int = 0, rollout: int = 0, *, at: float = 0.0, scale: float = 1.0, **more: Any) -> Record:
        calls: list[Record] = [
            {"kind": "seed", "server": "lab", "route": "/seed_session", "start": 0.0, "duration": 0.1},
            {"kind": "model", "server": "policy", "start": 0.1, "duration": 1.0, "waited": 0.4, "waited_for": "retry"},
            {"kind": "tool", "server": "lab", "tool": "lookup", "start": 1.1, "duration": 0.5},
            {"kind": "verify", "server": "lab", "start": 1.6, "duration": 0.4},
            {"kind": "judge", "server": "judge", "start": 1.7, "duration": 0.3, "parent": 3, "tokens_out": 6},
        ]
        for call in calls:
            call |= {"start": call["start"] * scale, "duration": call["duration"] * scale, "status": 200}
        calls[1] |= {"tokens_in": 100, "tokens_out": 30, "retries": [{"at": 0.3 * scale, "failed": "429"}]}
        calls[1]["waited"] *= scale
        return {
            "_ng_task_index": task,
            "_ng_rollout_index": rollout,
            "_ng_attempt": 1,
            "agent": "math",
            "started_at": 1_790_000_000.0 + at,
            "duration": 2.1 * scale,
            "waited": 0.4 * scale,
            "outcome": "completed",
            "steps": calls,
            **more,
        }

    return make
