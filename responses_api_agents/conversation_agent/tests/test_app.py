"""The agent with a scripted model and a scripted user, all real servers in one process."""

import json
from typing import Any

import pytest
from fastapi import Request
from pydantic import PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from responses_api_agents.conversation_agent.app import ConversationAgent, ConversationAgentConfig

OWN = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
USAGE = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 8,
}


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": "{}", "call_id": "c1"}


class ScriptedModel(SimpleResponsesAPIModel):
    """Answers from a list; every answer carries the tokens it read and wrote."""

    _answers: list[list[dict[str, Any]]] = PrivateAttr(default_factory=list)
    _requests: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _cut_off: bool = PrivateAttr(default=False)

    async def chat_completions(self, body: Any) -> Any:
        raise NotImplementedError

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        request = body.model_dump(mode="json", exclude_unset=True)
        self._requests.append(request)
        output = [dict(item) for item in self._answers[len(self._requests) - 1]]
        output[-1] |= {
            "prompt_token_ids": list(range(10 * len(request["input"]))),
            "generation_token_ids": [7],
            "generation_log_probs": [-0.5],
        }
        fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        incomplete = {"reason": "max_output_tokens"} if self._cut_off else None
        return NeMoGymResponse(
            id="r", created_at=0, model="m", output=output, usage=USAGE, incomplete_details=incomplete, **fixed
        )


class ScriptedUser(SimpleResourcesServer):
    """Says what it was told to, and rewards a conversation that it ended itself."""

    config: BaseResourcesServerConfig
    _words: list[str] = PrivateAttr(default_factory=list)
    _heard: list[str] = PrivateAttr(default_factory=list)
    _sessions: set[str] = PrivateAttr(default_factory=set)

    def setup_webserver(self) -> Any:
        app = super().setup_webserver()
        app.post("/next_turn")(self.next_turn)
        app.post("/look")(self.look)
        return app

    async def look(self, request: Request) -> dict[str, str]:
        self._sessions.add(request.session["session_id"])
        return {"seen": "a tree"}

    async def next_turn(self, request: Request, body: BaseVerifyRequest) -> dict[str, Any]:
        self._sessions.add(request.session["session_id"])
        self._heard.append(body.response.output_text)
        if not self._words:
            return {"done": True}
        tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
        words = {"role": "user", "content": self._words.pop(0)}
        return {"done": False, "messages": [words], "tools": [tool] if words["content"] == "Look!" else []}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        ended = (body.response.metadata or {}).get("stopped_by")
        return BaseVerifyResponse(**dict(body), reward=float(ended == "user"))


class Gym:
    """All three servers, reached through one client without a port."""

    def __init__(self, words: list[str], answers: list[list[dict[str, Any]]], **limits: Any) -> None:
        self.client = ServerClient.detached()
        model_config = BaseResponsesAPIModelConfig(name="model", **OWN)
        self.model = ScriptedModel(config=model_config, server_client=self.client)
        self.model._answers = answers
        self.user = ScriptedUser(config=BaseResourcesServerConfig(name="user", **OWN), server_client=self.client)
        self.user._words = words
        references = {
            "resources_server": {"type": "resources_servers", "name": "user"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        }
        config = ConversationAgentConfig(name="agent", **OWN, **references, **limits)
        agent = ConversationAgent(config=config, server_client=self.client)
        for name, server in {"model": self.model, "user": self.user, "agent": agent}.items():
            attach(self.client, name, server)

    async def run(self) -> dict[str, Any]:
        row = {"responses_create_params": {"input": "Hello", "tools": []}}
        reply = await self.client.post(server_name="agent", url_path="/run", json=row)
        assert reply.ok, await reply.text()
        return await reply.json()


def attach(client: ServerClient, name: str, server: Any) -> None:
    client.attach(name, LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1"))


async def test_turns_alternate_until_the_user_is_done() -> None:
    gym = Gym(["And then?"], [[message("One.")], [message("Two.")]])
    rollout = await gym.run()
    assert rollout["reward"] == 1.0
    said = [item.get("content") for item in rollout["response"]["output"]]
    assert [text if isinstance(text, str) else text[0]["text"] for text in said] == ["One.", "And then?", "Two."]
    assert rollout["response"]["metadata"] == {"turns": "2", "stopped_by": "user"}
    assert rollout["response"]["usage"]["output_tokens"] == 6
    assert gym.user._heard[0] == "One."


async def test_everything_the_model_wrote_goes_back_as_it_was() -> None:
    gym = Gym(["And then?"], [[message("One.")], [message("Two.")]])
    rollout = await gym.run()
    question = {"role": "user", "content": "Hello"}
    output = rollout["response"]["output"]
    sent = gym.model._requests[1]["input"]
    assert [item["role"] for item in sent] == ["user", "assistant", "user"]
    assert sent[0] == question
    assert sent[1]["generation_token_ids"] == output[0]["generation_token_ids"] == [7]
    assert sent[1]["prompt_token_ids"] == output[2]["prompt_token_ids"][:10]


async def test_tools_run_inside_a_turn_and_share_the_session_of_the_user() -> None:
    gym = Gym(["Look!"], [[message("Hi.")], [call("look")], [message("A tree.")]])
    rollout = await gym.run()
    assert [item["type"] for item in rollout["response"]["output"]][2:4] == ["function_call", "function_call_output"]
    assert json.loads(rollout["response"]["output"][3]["output"]) == {"seen": "a tree"}
    assert len(gym.user._sessions) == 1
    assert [len(request.get("tools", [])) for request in gym.model._requests] == [0, 1, 1]


@pytest.mark.parametrize(
    ("limits", "reason", "calls"),
    [
        ({"max_turns": 2}, "turns", 2),
        ({"max_generated_tokens": 6}, "tokens", 2),
        ({"max_generated_tokens": 7}, "tokens", 3),
    ],
)
async def test_a_limit_ends_the_conversation(limits: dict[str, int], reason: str, calls: int) -> None:
    gym = Gym(["more"] * 9, [[message("Yes.")] for _ in range(9)], **limits)
    rollout = await gym.run()
    assert (rollout["response"]["metadata"]["stopped_by"], len(gym.model._requests)) == (reason, calls)
    assert rollout["response"]["output"][-1]["role"] == "assistant"


async def test_steps_are_limited_within_a_turn() -> None:
    gym = Gym(["more"], [[call("look")] for _ in range(9)], max_steps=3)
    rollout = await gym.run()
    assert (rollout["response"]["metadata"]["stopped_by"], len(gym.model._requests)) == ("steps", 3)


async def test_an_answer_that_was_cut_off_ends_the_conversation() -> None:
    gym = Gym(["more"], [[call("look")]])
    gym.model._cut_off = True
    rollout = await gym.run()
    assert rollout["response"]["metadata"]["stopped_by"] == "model"
    assert [item["type"] for item in rollout["response"]["output"]] == ["function_call"]


async def test_one_turn_can_be_asked_for_without_a_user() -> None:
    gym = Gym([], [[call("look")], [message("A tree.")]])
    reply = await gym.client.post(server_name="agent", url_path="/v1/responses", json={"input": "Look around."})
    answer = await reply.json()
    assert [item["type"] for item in answer["output"]] == ["function_call", "function_call_output", "message"]
