from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import AggregateMetricsRequest
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from resources_servers.calculator.app import (
    CalculatorConfig,
    CalculatorRequest,
    CalculatorServer,
    CalculatorVerifyRequest,
    CalculatorVerifyResponse,
)


def call(expression: str, output: str) -> list[dict[str, Any]]:
    arguments = f'{{"expression": "{expression}"}}'
    return [
        {"type": "function_call", "call_id": "call_1", "name": "calculator", "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_1", "output": output},
    ]


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def response(*output: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "scripted",
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }


@pytest.fixture
def server() -> CalculatorServer:
    config = CalculatorConfig(host="127.0.0.1", port=8080, entrypoint="", name="calculator")
    return CalculatorServer(config=config, server_client=ServerClient.detached())


async def score(
    server: CalculatorServer, *output: dict[str, Any], expected_answer: str = "36"
) -> CalculatorVerifyResponse:
    body = CalculatorVerifyRequest(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="What is 15% of 240?"),
        response=NeMoGymResponse.model_validate(response(*output)),
        expected_answer=expected_answer,
    )
    return await server.verify(body)


async def test_an_expression_is_evaluated(server: CalculatorServer) -> None:
    assert (await server.calculator(CalculatorRequest(expression="15% of 240"))).model_dump() == {"result": "36"}


async def test_a_bad_expression_gets_a_reason(server: CalculatorServer) -> None:
    answer = await server.calculator(CalculatorRequest(expression="9**9**9"))
    assert answer.model_dump() == {"error": "the number has too many digits"}


def test_the_tool_answers_200_either_way(server: CalculatorServer) -> None:
    client = TestClient(server.setup_webserver())
    good = client.post("/calculator", json={"expression": "(2 + 3) * 4"})
    bad = client.post("/calculator", json={"expression": "1 / 0"})
    assert (good.status_code, good.json()) == (200, {"result": "20"})
    assert (bad.status_code, bad.json()) == (200, {"error": "division by zero"})


@pytest.mark.parametrize("text", ["The answer is 36.", "$36.00", "36%", "It comes to 36 dollars."])
async def test_the_right_number_is_rewarded(server: CalculatorServer, text: str) -> None:
    scored = await score(server, *call("240 * 0.15", '{"result": "36"}'), message(text))
    assert (scored.reward, scored.accuracy, scored.extracted_answer) == (1.0, 1.0, "36")
    assert (scored.tool_calls, scored.used_calculator) == (1, True)


async def test_an_answer_without_the_tool_counts_as_much(server: CalculatorServer) -> None:
    scored = await score(server, message("36"))
    assert (scored.reward, scored.tool_calls, scored.used_calculator) == (1.0, 0, False)


async def test_a_wrong_number_is_not_rewarded(server: CalculatorServer) -> None:
    scored = await score(server, message("The answer is 36.01."))
    assert (scored.reward, scored.extracted_answer) == (0.0, "36.01")


async def test_only_the_last_message_counts(server: CalculatorServer) -> None:
    scored = await score(server, message("I guess 36."), *call("1 + 1", '{"result": "2"}'), message("The answer is 2."))
    assert (scored.reward, scored.extracted_answer) == (0.0, "2")


async def test_the_result_of_the_tool_is_no_answer(server: CalculatorServer) -> None:
    scored = await score(server, *call("240 * 0.15", '{"result": "36"}'))
    assert (scored.reward, scored.extracted_answer, scored.tool_calls) == (0.0, None, 1)


async def test_a_row_without_a_number_is_an_error(server: CalculatorServer) -> None:
    with pytest.raises(ValueError, match="expected_answer is not a number: 'many'"):
        await score(server, message("36"), expected_answer="many")


def test_a_rollout_through_the_routes_keeps_the_row(server: CalculatorServer) -> None:
    client = TestClient(server.setup_webserver())
    row = {
        "responses_create_params": {"input": "What is 15% of 240?"},
        "kind": "percentage",
        "difficulty": 1,
        "question": "What is 15% of 240?",
        "expected_answer": "36",
    }
    assert client.post("/seed_session", json=row).status_code == 200
    scored = client.post("/verify", json={**row, "response": response(message("36"))}).json()
    assert {name: scored[name] for name in ("kind", "difficulty", "question", "expected_answer")} == {
        name: row[name] for name in ("kind", "difficulty", "question", "expected_answer")
    }


async def test_metrics_add_pass_and_majority(server: CalculatorServer) -> None:
    results = [
        {"_ng_task_index": 0, "_ng_rollout_index": index, "reward": reward, "extracted_answer": answer}
        for index, (reward, answer) in enumerate([(1.0, "36"), (1.0, "36"), (0.0, "37"), (0.0, None)])
    ]
    metrics = await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=results))
    assert metrics.key_metrics["mean/reward"] == 0.5
    assert metrics.key_metrics["pass@4/accuracy"] == 100.0
    assert metrics.key_metrics["majority@4/accuracy"] == 100.0
