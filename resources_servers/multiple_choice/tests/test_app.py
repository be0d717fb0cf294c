from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.base_resources_server import AggregateMetricsRequest
from nemo_gym.server_utils import ServerClient
from resources_servers.multiple_choice.app import (
    MultipleChoiceConfig,
    MultipleChoiceSeedSessionRequest,
    MultipleChoiceServer,
    MultipleChoiceVerifyRequest,
    MultipleChoiceVerifyResponse,
)

ROW: dict[str, Any] = {"options": [{"A": "Paris"}, {"B": "Rome"}, {"C": "Oslo"}], "expected_answer": "B"}


def response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 0, "model": "scripted", "output": [item], **fixed}


def new_server(**settings: Any) -> MultipleChoiceServer:
    config = MultipleChoiceConfig(host="127.0.0.1", port=1, entrypoint="", name="", **settings)
    return MultipleChoiceServer(config=config, server_client=ServerClient.detached())


@pytest.fixture
async def server() -> AsyncIterator[MultipleChoiceServer]:
    server = new_server()
    yield server
    await server._patterns.close()


async def score(server: MultipleChoiceServer, text: str, **row: Any) -> MultipleChoiceVerifyResponse:
    fields = {"responses_create_params": {"input": "?"}, **ROW, **row, "response": response(text)}
    return await server.verify(MultipleChoiceVerifyRequest.model_validate(fields))


async def test_the_right_option_is_rewarded(server: MultipleChoiceServer) -> None:
    scored = await score(server, r"\boxed{B}", expected_answer="b")
    assert (scored.reward, scored.accuracy, scored.extracted_answer, scored.expected_answer) == (1.0, 1.0, "B", "B")
    assert scored.reason == "found by strict_single_letter_boxed"


async def test_a_wrong_or_missing_option_is_not(server: MultipleChoiceServer) -> None:
    assert (await score(server, r"\boxed{A}")).reward == 0.0
    scored = await score(server, "Rome")
    assert (scored.reward, scored.extracted_answer) == (0.0, None)
    assert scored.reason == "no option was found by strict_single_letter_boxed"


async def test_the_setting_overrides_the_row() -> None:
    scored = await score(new_server(grading_mode="any"), "Rome", grading_mode="strict_single_letter_boxed")
    assert (scored.reward, scored.reason) == (1.0, "found by any")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"choice (\w)", "choice A, choice b"),
        ([r"nothing", r"<<(.*?)>>"], "<<rome>>"),
        (r"[ABC]$", "A B"),
    ],
)
async def test_a_pattern_of_the_row_comes_first(server: MultipleChoiceServer, pattern: Any, text: str) -> None:
    scored = await score(server, text + r"", template_metadata={"output_regex": pattern, "name": "x"})
    assert (scored.reward, scored.reason) == (1.0, "found by output_regex")
    assert scored.template_metadata is not None
    assert scored.template_metadata.model_dump()["name"] == "x"


async def test_without_a_match_of_the_pattern_the_mode_decides(server: MultipleChoiceServer) -> None:
    scored = await score(server, r"\boxed{B}", template_metadata={"output_regex": "none (.)"})
    assert (scored.reward, scored.reason) == (1.0, "found by strict_single_letter_boxed")


async def test_a_pattern_that_explodes_is_ended(server: MultipleChoiceServer) -> None:
    scored = await score(server, "a" * 5000 + "!", template_metadata={"output_regex": "(a+)+$"})
    assert (scored.reward, scored.reason) == (0.0, "the search by output_regex took longer than 1 s")


@pytest.mark.parametrize(
    "change",
    [
        {"options": ["one"]},
        {"expected_answer": "Z"},
        {"grading_mode": "guess"},
        {"template_metadata": {"output_regex": "("}},
    ],
)
def test_a_row_that_can_not_be_verified_is_refused_at_the_start(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MultipleChoiceSeedSessionRequest.model_validate({**ROW, **change})


async def test_metrics_add_pass_and_majority(server: MultipleChoiceServer) -> None:
    results = [
        {"_ng_task_index": 0, "_ng_rollout_index": index, "reward": reward, "extracted_answer": answer}
        for index, (reward, answer) in enumerate([(1.0, "B"), (1.0, "B"), (0.0, "A"), (0.0, None)])
    ]
    metrics = await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=results))
    assert metrics.key_metrics["majority@4/accuracy"] == 100.0
