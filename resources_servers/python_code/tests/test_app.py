"""The server: what is rewarded, what is not, and what is neither."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from resources_servers.python_code.app import (
    PythonCodeConfig,
    PythonCodeServer,
    PythonCodeVerifyRequest,
    PythonCodeVerifyResponse,
)

DOUBLE = {
    "kind": "function",
    "entry_point": "double",
    "cases": [{"args": [2], "expected": 4}, {"args": [0], "expected": 0}, {"args": [-3], "expected": -6}],
}
ECHO = {"kind": "program", "cases": [{"stdin": "a\n", "stdout": "a\n"}, {"stdin": "b\n", "stdout": "b\n"}]}


def build(**settings: Any) -> PythonCodeServer:
    config = PythonCodeConfig(host="127.0.0.1", port=8080, entrypoint="", name="python_code", **settings)
    return PythonCodeServer(config=config, server_client=ServerClient.detached())


def response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "scripted",
        "object": "response",
        "output": [message],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }


async def score(server: PythonCodeServer, text: str, tests: dict[str, Any] | None = None) -> PythonCodeVerifyResponse:
    body = PythonCodeVerifyRequest(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="?"),
        response=NeMoGymResponse.model_validate(response(text)),
        tests=tests or DOUBLE,
    )
    return await server.verify(body)


@pytest.fixture
async def server() -> AsyncIterator[PythonCodeServer]:
    server = build()
    yield server
    await server._runner.aclose()


@pytest.mark.parametrize(
    "text",
    [
        "```python\ndef double(n):\n    return 2 * n\n```",
        "Sure!\n```\ndef double(n): return n + n\n```\nThat is it.",
        "def double(n):\n    return n * 2",
        "```python\ndef double(n): return 3\n```\nNo, better:\n```py\ndouble = lambda n: n << 1\n```",
        "```python\ndef double(n):\n    return n * 2",
    ],
)
async def test_right_code_is_rewarded_however_it_is_wrapped(server: PythonCodeServer, text: str) -> None:
    scored = await score(server, text)
    assert (scored.reward, scored.accuracy, scored.tests_passed, scored.reason) == (1.0, 1.0, 3, None)


@pytest.mark.parametrize(
    ("text", "passed", "reason"),
    [
        ("def double(n):\n    return n * n", 2, "(-3) gives 9, not -6"),
        ("def twice(n):\n    return 2 * n", 0, "NameError: double is not defined"),
        ("def double(n) return", 0, "SyntaxError"),
        ("I do not know.", 0, "SyntaxError"),
        ("", 0, "there is no code in the answer"),
        ("```sql\nSELECT 1\n```", 0, "there is no code in the answer"),
        ("def double(n):\n    return 1 // n", 0, "gives 0, not 4"),
        ("def double(n):\n    while True: pass", 0, "takes too"),
        ("import time\ntime.sleep(100)", 0, "takes too long"),
        ("def double(n):\n    return 'x' * 10**10", 0, "MemoryError"),
        ("import os\nos._exit(0)", 0, "ends the process"),
        ("exit()", 0, "exits"),
        ("import os\ndef double(n):\n    os.kill(os.getppid(), 9)", 0, "ends the judge"),
    ],
)
async def test_wrong_code_gets_a_reason(text: str, passed: int, reason: str) -> None:
    server = build(cpu_s=0.5, wall_s=3.0)
    try:
        scored = await score(server, text)
    finally:
        await server._runner.aclose()
    assert (scored.reward, scored.tests_passed) == (0.0, passed)
    assert reason in (scored.reason or "")


async def test_a_part_of_the_tests_can_be_worth_a_part_of_the_reward() -> None:
    server = build(grading="fraction")
    try:
        scored = await score(server, "def double(n):\n    return n * n")
    finally:
        await server._runner.aclose()
    assert (scored.reward, scored.accuracy) == (pytest.approx(2 / 3), 0.0)


async def test_a_program_is_run_once_for_each_case(server: PythonCodeServer) -> None:
    assert (await score(server, "print(input())", ECHO)).reward == 1.0
    assert (await score(server, "print('a')", ECHO)).tests_passed == 1


async def test_a_test_that_does_not_work_is_a_failure_and_not_a_reward(server: PythonCodeServer) -> None:
    tests = {"kind": "function", "entry_point": "f", "test": "def check(candidate): undefined("}
    with pytest.raises(ValueError, match="the row's tests do not work"):
        await score(server, "def f(): pass", tests)


async def test_a_sandbox_that_does_not_work_is_a_failure_and_not_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    server = build(sandbox_isolation="container")
    with pytest.raises(ConfigError, match="no sandbox works on this machine"):
        await score(server, "def double(n): return 2 * n")


@pytest.mark.parametrize(
    "tests",
    [
        {"kind": "function", "cases": [{"args": [1], "expected": 1}]},
        {"kind": "function", "entry_point": "f"},
        {"kind": "function", "entry_point": "f", "cases": [{"stdin": "1"}]},
        {"kind": "program"},
        {"kind": "program", "cases": [{"args": [1]}]},
        {"kind": "poem"},
    ],
)
def test_a_row_that_can_not_be_verified_is_refused_at_the_start(tests: dict[str, Any]) -> None:
    with TestClient(build().setup_webserver()) as client:
        assert client.post("/seed_session", json={"tests": tests}).status_code == 422
        assert client.post("/seed_session", json={"tests": DOUBLE}).status_code == 200


def test_the_routes_verify_and_close_the_sandbox() -> None:
    server = build()
    with TestClient(server.setup_webserver()) as client:
        body = {"responses_create_params": {"input": "?"}, "tests": DOUBLE, "task_id": "t"}
        answer = client.post("/verify", json={**body, "response": response("def double(n): return 2 * n")})
        assert (answer.status_code, answer.json()["reward"], answer.json()["task_id"]) == (200, 1.0, "t")
    assert server._runner._runner is None
