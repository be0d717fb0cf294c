"""Rollouts of a small environment with one tool, as a collection writes them."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.exporting.export_report import ExportReport
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe

TOOL = {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}, "strict": True}


def make_rollout(task: int = 0, rollout: int = 0, reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """A rollout that calls a tool and then answers; token ids of both calls grow as one sequence."""
    first = {"prompt_token_ids": [1, 2, task], "generation_token_ids": [10, 11], "generation_log_probs": [-0.5, -0.25]}
    prompt = [1, 2, task, 10, 11, 3]
    second = {"prompt_token_ids": prompt, "generation_token_ids": [20 + rollout], "generation_log_probs": [-1.0]}
    text = more.pop("text", f"The sum is {rollout}.")
    call = {"type": "function_call", "name": "add", "arguments": '{"a": 1}', "call_id": "c1", "id": "f1"}
    output = [
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "Let me add."}]},
        {**call, **first},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **second},
    ]
    response = {"id": f"resp_{task}_{rollout}", "model": "tiny", "output": output, "incomplete_details": None}
    response |= {"usage": {"input_tokens": 6, "output_tokens": 3}} | more.pop("response", {})
    question = [{"role": "user", "content": f"Add {task}."}]
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "responses_create_params": {"instructions": "Be brief.", "input": question, "tools": [TOOL]},
        "response": response,
        "agent_ref": {"name": "adder"},
        **({} if reward is None else {"reward": reward}),
        **more,
    }


def save(rollouts: Iterable[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rollouts))
    return path


class Exporter:
    """Exports rollouts in an empty folder and reads the rows back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report: ExportReport | None = None

    make = staticmethod(make_rollout)
    save = staticmethod(save)

    def __call__(self, rollouts: Iterable[dict[str, Any]], **recipe: Any) -> list[dict[str, Any]]:
        source = save(rollouts, self.folder / "rollouts.jsonl")
        given = {"format": "sft", "output": str(self.folder / "rows.jsonl"), "overwrite": True} | recipe
        self.report = export_rollouts(Recipe(input=str(source), **given))
        return self.rows(Path(given["output"]))

    def dropped(self) -> dict[str, int]:
        assert self.report is not None
        return self.report.drops.counts

    @staticmethod
    def rows(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else []


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Any]:
    return Exporter(tmp_path)
