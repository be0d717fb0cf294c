"""What clients ask a model server besides answers, and how it tells them that something is wrong."""

from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from omegaconf import OmegaConf

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from responses_api_models.openai_model.tests.scripted_endpoint import error, reply, serving
from tests.servers.models.hosted_model import SAYS, hosted

anthropic = pytest.importorskip("anthropic")

USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 7,
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "real-name",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": USAGE,
}
HISTORY: list[Any] = [{"role": "user", "content": "hi"}]


async def test_errors_have_the_shape_of_the_protocol_that_was_asked_in() -> None:
    refused = error("no", code="bad_option", param="seed")
    async with serving(reply(refused, 400)) as endpoint, hosted(endpoint) as (client, _):
        wrong: dict[str, Any] = {
            "/v1/responses": {"input": "hi", "strem": True},
            "/v1/chat/completions": {"messages": 3},
            "/v1/messages": {"messages": [{"role": "user"}]},
        }
        right = {
            "/v1/responses": {"input": "hi"},
            "/v1/chat/completions": {"messages": HISTORY},
            "/v1/messages": {"messages": HISTORY, "max_tokens": 9},
        }
        for path, malformed in wrong.items():
            invalid = await client.post("policy_model", path, json=malformed)
            failed = await client.post("policy_model", path, json=right[path])
            told = [await invalid.json(), await failed.json()]

            assert (invalid.status, failed.status) == (422, 400)
            assert told[0]["error"]["type"] == "invalid_request_error"
            assert told[0]["detail"][0]["loc"][0] == "body"
            assert "status 400: no" in told[1]["error"]["message"]
            if path == "/v1/messages":
                assert [one["type"] for one in told] == ["error", "error"]
                assert told[1]["error"]["type"] == "invalid_request_error"
            else:
                assert set(told[0]["error"]) == {"message", "type", "param", "code"}


async def test_the_clients_raise_what_they_raise_for_their_own_servers() -> None:
    async with serving(reply(error("slow"), 429)) as endpoint, hosted(endpoint) as (_, url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError, match="status 429: slow"):
                await client.responses.create(model="m", input="hi", stream=True)
            with pytest.raises(openai.UnprocessableEntityError, match="Extra inputs are not permitted: strem"):
                await client.responses.create(model="m", input="hi", extra_body={"strem": 1})
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            asked: Any = {"model": "m", "max_tokens": 9, "messages": HISTORY}
            with pytest.raises(anthropic.RateLimitError, match="rate_limit_error"):
                async with client.messages.stream(**asked) as events:
                    await events.get_final_message()


async def test_what_is_not_there_is_named_in_the_shape_of_the_protocol() -> None:
    async with serving(reply({})) as endpoint, hosted(endpoint) as (_, url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert (await client.models.retrieve("real-name")).id == "real-name"
            with pytest.raises(openai.NotFoundError, match="no model 'other' here, only 'real-name'"):
                await client.models.retrieve("other")
            with pytest.raises(openai.NotFoundError, match="has no GET /v1/responses/resp_1"):
                await client.responses.retrieve("resp_1")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
            for call in (client.models.retrieve("other"), client.messages.batches.list()):
                with pytest.raises(anthropic.NotFoundError) as caught:
                    await call
                assert caught.value.body["error"]["type"] == "not_found_error"


async def test_models_are_listed_for_both_clients() -> None:
    async with serving(reply({})) as endpoint, hosted(endpoint) as (_, url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert [model.id async for model in client.models.list()] == ["real-name"]
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
            assert [model.id async for model in client.models.list()] == ["real-name"]


async def test_tokens_are_counted_where_the_endpoint_can() -> None:
    counted = reply({"object": "response.input_tokens", "input_tokens": 11})
    async with serving(routes={"/v1/responses/input_tokens": counted}) as endpoint, hosted(endpoint) as (_, url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert (await client.responses.input_tokens.count(model="m", input="hi")).input_tokens == 11
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
            assert (await client.messages.count_tokens(model="m", messages=HISTORY)).input_tokens == 11
        assert endpoint.bodies[0] == {"input": "hi", "model": "real-name"}

    async with serving(reply({})) as endpoint, hosted(endpoint, endpoint="chat_completions") as (gym, _):
        answer = await gym.post("policy_model", "/v1/responses/input_tokens", json={"input": "hi"})
        assert (answer.status, (await answer.json())["error"]["type"]) == (501, "not_supported")


@pytest.mark.parametrize("endpoint", ["responses", "chat_completions"])
async def test_options_of_sampling_in_extra_body_reach_the_endpoint(endpoint: str) -> None:
    extra = {"top_k": 20, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
    routes = {"/v1/responses": reply(RESPONSE), "/v1/chat/completions": reply(SAYS)}
    async with (
        serving(routes=routes) as upstream,
        hosted(upstream, endpoint=endpoint) as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
    ):
        await client.responses.create(model="m", input="hi", extra_body=extra, prompt_cache_key="k")
        await client.chat.completions.create(model="m", messages=HISTORY, extra_body=extra, safety_identifier="s")

        assert [{name: body[name] for name in extra} for body in upstream.bodies] == [extra, extra]
        assert [body.get("prompt_cache_key") for body in upstream.bodies] == ["k", None]


async def test_what_an_assistant_said_is_sent_as_a_message() -> None:
    said = {"role": "assistant", "content": "yes"}
    async with serving(reply(RESPONSE)) as endpoint, hosted(endpoint) as (client, _):
        await client.post("policy_model", "/v1/responses", json={"input": [*HISTORY, said, *HISTORY]})

        assert endpoint.bodies[0]["input"] == [*HISTORY, {**said, "type": "message"}, *HISTORY]


class Typed(SimpleResponsesAPIModel):
    """A server as authors write it: it knows nothing of streams, caches and other protocols."""

    config: BaseResponsesAPIModelConfig
    calls: int = 0

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return NeMoGymChatCompletion.model_validate(SAYS)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        self.calls += 1
        return NeMoGymResponse.model_validate({**RESPONSE, "metadata": {"asked": str(body.input)}})


def typed(**settings: Any) -> tuple[Typed, LocalServer]:
    head = BaseServerConfig(host="", port=1)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(settings))
    config = BaseResponsesAPIModelConfig(host="127.0.0.1", port=1, entrypoint="", name="typed")
    server = Typed(config=config, server_client=client)
    return server, LocalServer(build_app(server), label="typed", base_url="http://127.0.0.1:1")


async def test_servers_of_other_authors_stream_and_take_the_keys_of_the_service() -> None:
    _, local = typed()
    asked = {"input": "hi", "prompt_cache_key": "k", "safety_identifier": "s"}
    whole = await local.call("POST", "/v1/responses", json=asked)
    streamed = await local.call("POST", "/v1/responses", json={**asked, "stream": True})
    chunks = await local.call("POST", "/v1/chat/completions", json={"messages": HISTORY, "stream": True})

    last = orjson.loads((await streamed.read()).split(b"data: ")[-1])
    assert (whole.status, (await whole.json())["metadata"]) == (200, {"asked": "hi"})
    assert (last["type"], last["response"]) == ("response.completed", await whole.json())
    assert (await chunks.read()).endswith(b"data: [DONE]\n\n")


async def test_a_stream_and_a_whole_answer_share_the_cache_and_what_comes_from_there_was_not_paid_for(
    tmp_path: Path,
) -> None:
    server, local = typed(cache=str(tmp_path))
    first = await local.call("POST", "/v1/responses", json={"input": "hi", "stream": True})
    again, elsewhere = typed(cache=str(tmp_path))
    second = await elsewhere.call("POST", "/v1/responses", json={"input": "hi"})

    made = orjson.loads((await first.read()).split(b"data: ")[-1])["response"]
    spent = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    assert await second.json() == {**made, "usage": {**made["usage"], "spent": spent}}
    assert (server.calls, again.calls) == (1, 0)
