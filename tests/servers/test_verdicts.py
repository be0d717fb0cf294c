"""Verifiers that answer with their scores alone: the rollout is whole all the same, whatever agent asked."""

from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel
from starlette.testclient import TestClient

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app

ITEM = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "4", "annotations": []}],
    "generation_token_ids": [7],
    "prompt_token_ids": [1],
    "generation_log_probs": [-0.5],
}
FIXED = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
BODY = {
    "responses_create_params": {"input": "2 + 2?", "temperature": 0.5},
    "response": {"id": "r", "created_at": 0, "model": "m", "output": [ITEM], **FIXED},
    "expected": "4",
}


class Score(BaseModel):
    reward: float
    exact: bool


class ScoreOnly(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> Score:
        return Score(reward=1.0, exact=body.response.output_text == "4")


class PlainDict(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> dict[str, Any]:
        del body
        return {"reward": 0.5, "response": {"id": "mine"}}


class Whole(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=0.25)


async def verify(kind: type[SimpleResourcesServer], transport: str) -> dict[str, Any]:
    config = OmegaConf.create({})
    client = ServerClient(head_server_config=BaseServerConfig(host="", port=1), global_config_dict=config)
    server = kind(config=BaseResourcesServerConfig(host="", port=0, entrypoint="", name="e"), server_client=client)
    app = build_app(server)
    if transport == "http":
        with TestClient(app) as http:
            found: dict[str, Any] = http.post("/verify", json=BODY).raise_for_status().json()
            return found
    client.attach("e", LocalServer(app, label="e", base_url="http://127.0.0.1:1"))
    reply = await client.post(server_name="e", url_path="/verify", json=BODY)
    assert reply.status == 200, await reply.read()
    answer: dict[str, Any] = await reply.json()
    return answer


@pytest.mark.parametrize("transport", ["direct", "http"])
async def test_scores_alone_are_completed_by_the_rollout(transport: str) -> None:
    found = await verify(ScoreOnly, transport)
    assert (found["reward"], found["exact"]) == (1.0, True)
    assert found["responses_create_params"] == BODY["responses_create_params"]
    assert found["response"]["output"][0]["generation_token_ids"] == [7]
    assert found["response"]["output"][0]["content"][0]["text"] == "4"


@pytest.mark.parametrize("transport", ["direct", "http"])
async def test_what_a_verifier_says_itself_stays(transport: str) -> None:
    found = await verify(PlainDict, transport)
    asked = BODY["responses_create_params"]
    assert found == {"reward": 0.5, "response": {"id": "mine"}, "responses_create_params": asked}
    whole = await verify(Whole, transport)
    assert (whole["reward"], whole["response"]["id"]) == (0.25, "r")
