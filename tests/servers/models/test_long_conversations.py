"""Long conversations reach an endpoint by chat as short ones do, turn after turn, and are refused in the same words."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.servers.gym import host_gym
from responses_api_models.openai_model.tests.scripted_endpoint import reply, serving
from responses_api_models.vllm_model.tests.engine_cases import ADD
from responses_api_models.vllm_model.tests.toy_engine import toy_engine
from tests.ports import free_port
from tests.servers.models.hosted_model import ASKS, KEY, SAYS, hosted

LONG = "a long question " * 400
IMAGE = {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}


def vllm(url: str, **settings: Any) -> Any:
    server = {"entrypoint": "app.py", "host": "127.0.0.1", "port": free_port(), "max_retries": 0}
    model = {"base_url": url, "api_key": KEY, "model": "real-name", "return_token_id_information": False}
    served = {"responses_api_models": {"vllm_model": {**server, **model, "uses_reasoning_parser": True, **settings}}}
    head = {"host": "127.0.0.1", "port": free_port()}
    return OmegaConf.create({"head_server": head, "policy_model": served})


async def converse(client: Any, **options: Any) -> list[dict[str, Any]]:
    """Three turns; the history after each of them."""
    history: list[dict[str, Any]] = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": LONG}]
    histories = []
    for turn in range(3):
        histories.append(list(history))
        answer = await client.post("policy_model", "/v1/responses", json={"input": history, **options})
        output = (await answer.json())["output"]
        result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": f"result {turn}"}
        history = [*history, *output, result]
    return histories


async def test_every_turn_is_sent_whole_by_openai_model() -> None:
    async with serving(reply(ASKS)) as endpoint, hosted(endpoint, endpoint="chat_completions") as (client, _):
        histories = await converse(client, instructions="go", temperature=0.5)

    converter = ResponsesConverter(return_token_id_information=False, keep_strict=True)
    asked = [{"input": history, "instructions": "go", "temperature": 0.5} for history in histories]
    assert endpoint.bodies == [converter.request_to_chat(each) | {"model": "real-name"} for each in asked]


@pytest.mark.parametrize("settings", [{}, {"replace_developer_role_with_system": True}])
async def test_every_turn_is_sent_whole_by_vllm_model(settings: dict[str, Any]) -> None:
    async with serving(reply(ASKS)) as endpoint, host_gym(vllm(endpoint.url, **settings)) as gym:
        histories = await converse(gym.client, max_output_tokens=9)

    roles = [[message["role"] for message in body["messages"]] for body in endpoint.bodies]
    first = "system" if settings else "developer"
    assert roles == [[first, "user", *["assistant", "tool"] * turn] for turn in range(3)]
    assert endpoint.bodies[2]["messages"][1]["content"] == LONG
    assert endpoint.bodies[2]["messages"][-1]["content"] == histories[2][-1]["output"]
    assert {body["max_tokens"] for body in endpoint.bodies} == {9}


@pytest.mark.parametrize("restarts", [False, True])
async def test_every_turn_continues_the_tokens_of_the_one_before(*, restarts: bool) -> None:
    forced = '[{"name": "add", "parameters": {"a": 2, "b": 3}}]'
    history: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
    output: list[dict[str, Any]] = []
    # After a restart, the engine is recognised by an answer that then has to be asked for again.
    said = [word for word in ("five", "more", "done") for _ in range(2 if restarts else 1)]
    async with toy_engine("vLLM", forced, *said) as engine, AsyncExitStack() as opened:
        config = vllm(engine.url, return_token_id_information=True)
        gym = await opened.enter_async_context(host_gym(config))
        for _ in range(4):
            body = {"input": history, "tools": [ADD], "max_output_tokens": 50}
            answer = await gym.client.post("policy_model", "/v1/responses", json=body)
            output += (items := (await answer.json())["output"])
            call = items[-1].get("call_id")
            result = {"type": "function_call_output", "call_id": call, "output": "5"}
            history = [*history, *items, result if call else {"role": "user", "content": "Go on."}]
            if restarts:
                await opened.aclose()
                gym = await opened.enter_async_context(host_gym(config))

    assert len(output) == check_continuity(output).calls == 4
    assert check_continuity(output).ok


async def test_what_is_wrong_with_a_long_conversation_is_said_as_of_a_short_one() -> None:
    wrong: list[tuple[list[Any], dict[str, Any]]] = [
        ([IMAGE], {}),
        ([{"type": "web_search_call", "id": "w"}], {"truncation": "auto", "max_tool_calls": 3}),
        ([3], {}),
        ([{"role": "user"}], {}),
        ([], {"banana": 1}),
    ]
    async with serving(reply(SAYS)) as endpoint, hosted(endpoint, endpoint="chat_completions") as (client, _):
        for items, options in wrong:
            answers = []
            for question in ("short", LONG):
                body = {"input": [{"role": "user", "content": question}, *items], **options}
                for _ in range(2):
                    answer = await client.post("policy_model", "/v1/responses", json=body)
                    answers.append((answer.status, (await answer.json())["error"]))
            assert answers[0][0] in (400, 422)
            assert all(answer == answers[0] for answer in answers)
        assert endpoint.bodies == []
