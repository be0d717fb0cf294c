import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import ServerClient
from resources_servers.example_single_tool_call.app import (
    WeatherEnvironment,
    WeatherQuestion,
)

RESPONSE = {
    "id": "resp_1",
    "created_at": 0.0,
    "model": "scripted",
    "object": "response",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Take a coat.", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def server() -> WeatherEnvironment:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=8080, entrypoint="", name="weather")
    return WeatherEnvironment(config=config, server_client=ServerClient.detached())


async def test_the_weather_is_cold(server: WeatherEnvironment) -> None:
    answer = await server.report(WeatherQuestion(city="Oslo"))
    assert answer.model_dump() == {"city": "Oslo", "weather_description": "The weather in Oslo is cold."}


async def test_every_finished_rollout_is_rewarded(server: WeatherEnvironment) -> None:
    body = BaseVerifyRequest(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="Do I need a coat in Oslo?"),
        response=NeMoGymResponse.model_validate(RESPONSE),
    )
    scored = await server.verify(body)
    assert scored.reward == 1.0
    assert scored.response.output_text == "Take a coat."


def test_the_tool_is_a_route(server: WeatherEnvironment) -> None:
    client = TestClient(server.setup_webserver())
    answer = client.post("/get_weather", json={"city": "Lima"})
    assert answer.json() == {"city": "Lima", "weather_description": "The weather in Lima is cold."}


def test_a_call_without_city_is_refused(server: WeatherEnvironment) -> None:
    answer = TestClient(server.setup_webserver()).post("/get_weather", json={"town": "Lima"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "city"]


def test_a_rollout_through_the_routes_keeps_what_was_sent(server: WeatherEnvironment) -> None:
    client = TestClient(server.setup_webserver())
    row = {"responses_create_params": {"input": "Do I need a coat in Oslo?"}}
    assert client.post("/seed_session", json=row).json() == {}
    scored = client.post("/verify", json={**row, "response": RESPONSE}).json()
    assert scored["reward"] == 1.0
    assert scored["responses_create_params"]["input"] == "Do I need a coat in Oslo?"
    assert scored["response"]["output"][0]["content"][0]["text"] == "Take a coat."


def test_the_examples_offer_the_tool() -> None:
    rows = [json.loads(line) for line in (DATA / "example.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        tools = BaseRunRequest.model_validate(row).responses_create_params.model_dump()["tools"]
        assert [tool["name"] for tool in tools] == ["get_weather"]
