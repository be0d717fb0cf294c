import time
from typing import Any

import pytest

from nemo_gym.base_resources_server import AggregateMetricsRequest
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.process_pool import ProcessPool
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from resources_servers.math_answers.app import MathAnswersConfig, MathAnswersServer

OWN = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
JUDGE = {
    "model_server": {"type": "responses_api_models", "name": "judge_model"},
    "prompt": "{question} Expected {expected}, got {answer}. Same?",
    "labels": {"[[YES]]": 1.0, "[[NO]]": 0.0},
}


def response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 0, "model": "scripted", "output": [item], **fixed}


class RuleJudge(SimpleResponsesAPIModel):
    """Says yes to one pair of answers."""

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        raise NotImplementedError

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        asked = str(body.input[-1].content)  # type: ignore[union-attr]
        return NeMoGymResponse.model_validate(response("[[YES]]" if "got a dozen" in asked else "[[NO]]"))


@pytest.fixture
async def gym(library: ProcessPool) -> ServerClient:
    """The server twice, alone and with a judge, reached as an agent reaches them."""
    client = ServerClient.detached()
    plain = MathAnswersConfig(name="plain", **OWN)
    judged = MathAnswersConfig(name="judged", judge=JUDGE, **OWN)
    servers = {
        "plain": MathAnswersServer(config=plain, server_client=client),
        "judged": MathAnswersServer(config=judged, server_client=client),
        "judge_model": RuleJudge(config=BaseResponsesAPIModelConfig(name="judge_model", **OWN), server_client=client),
    }
    for name, server in servers.items():
        if isinstance(server, MathAnswersServer):
            server._pool = library
        client.attach(name, LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1"))
    return client


async def score(gym: ServerClient, text: str, expected: Any = "12", server: str = "plain") -> dict[str, Any]:
    row = {"responses_create_params": {"input": "?"}, "question": "How many?", "expected_answer": expected}
    reply = await gym.post(server_name=server, url_path="/verify", json={**row, "response": response(text)})
    assert reply.status == 200, await reply.text()
    scored: dict[str, Any] = await reply.json()
    return scored


async def test_a_right_number_is_rewarded_with_a_reason(gym: ServerClient) -> None:
    scored = await score(gym, r"It is \boxed{12.0}.")
    assert (scored["reward"], scored["accuracy"], scored["extracted_answer"]) == (1.0, 1.0, "12.0")
    assert scored["reason"] == "equal, compared by number"


@pytest.mark.parametrize("expected", [12, 12.0, "$12$", r"\(12\)", r"\boxed{12}"])
async def test_expected_answers_come_in_many_wrappings(gym: ServerClient, expected: Any) -> None:
    assert (await score(gym, "#### 12", expected))["reward"] == 1.0


async def test_formulas_are_compared_by_the_library(gym: ServerClient) -> None:
    scored = await score(gym, r"\boxed{2\sqrt2}", r"\sqrt{8}")
    assert (scored["reward"], scored["reason"]) == (1.0, "equal, compared by library")


async def test_a_comparison_without_end_is_ended_and_the_next_one_works(gym: ServerClient) -> None:
    scored = await score(gym, r"\boxed{9^{9^9}}", r"\sqrt{8}")
    assert (scored["reward"], scored["reason"]) == (0.0, "the comparison took longer than 1 s")
    assert (await score(gym, r"\boxed{2\sqrt2}", r"\sqrt{8}"))["reward"] == 1.0


HOSTILE = {
    "megabytes of digits": "9" * 2_000_000,
    "a boxed megabyte": r"\boxed{" + "9" * 1_000_000 + "}",
    "nested boxes": r"\boxed{" * 20_000 + "1" + "}" * 20_000,
    "boxes that never close": r"\boxed{" * 100_000,
    "nested fractions": r"\boxed{" + r"\frac{1}{" * 90 + "1" + "}" * 90 + "}",
    "nested roots": r"\boxed{" + r"\sqrt{" * 140 + "2" + "}" * 140 + "}",
    "braces": "{" * 500_000,
    "dollars": "$" * 500_000,
    "announcements": "the answer is " * 50_000,
    "spaces": "answer" + " " * 1_000_000 + "is 3",
    "commas": "1," * 400_000,
    "a surrogate-free mix": "\\(" * 200_000 + "\x00\ufffd",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_output_gets_a_score_and_a_reason(gym: ServerClient, name: str) -> None:
    scored = await score(gym, HOSTILE[name], r"\sqrt{8}")
    assert scored["reward"] == 0.0
    assert scored["reason"]
    assert len(scored["extracted_answer"] or "") <= 1000


async def test_extraction_costs_little_more_per_character_for_long_texts() -> None:
    """Ten times the text may take some ten times as long; a quadratic pass would take a hundred times."""
    from resources_servers.math_answers.extract import extract_answer

    def cost(length: int, unit: str) -> float:
        text = unit * (length // len(unit))
        best = float("inf")
        for _ in range(2):
            started = time.process_time()
            extract_answer(text)
            best = min(best, time.process_time() - started)
        return best

    for unit in ("9", "{", "$", "\\boxed{", "answer is ", "1,", "\\(", ". ", "a\n", "answer to "):
        assert cost(200_000, unit) < 40 * max(cost(20_000, unit), 0.002), unit


async def test_a_verifier_that_crashes_is_a_failed_rollout(gym: ServerClient) -> None:
    server = MathAnswersServer(config=MathAnswersConfig(name="broken", **OWN), server_client=gym)
    async with ProcessPool("os:abort", size=1) as broken:
        server._pool = broken
        gym.attach("broken", LocalServer(build_app(server), label="broken", base_url="http://127.0.0.1:1"))
        row = {"responses_create_params": {"input": "?"}, "expected_answer": r"\sqrt{8}"}
        reply = await gym.post(
            server_name="broken", url_path="/verify", json={**row, "response": response(r"\boxed{x}")}
        )
        assert reply.status == 500
        assert "WorkerError" in await reply.text()


async def test_the_judge_has_the_last_word_on_a_difference(gym: ServerClient) -> None:
    scored = await score(gym, "The answer is a dozen.", server="judged")
    assert (scored["reward"], scored["library_reward"], scored["judge_label"]) == (1.0, 0.0, "[[YES]]")
    scored = await score(gym, "The answer is a pair.", server="judged")
    assert (scored["reward"], scored["judge_label"]) == (0.0, "[[NO]]")


async def test_the_judge_is_not_asked_about_equal_or_missing_answers(gym: ServerClient) -> None:
    assert (await score(gym, "#### 12", server="judged"))["judge_label"] is None
    assert (await score(gym, "", server="judged"))["judge_label"] is None


@pytest.mark.parametrize("expected", ["", "   ", None, "9" * 2000])
async def test_a_row_without_an_answer_is_refused_at_the_start(gym: ServerClient, expected: Any) -> None:
    reply = await gym.post(server_name="plain", url_path="/seed_session", json={"expected_answer": expected})
    assert reply.status == 422


async def test_metrics_add_pass_and_majority(gym: ServerClient) -> None:
    server = MathAnswersServer(config=MathAnswersConfig(name="x", **OWN), server_client=gym)
    results = [
        {"_ng_task_index": 0, "_ng_rollout_index": index, "reward": reward, "extracted_answer": answer}
        for index, (reward, answer) in enumerate([(1.0, "36"), (1.0, "36"), (0.0, "37"), (0.0, None)])
    ]
    metrics = await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=results))
    assert metrics.key_metrics["majority@4/accuracy"] == 100.0
