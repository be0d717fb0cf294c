from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from resources_servers.format_following.app import (
    FormatFollowingConfig,
    FormatFollowingServer,
    FormatFollowingVerifyRequest,
    FormatFollowingVerifyResponse,
)
from resources_servers.format_following.checks import parse_checks

CHECKS = [{"kind": "numbered_list", "count": 3}, {"kind": "all_caps"}]
PROMPT = "Name some fruits. Number them 1 to 3, one per line. Use capital letters only."


def response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "scripted",
        "object": "response",
        "output": [
            {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content},
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def build(grading: Literal["all", "fraction"] = "all") -> FormatFollowingServer:
    config = FormatFollowingConfig(host="127.0.0.1", port=8080, entrypoint="", name="format", grading=grading)
    return FormatFollowingServer(config=config, server_client=ServerClient.detached())


async def score(server: FormatFollowingServer, text: str) -> FormatFollowingVerifyResponse:
    body = FormatFollowingVerifyRequest(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input=PROMPT),
        response=NeMoGymResponse.model_validate(response(text)),
        checks=parse_checks(CHECKS),
    )
    return await server.verify(body)


async def test_an_answer_that_passes_everything_is_rewarded() -> None:
    scored = await score(build(), "1. APPLE\n2. PEAR\n3. FIG")
    assert (scored.reward, scored.accuracy, scored.fraction_passed) == (1.0, 1.0, 1.0)
    assert scored.passed_checks == ["numbered_list(count=3)", "all_caps()"]
    assert scored.failed_checks == []


async def test_half_is_nothing_when_all_is_asked_for() -> None:
    scored = await score(build("all"), "1. Apple\n2. Pear\n3. Fig")
    assert (scored.reward, scored.accuracy, scored.fraction_passed) == (0.0, 0.0, 0.5)
    assert scored.failed_checks == ["all_caps()"]


async def test_half_is_half_when_the_fraction_counts() -> None:
    scored = await score(build("fraction"), "1. Apple\n2. Pear\n3. Fig")
    assert (scored.reward, scored.accuracy) == (0.5, 0.0)


async def test_no_answer_passes_nothing() -> None:
    scored = await score(build("fraction"), "")
    assert (scored.reward, scored.passed_checks) == (0.0, [])


def test_a_rollout_through_the_routes_keeps_the_row() -> None:
    client = TestClient(build().setup_webserver())
    row = {"responses_create_params": {"input": PROMPT}, "checks": CHECKS, "prompt": PROMPT, "difficulty": 2}
    assert client.post("/seed_session", json=row).json() == {}
    scored = client.post("/verify", json={**row, "response": response("1. APPLE\n2. PEAR\n3. FIG")}).json()
    assert scored["reward"] == 1.0
    assert (scored["checks"], scored["prompt"], scored["difficulty"]) == (CHECKS, PROMPT, 2)


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ({"kind": "rhymes"}, "'rhymes' found using 'kind' does not match any of the expected tags"),
        ({"kind": "numbered_list"}, "Field required"),
        ({"kind": "all_caps", "count": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_bad_check_is_refused_before_the_rollout_starts(check: dict[str, Any], reason: str) -> None:
    client = TestClient(build().setup_webserver())
    answer = client.post("/seed_session", json={"responses_create_params": {"input": PROMPT}, "checks": [check]})
    assert answer.status_code == 422
    assert reason in answer.json()["detail"][0]["msg"]
    assert answer.json()["detail"][0]["loc"][:3] == ["body", "checks", 0]
