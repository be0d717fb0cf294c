"""MBPP from its published form to a verdict, on rows made up in that form."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mbpp import prepare as mbpp
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.prompt import apply_prompt_to_row, load_prompt_config
from nemo_gym.server_utils import ServerClient
from resources_servers.python_code.app import PythonCodeConfig, PythonCodeServer, PythonCodeVerifyRequest

Row = dict[str, Any]
PLAIN = {
    "task_id": 11,
    "text": "Write a function to add two numbers.",
    "code": "def one(): \r\n    return 1\r\ndef add(a, b): \r\n    return a + b ",
    "test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert [add(x, x) for x in (1, 2)] == [2, 4]"],
    "test_setup_code": "",
}
# As in a few of the published problems, the test builds what it tests from the solution's own class.
WITH_CLASS = {
    "task_id": 12,
    "text": "Write a function to find the depth of a tree.",
    "code": "class Node:\r\n    def __init__(self, below=None):\r\n        self.below = below\r\n"
    "def depth(node):\r\n    return 1 + depth(node.below) if node else 0",
    "test_list": ["assert depth(root) == 2"],
    "test_setup_code": "root = Node(Node())",
}


@pytest.fixture
async def server() -> AsyncIterator[PythonCodeServer]:
    config = PythonCodeConfig(host="127.0.0.1", port=8080, entrypoint="", name="mbpp")
    server = PythonCodeServer(config=config, server_client=ServerClient.detached())
    yield server
    await server._runner.aclose()


async def reward(server: PythonCodeServer, row: Row, text: str) -> float:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    response = NeMoGymResponse.model_validate({"id": "r", "created_at": 0, "model": "m", "output": [message], **fixed})
    asked = apply_prompt_to_row(row, load_prompt_config("benchmarks/prompts/mbpp.yaml"))
    return (await server.verify(PythonCodeVerifyRequest.model_validate({**asked, "response": response}))).reward


@pytest.mark.parametrize("problem", [PLAIN, WITH_CLASS])
async def test_the_reference_passes_in_every_form_and_others_fail(server: PythonCodeServer, problem: Row) -> None:
    row = mbpp.task(problem, "")
    code = problem["code"]
    assert await reward(server, row, f"{code}\n[DONE]\n\nYou are an expert") == 1.0
    assert await reward(server, row, f"Sure.\n[BEGIN]\n{code}\n[DONE]") == 1.0
    assert await reward(server, row, f"```python\n{code}\n```") == 1.0
    assert await reward(server, row, f"{code.replace('return', 'return 7 +')}\n[DONE]") == 0.0
    assert await reward(server, row, "raise SystemExit(0)") == 0.0
    assert await reward(server, row, "") == 0.0


def test_tests_run_apart_from_the_solution_wherever_they_can() -> None:
    apart, behind = (mbpp.task(problem, "")["tests"] for problem in (PLAIN, WITH_CLASS))
    assert (apart["kind"], apart["entry_point"]) == ("function", "add")
    assert behind["kind"] == "program"
    assert mbpp.hidden_tests(["assert math.isclose(half(1), 0.5)"], "", "import math\ndef half(x): return x / 2")[
        "kind"
    ] == ("program")


def test_the_prompt_is_the_published_one_with_its_three_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pip install 'rollout-gym[data]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    for source, first in ((mbpp.SOURCE, 11), (mbpp.EXAMPLES, 1)):
        path = tmp_path / source.repo_id / source.path
        path.parent.mkdir(parents=True)
        rows = [{**PLAIN, "task_id": first + number} for number in range(source.rows)]
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    monkeypatch.setenv("ROLLOUT_GYM_HUB_FOLDER", str(tmp_path))
    monkeypatch.setattr(mbpp, "OUTPUT", tmp_path / "mbpp.jsonl")
    lines = mbpp.prepare().read_text("utf-8").splitlines()
    assert len(lines) == 500
    row = apply_prompt_to_row(json.loads(lines[0]), load_prompt_config("benchmarks/prompts/mbpp.yaml"))
    prompt = row["responses_create_params"]["input"][0]["content"]
    assert prompt.count("[BEGIN]") == 4
    assert prompt.count("[DONE]") == 3
    assert prompt.startswith("You are an expert Python programmer, and here is your task: Write a function to add")
    assert prompt.endswith("assert [add(x, x) for x in (1, 2)] == [2, 4]\n[BEGIN]")
    assert "return a + b\n[DONE]" in prompt
