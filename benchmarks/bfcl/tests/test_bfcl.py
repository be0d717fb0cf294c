"""The benchmark from end to end: its configuration, its real tasks, the agent, and a model that knows the answers."""

import json
import os
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from pydantic import PrivateAttr

from benchmarks.bfcl import prepare as bfcl
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.data.wheels import cache_folder, fetch_wheel
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from resources_servers.function_calls.app import FunctionCallsConfig, FunctionCallsServer, FunctionCallsTask
from resources_servers.function_calls.expectation import plain_call
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig

FOLDER = Path(__file__).parents[1]
OWN = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
PER_CATEGORY = 12


@pytest.fixture(scope="module")
def tasks() -> list[dict[str, Any]]:
    try:
        wheel = fetch_wheel(bfcl.WHEEL, cache_folder(os.environ))
    except ConfigError as error:
        pytest.skip(str(error))
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in bfcl.rows(wheel):
        found[row["category"]].append(row)
    assert len(found) == 13
    return [row for rows in found.values() for row in Random(0).sample(rows, min(PER_CATEGORY, len(rows)))]


class KnowingModel(SimpleResponsesAPIModel):
    """Makes the calls that it was told to make next."""

    _calls: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    async def chat_completions(self, body: Any) -> Any:
        raise NotImplementedError

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        content = [{"type": "output_text", "text": "I can't help with that.", "annotations": []}]
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
        fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return NeMoGymResponse(id="r", created_at=0, model="m", output=self._calls or [message], **fixed)


class Gym:
    """The servers that the configuration names, with the settings it gives them."""

    def __init__(self) -> None:
        self.client = ServerClient.detached()
        self.model = KnowingModel(
            config=BaseResponsesAPIModelConfig(name="policy_model", **OWN), server_client=self.client
        )
        environment = FunctionCallsConfig(name="function_calls", **OWN)
        agent = yaml.safe_load(
            (FOLDER.parents[1] / "resources_servers/function_calls/configs/function_calls.yaml").read_text()
        )
        settings = agent["function_calls_simple_agent"]["responses_api_agents"]["simple_agent"]
        config = SimpleAgentConfig(**{**settings, **OWN, "name": "agent"})
        servers = {
            "policy_model": self.model,
            "function_calls": FunctionCallsServer(config=environment, server_client=self.client),
            "agent": SimpleAgent(config=config, server_client=self.client),
        }
        for name, server in servers.items():
            self.client.attach(name, LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1"))

    async def reward(self, row: dict[str, Any], calls: list[dict[str, Any]]) -> float:
        self.model._calls = [
            {
                "type": "function_call",
                "call_id": f"c{number}",
                "name": call["name"],
                "arguments": json.dumps(call["arguments"]),
            }
            for number, call in enumerate(calls)
        ]
        reply = await self.client.post(server_name="agent", url_path="/run", json=row)
        assert reply.ok, await reply.text()
        return float((await reply.json())["reward"])


def answers(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["check"] == "some_call":
        return [{"name": row["responses_create_params"]["tools"][0]["name"], "arguments": {}}]
    ((*expected,),) = FunctionCallsTask.model_validate(row).expected
    calls = map(plain_call, expected)
    return [{"name": call.name, "arguments": call.arguments} for call in calls]


async def test_right_answers_are_rewarded_and_others_are_not(tasks: list[dict[str, Any]]) -> None:
    gym = Gym()
    other = [{"name": "another_tool", "arguments": {}}]
    for row in tasks:
        assert await gym.reward(row, answers(row)) == 1.0, row["id"]
        wrong = [] if row["check"] == "some_call" else other
        assert await gym.reward(row, wrong) == 0.0, row["id"]


def test_tools_are_what_endpoints_accept(tasks: list[dict[str, Any]]) -> None:
    for row in tasks:
        for tool in row["responses_create_params"]["tools"]:
            assert tool["name"].replace("_", "").replace("-", "").isalnum(), tool["name"]
            assert tool["parameters"]["type"] == "object"
            types = {schema.get("type") for schema in tool["parameters"]["properties"].values()}
            assert types <= {"string", "integer", "number", "boolean", "array", "object"}, types


def test_the_configuration_names_what_the_script_writes() -> None:
    config = yaml.safe_load((FOLDER / "config.yaml").read_text("utf-8"))
    (dataset,) = config["bfcl_simple_agent"]["responses_api_agents"]["simple_agent"]["datasets"]
    assert FOLDER.parents[1] / dataset["jsonl_fpath"] == bfcl.OUTPUT
    assert (FOLDER.parents[1] / dataset["prepare_script"]).is_file()
