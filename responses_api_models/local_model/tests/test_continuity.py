"""Rollouts of several turns are one growing sequence of tokens, because the true tokens are carried along."""

import asyncio
import json
from typing import Any

import pytest

from nemo_gym.metrics.continuity import Continuity, check_continuity
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from resources_servers.calculator.app import CalculatorConfig, CalculatorServer
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from responses_api_models.local_model.app import LocalModel, LocalModelConfig
from responses_api_models.local_model.tests.conftest import sharing

ROLLOUTS = 2
TURNS = 2
CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluates an arithmetic expression exactly.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "pattern": "^[a-z ]{24,32}$"}},
        "required": ["expression"],
    },
    "strict": True,
}
# It contains a call, so the server does not add examples of calls, which would take long to process.
CONVERSATION = [
    {"role": "user", "content": "What is 1 + 1?"},
    {"type": "function_call", "call_id": "c", "name": "calculator", "arguments": '{"expression": "one and one"}'},
    {"type": "function_call_output", "call_id": "c", "output": "2"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2 + 3?"},
]
OWN = {"host": "", "port": 0, "entrypoint": ""}


def gym_of(trained: LocalModel, *, corrected: bool) -> ServerClient:
    client = ServerClient.detached()
    settings = {"return_token_id_information": True, "on_policy_correction": corrected}
    model = LocalModel(config=LocalModelConfig(**OWN, name="policy_model", **settings), server_client=client)
    sharing(model, trained)
    agent = SimpleAgentConfig(
        **OWN,
        name="agent",
        max_steps=TURNS,
        resources_server={"type": "resources_servers", "name": "calculator"},
        model_server={"type": "responses_api_models", "name": "policy_model"},
    )
    servers = {
        "policy_model": model,
        "calculator": CalculatorServer(config=CalculatorConfig(**OWN, name="calculator"), server_client=client),
        "agent": SimpleAgent(config=agent, server_client=client),
    }
    for name, server in servers.items():
        client.attach(name, LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1"))
    return client


async def rollout(client: ServerClient, seed: int) -> Continuity:
    """A rollout of a model that writes random letters, so that few words consist of their usual tokens."""
    wild = {"seed": seed, "top_k": 200, "min_p": 0}
    params = {
        "input": CONVERSATION,
        "tools": [CALCULATOR],
        "tool_choice": "required",
        "temperature": 3.0,
        "top_p": 1.0,
        "max_output_tokens": 100,
        "metadata": {"extra_body": json.dumps(wild)},
    }
    row = {"responses_create_params": params, "expected_answer": "1"}
    reply = await client.post(server_name="agent", url_path="/run", json=row)
    assert reply.status == 200, await reply.text()
    record: dict[str, Any] = await reply.json()
    return check_continuity(record["response"]["output"])


@pytest.mark.parametrize("corrected", [True, False])
async def test_several_turns_are_one_sequence_with_correction_and_breaks_are_found_without(
    training_model: LocalModel, *, corrected: bool
) -> None:
    client = gym_of(training_model, corrected=corrected)
    found = await asyncio.gather(*(rollout(client, seed) for seed in range(ROLLOUTS)))
    assert [each.calls for each in found] == [TURNS] * ROLLOUTS
    if corrected:
        assert all(each.ok for each in found)
    else:
        breaks = [one for each in found for one in each.breaks]
        assert breaks
        assert {one.reason for one in breaks} == {"retokenisation"}
        assert all(one.turn > 1 and one.token > 0 for one in breaks)
