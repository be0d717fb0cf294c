import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.process_pool import ProcessPool
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from resources_servers.reasoning_gym.app import ReasoningGymConfig, ReasoningGymServer, extract_answer

OWN = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
DATA = Path(__file__).parent.parent / "data"
COUNTDOWN = {
    "question": "Reach 6 with 1, 2, 3.",
    "answer": "1 + 2 + 3",
    "metadata": {"source_dataset": "countdown", "numbers": [1, 2, 3], "target": 6, "expression": "1 + 2 + 3"},
}
SPIRAL = {
    "question": "Spiral of [[1, 2], [4, 3]]?",
    "answer": "1 2 3 4",
    "metadata": {"source_dataset": "spiral_matrix", "matrix": [[1, 2], [4, 3]], "solution": [1, 2, 3, 4]},
}


def response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 0, "model": "scripted", "output": [item], **fixed}


@pytest.fixture
def client(scorers: ProcessPool) -> ServerClient:
    client = ServerClient.detached()
    server = ReasoningGymServer(config=ReasoningGymConfig(name="gym", **OWN), server_client=client)
    server._pool = scorers
    client.attach("gym", LocalServer(build_app(server), label="gym", base_url="http://127.0.0.1:1"))
    return client


async def score(client: ServerClient, text: str, row: dict[str, Any]) -> dict[str, Any]:
    body = {"responses_create_params": {"input": "?"}, **row, "response": response(text)}
    reply = await client.post(server_name="gym", url_path="/verify", json=body)
    assert reply.status == 200, await reply.text()
    scored: dict[str, Any] = await reply.json()
    return scored


async def test_the_package_scores_and_the_row_is_kept(client: ServerClient) -> None:
    scored = await score(client, "I add: <answer>3 + 2 + 1</answer>", {**COUNTDOWN, "difficulty": 2})
    assert (scored["reward"], scored["score"], scored["accuracy"]) == (1.0, 1.0, 1.0)
    assert (scored["task_name"], scored["extracted_answer"]) == ("countdown", "3 + 2 + 1")
    assert scored["metadata"] == COUNTDOWN["metadata"]
    assert scored["difficulty"] == 2


@pytest.mark.parametrize("text", ["", "7", "1 + 2", "no idea"])
async def test_a_wrong_answer_has_less(client: ServerClient, text: str) -> None:
    scored = await score(client, f"<answer>{text}</answer>", COUNTDOWN)
    assert scored["reward"] < 1.0
    assert scored["reason"]


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__",
        "open('/etc/passwd')",
        "exec('1')",
        "sin.func",
        "globals()",
        "lambda: 0",
        "[1][0]",
    ],
)
async def test_answers_are_never_run_as_code(client: ServerClient, answer: str) -> None:
    scored = await score(client, f"<answer>{answer}</answer>", COUNTDOWN)
    assert (scored["reward"], scored["reason"]) == (0.0, "the answer is not a formula")


async def test_literals_are_read_but_not_run(client: ServerClient) -> None:
    assert (await score(client, "<answer>[1, 2, 3, 4]</answer>", SPIRAL))["reward"] > 0
    ran = await score(client, "<answer>[n for n in (1, 2, 3, 4)]</answer>", SPIRAL)
    assert ran["reward"] < 1.0


async def test_scoring_without_end_is_ended(client: ServerClient) -> None:
    scored = await score(client, "<answer>9**9**9**9</answer>", COUNTDOWN)
    assert scored["reward"] <= 0.05
    assert scored["reason"]
    assert (await score(client, "<answer>1 + 2 + 3</answer>", COUNTDOWN))["reward"] == 1.0


@pytest.mark.parametrize("text", ["<answer>" * 100_000, "\\boxed{" * 100_000, "9" * 2_000_000, "(" * 15_000])
async def test_hostile_output_gets_a_score_and_a_reason(client: ServerClient, text: str) -> None:
    scored = await score(client, text, COUNTDOWN)
    assert scored["reward"] <= 0.05
    assert scored["reason"]


async def test_a_row_without_a_scorer_is_refused_at_the_start(client: ServerClient) -> None:
    row = {"question": "?", "metadata": {"source_dataset": "no_such"}}
    reply = await client.post(server_name="gym", url_path="/seed_session", json=row)
    assert reply.status == 422
    assert "no_such" in await reply.text()
    assert (await client.post(server_name="gym", url_path="/seed_session", json=COUNTDOWN)).status == 200


async def test_a_scorer_that_fails_on_its_own_answer_is_a_failed_rollout(client: ServerClient) -> None:
    row = {**COUNTDOWN, "metadata": {"source_dataset": "sudoku"}}
    body = {"responses_create_params": {"input": "?"}, **row, "response": response("<answer>x</answer>")}
    assert (await client.post(server_name="gym", url_path="/verify", json=body)).status == 500


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [("True", "True", 1.0), ("true", "True", 1.0), ("False", "True", 0.0), ("zebra", "True", 0.0), ("0", "True", 0.0),
     ("False", "False", 1.0), ("True", "False", 0.0), ("zebra", "False", 0.0), ("", "False", 0.0)],
)  # fmt: skip
async def test_only_true_and_false_are_truth_values(
    scorers: ProcessPool, answer: str, expected: str, score: float
) -> None:
    entry = {"answer": expected, "metadata": {"source_dataset": "game_of_life_halting"}}
    assert (await scorers.call(answer, entry))["score"] == score


async def test_an_integral_is_an_answer_only_where_the_package_has_no_other(scorers: ProcessPool) -> None:
    metadata = {"source_dataset": "intermediate_integration", "variable": "x", "integrand": "x**2*cos(x)"}
    unsolved = {"answer": "Integral(x**2*cos(x), x) + C", "metadata": metadata}
    assert (await scorers.call("Integral(x**2*cos(x), x) + C", unsolved))["score"] == 1.0
    solved = {"answer": "x**2*sin(x) + 2*x*cos(x) - 2*sin(x) + C", "metadata": metadata}
    assert (await scorers.call("Integral(x**2*cos(x), x) + C", solved))["score"] == 0.0
    assert (await scorers.call(solved["answer"], unsolved))["score"] == 1.0


@pytest.mark.parametrize("name", ["train", "validation", "example"])
async def test_the_answers_of_the_shipped_rows_score_1(scorers: ProcessPool, name: str) -> None:
    for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        scored = await scorers.call(row["answer"], row)
        assert scored["score"] == 1.0, row["metadata"]["source_dataset"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 7 </answer>", "7"),
        ("<answer>1</answer> or <answer>2</answer>", "2"),
        ("<answer>cut off", "cut off"),
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("", ""),
    ],
)
def test_the_answer_is_found(text: str, answer: str) -> None:
    assert extract_answer(text) == answer
