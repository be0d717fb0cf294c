import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.server_utils import ServerClient
from resources_servers.example_session_state_mgmt.app import (
    CountedRollout,
    CounterEnvironment,
)

ROW: dict[str, Any] = {
    "responses_create_params": {"input": "Add 4 to the counter."},
    "initial_count": 3,
    "expected_count": 7,
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 0.0,
    "model": "scripted",
    "object": "response",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def server() -> CounterEnvironment:
    config = BaseResourcesServerConfig(host="127.0.0.1", port=8080, entrypoint="", name="counter")
    return CounterEnvironment(config=config, server_client=ServerClient.detached())


@pytest.fixture
def client(server: CounterEnvironment) -> TestClient:
    return TestClient(server.setup_webserver())


def count(client: TestClient) -> int:
    value: int = client.post("/get_counter_value", json={}).json()["count"]
    return value


def test_the_counter_starts_where_the_row_says(client: TestClient) -> None:
    assert client.post("/seed_session", json=ROW).json() == {}
    assert count(client) == 3


def test_increments_add_up_within_a_session(client: TestClient) -> None:
    client.post("/seed_session", json=ROW)
    assert client.post("/increment_counter", json={"count": 6}).json() == {"success": True}
    client.post("/increment_counter", json={"count": -2})
    assert count(client) == 7


def test_seeding_twice_does_not_reset(client: TestClient) -> None:
    client.post("/seed_session", json=ROW)
    client.post("/increment_counter", json={"count": 1})
    client.post("/seed_session", json=ROW)
    assert count(client) == 4


def test_a_session_that_was_never_seeded_counts_from_zero(client: TestClient) -> None:
    assert count(client) == 0


def test_sessions_do_not_see_each_other(server: CounterEnvironment) -> None:
    app = server.setup_webserver()
    first, second = TestClient(app), TestClient(app)
    first.post("/seed_session", json=ROW)
    second.post("/seed_session", json={**ROW, "initial_count": 100})
    first.post("/increment_counter", json={"count": 4})
    assert (count(first), count(second)) == (7, 100)


@pytest.mark.parametrize(("added", "reward"), [(4, 1.0), (5, 0.0), (0, 0.0)])
def test_only_the_expected_count_is_rewarded(client: TestClient, added: int, reward: float) -> None:
    client.post("/seed_session", json=ROW)
    client.post("/increment_counter", json={"count": added})
    scored = client.post("/verify", json={**ROW, "response": RESPONSE}).json()
    assert scored["reward"] == reward
    assert (scored["initial_count"], scored["expected_count"]) == (3, 7)


def test_a_failed_call_keeps_the_session(client: TestClient) -> None:
    client.post("/seed_session", json=ROW)
    assert client.post("/increment_counter", json={"count": "many"}).status_code == 422
    assert count(client) == 3


def test_a_row_without_initial_count_is_refused(client: TestClient) -> None:
    assert client.post("/seed_session", json={"expected_count": 7}).status_code == 422


def test_the_examples_can_be_solved_and_are_not_solved_at_the_start() -> None:
    rows = [json.loads(line) for line in (DATA / "example.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        body = CountedRollout.model_validate({**row, "response": RESPONSE})
        assert body.initial_count != body.expected_count
