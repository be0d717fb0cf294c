"""The log of a server whose handlers raise."""

import logging

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from nemo_gym.servers.middleware.faults import MOST_FAULTS, FaultLog, FaultMiddleware


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()

    @app.get("/fail/{reason}")
    async def fail(reason: str) -> None:
        raise ValueError(reason)

    app.add_middleware(FaultMiddleware, server="my_server")
    return TestClient(app)


def test_a_fault_that_repeats_is_logged_at_powers_of_ten(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(99):
        assert client.get("/fail/no_route").status_code == 500
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in logged] == [
        "my_server: /fail/no_route failed: ValueError('no_route')",
        "my_server: /fail/no_route failed: ValueError('no_route') (10 times so far)",
    ]
    assert [bool(record.exc_info) for record in logged] == [True, False]


def test_different_faults_are_all_logged_up_to_a_limit(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MOST_FAULTS + 5):
        client.get(f"/fail/{number}")
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == MOST_FAULTS + 1
    assert logged[-1] == "my_server: requests failed for further reasons"


class RelayedError(Exception):
    """What a client raises about the reply of another server."""

    def __init__(self, content: bytes) -> None:
        super().__init__("500")
        self.response_content = content


def test_a_fault_of_another_server_is_logged_once_on_its_way_out(caplog: pytest.LogCaptureFixture) -> None:
    log = FaultLog("agent")
    for _ in range(10):
        log.add(RelayedError(b'{"error": {"message": "no route", "hint": "check it"}}'), "/v1/responses")
        log.add(RelayedError(b'{"error": {"message": "no route", "hint": "check it"}}'), "/run")
    log.add(RelayedError(b'{"error": {"message": "another"}}'), "/run")
    assert [record.getMessage() for record in caplog.records] == [
        "agent: /v1/responses failed: no route; check it",
        "agent: /v1/responses failed: no route; check it (10 times so far)",
        "agent: /run failed: another",
    ]
