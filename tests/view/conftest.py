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
