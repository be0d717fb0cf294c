"""Collections look at token ids: by default they tell of breaks, and they can refuse them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT = """\
from typing import Any

from fastapi import Body

from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent


def item(prompt: list[int], generation: list[int]) -> dict[str, Any]:
    return {"type": "message", "prompt_token_ids": prompt, "generation_token_ids": generation}


class Training(SimpleResponsesAPIAgent):
    async def responses(self, body: dict[str, Any] = Body()) -> dict[str, Any]:
        raise NotImplementedError

    async def run(self, body: dict[str, Any] = Body()) -> dict[str, Any]:
        second = [1, 2, 3, 4] if body["whole"] else [1, 9, 3, 4]
        return {**body, "response": {"output": [item([1, 2], [3]), item(second, [5])]}, "reward": 1.0}


if __name__ == "__main__":
    Training.run_webserver()
"""
CONFIG = {"my_agent": {"responses_api_agents": {"training_for_tests": {"entrypoint": "app.py"}}}}
COMMAND = (
    "ng_collect_rollouts",
    "+config_paths=[gym.yaml]",
    "+input_jsonl_fpath=in.jsonl",
    "+output_jsonl_fpath=out.jsonl",
    "+agent_name=my_agent",
)
FOUND = "task 1 rollout 0, turn 2: token 1 of the prompt is 9 and was 2"


@pytest.fixture(autouse=True)
def _gym(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = workspace / "responses_api_agents" / "training_for_tests"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(AGENT)
    (folder / "requirements.txt").touch()
    (workspace / "gym.yaml").write_text(json.dumps(CONFIG))
    rows = [{"responses_create_params": {"input": "?"}, "whole": whole} for whole in (True, False)]
    (workspace / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("responses_api_agents.training_for_tests"):
            del sys.modules[name]


def test_breaks_are_told_of_by_default(run):
    ran = run(*COMMAND)
    assert ran.code == 0, ran.err
    assert "warning: 1 of 2 rollouts with token ids are not one sequence of tokens" in ran.err
    assert FOUND in ran.err
    assert len(Path("out.jsonl").read_text().splitlines()) == 2


def test_breaks_can_be_failures(run):
    ran = run(*COMMAND, "+token_continuity=fail")
    assert ran.code == 3, ran.err
    assert len(Path("out.jsonl").read_text().splitlines()) == 1
    [failure] = map(json.loads, Path("out_failures.jsonl").read_text().splitlines())
    assert failure["_ng_failure_class"] == "invalid_response"
    assert "turn 2: token 1 of the prompt is 9 and was 2" in failure["error_message"]


def test_breaks_can_be_ignored_and_other_words_are_refused(run):
    ran = run(*COMMAND, "+token_continuity=off")
    assert ran.code == 0, ran.err
    assert "token" not in ran.err
    ran = run(*COMMAND, "+token_continuity=maybe")
    assert ran.code != 0
    assert "token_continuity" in ran.err


def test_a_worker_process_is_no_hiding_place(spawn):
    ran = spawn("ng_collect_rollouts", *COMMAND[1:], "+token_continuity=fail", "+workers=2")
    assert ran.code == 3, ran.err
    assert FOUND in ran.err
