"""vllm_model against scripted endpoints: real HTTP on both sides."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from starlette.requests import Request

from nemo_gym.conversion.chat_streams import completion_stream
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.middleware.rollout_scope import mark_rollout
from responses_api_models.openai_model.tests.scripted_endpoint import (
    CUT,
    ENDLESS,
    Endpoint,
    error,
    reply,
    serving,
    stream,
)
from responses_api_models.vllm_model.app import VLLMConverter, VLLMModel, split_responses_input_output_items
from responses_api_models.vllm_model.settings import VLLMModelConfig

KEY = "sk-very-secret"
CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
PLAIN_SCORES = {"content": [{"token": word, "logprob": -0.5, "top_logprobs": []} for word in ("h", "i")]}
COUNTED = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
SCORES = {"content": [{"token": f"token_id:{i}", "logprob": -i / 10, "top_logprobs": []} for i in (7, 8)]}


def completion(finish_reason: str = "stop", *, choice: Any = None, more: Any = None, **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "hi"} | message
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "real-name",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": said} | (choice or {})],
        **(more or {}),
    }


def model(*urls: str, **settings: Any) -> VLLMModel:
    server = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": "policy_model", "max_retries": 0}
    endpoint = {"base_url": urls[0] if len(urls) == 1 else list(urls), "api_key": KEY, "model": "real-name"}
    required = {"return_token_id_information": False, "uses_reasoning_parser": True}
    config = VLLMModelConfig(**server | endpoint | required | settings)
    return VLLMModel(config=config, server_client=ServerClient.detached())


def client(server: VLLMModel) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(server.setup_webserver(), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://model")


async def post(server: VLLMModel, body: Any, path: str = "/v1/responses") -> httpx.Response:
    async with client(server) as session:
        return await session.post(path, json=body)


# ---- conversion and options -----------------------------------------------------------------------------------------
async def test_a_request_becomes_a_chat_and_its_answer_a_response() -> None:
    answer = completion("tool_calls", content=None, reasoning_content="hm", tool_calls=[TOOL_CALL])
    async with serving(reply(answer)) as endpoint:
        got = await post(
            model(endpoint.url),
            {"input": "hi", "tools": [TOOL], "max_output_tokens": 9, "temperature": 0.5, "instructions": "be brief"},
        )

        assert endpoint.paths == [CHAT]
        assert endpoint.bodies[0] == {
            "model": "real-name",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "max_tokens": 9,
            "temperature": 0.5,
        }
        assert [item["type"] for item in got.json()["output"]] == ["reasoning", "function_call"]
        assert got.json()["model"] == "real-name"
        assert Response.model_validate(got.json()).output[1].to_dict()["arguments"] == '{"x": 1}'


async def test_both_ways_to_ask_give_the_same_response() -> None:
    class Typed(VLLMModel):
        async def responses(self, request: Any, body: Any) -> NeMoGymResponse:  # type: ignore[override]
            return await super().responses(request, body)

    def without_ids(response: Any) -> Any:
        if isinstance(response, dict):
            return {name: without_ids(value) for name, value in response.items() if name != "id" and value is not None}
        return [without_ids(value) for value in response] if isinstance(response, list) else response

    asked = {"input": [{"role": "user", "content": "hi"}], "tools": [TOOL], "metadata": {"k": "v"}, "top_p": 0.5}
    async with serving(reply(completion(reasoning="hm", tool_calls=[TOOL_CALL]))) as endpoint:
        server = model(endpoint.url)
        relayed = (await post(server, asked)).json()
        typed = await server.responses(Request({"type": "http", "headers": []}), server_params(asked))

        assert without_ids(relayed) == without_ids(typed.model_dump())
        assert list(relayed) == list(typed.model_dump())
        assert endpoint.bodies[0] == endpoint.bodies[1]


def server_params(asked: dict[str, Any]) -> Any:
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming

    return NeMoGymResponseCreateParamsNonStreaming.model_validate(asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, {"role": "assistant", "content": "yes", "reasoning_content": "hm", "reasoning": "hm"}),
        ({"uses_interleaved_reasoning": False}, {"role": "assistant", "content": "<think>hm</think>yes"}),
        ({"uses_reasoning_parser": False}, {"role": "assistant", "content": "<think>hm</think>yes"}),
    ],
)
async def test_past_reasoning_goes_back_as_the_settings_say(settings: Any, message: dict[str, Any]) -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    history = [{"role": "user", "content": "hi"}, thought, {"role": "assistant", "content": "yes"}]
    async with serving(reply(completion())) as endpoint:
        await post(model(endpoint.url, **settings), {"input": [*history, {"role": "user", "content": "so?"}]})

        assert endpoint.bodies[0]["messages"][1] == message


async def test_reasoning_that_is_parsed_against_the_settings_is_told_clearly() -> None:
    async with serving(reply(completion(reasoning_content="hm"))) as endpoint:
        got = await post(model(endpoint.url, uses_reasoning_parser=False), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (502, "invalid_response")
        assert got.json()["error"]["hint"] == "set uses_reasoning_parser: true"


async def test_without_a_reasoning_parser_thoughts_stay_inside_the_text() -> None:
    async with serving(reply(completion(content="<think>hm</think>yes"))) as endpoint:
        got = await post(model(endpoint.url, uses_reasoning_parser=False), {"input": "hi"})

        [item] = got.json()["output"]
        assert item["content"][0]["text"] == "<think>hm</think>yes"


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("<think>hm, this goes", ["hm, this goes"]),
        ("<think>hm</think>\n<think>well", ["hm", "well"]),
        ("Write <think> first.", ["Write <think> first."]),
    ],
)
async def test_reasoning_that_was_cut_off_is_not_the_answer(content: str, texts: list[str]) -> None:
    async with serving(reply(completion(content=content, choice={"finish_reason": "length"}))) as endpoint:
        got = (await post(model(endpoint.url), {"input": "hi"})).json()

        [item] = got["output"]
        assert [part["text"] for part in item.get("summary") or item["content"]] == texts
        assert item["type"] == ("message" if "Write" in content else "reasoning")
        assert got["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_options_that_chat_completions_does_not_know_reach_the_endpoint() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "top_k": 5, "chat_template_kwargs": {"a": 1}}
    async with serving(reply(completion())) as endpoint:
        server = model(endpoint.url, extra_body={"top_k": 1}, chat_template_kwargs={"a": 0, "b": 0})
        await post(server, chat | {"extra_body": {"min_p": 0.1, "top_k": 2}}, CHAT)

        body = endpoint.bodies[0]
        assert (body["top_k"], body["min_p"], body["chat_template_kwargs"]) == (5, 0.1, {"a": 1, "b": 0})
        assert "extra_body" not in body


class Polite(VLLMModel):
    """A subclass like those of other projects: it learns its endpoint late and changes every request."""

    def _post_init(self) -> None:
        self.config.extra_body = {"seed": 1}
        super()._post_init()

    def get_converter(self) -> VLLMConverter:
        return VLLMConverter(return_token_id_information=False, uses_reasoning_parser=False)

    def _preprocess_chat_completion_create_params(self, request: Any, body_dict: dict[str, Any]) -> dict[str, Any]:
        body_dict = super()._preprocess_chat_completion_create_params(request, body_dict)
        body_dict["messages"] = [{"role": "system", "content": request.headers["x-tone"]}, *body_dict["messages"]]
        return body_dict


async def test_a_subclass_has_a_say_in_what_is_sent_and_how_it_is_read() -> None:
    async with serving(reply(completion(content="<think>hm</think>yes"))) as endpoint:
        server = Polite(config=model(endpoint.url).config, server_client=ServerClient.detached())
        async with client(server) as session:
            got = await session.post("/v1/responses", json={"input": "hi"}, headers={"x-tone": "be polite"})
            await session.post(CHAT, json={"messages": []}, headers={"x-tone": "be brief"})

        assert [body["messages"][0]["content"] for body in endpoint.bodies] == ["be polite", "be brief"]
        assert endpoint.bodies[0]["seed"] == 1
        assert got.json()["output"][0]["content"][0]["text"] == "<think>hm</think>yes"
        answer = await server._clients[0].create_chat_completion(model="m", messages=[])
        assert answer["choices"][0]["message"]["content"] == "<think>hm</think>yes"


async def test_metadata_sets_options_that_the_protocol_does_not_have() -> None:
    metadata = {
        "extra_body": json.dumps({"top_k": 2, "temperature": 9, "min_p": 0.1}),
        "chat_template_kwargs": json.dumps({"enable_thinking": False}),
        "note": "mine",
    }
    async with serving(reply(completion())) as endpoint:
        server = model(
            endpoint.url,
            extra_body={"top_k": 1, "seed": 7},
            chat_template_kwargs={"enable_thinking": True, "lang": "en"},
            replace_developer_role_with_system=True,
        )
        asked = {"input": [{"role": "developer", "content": "be brief"}], "temperature": 0.5, "metadata": metadata}
        got = await post(server, asked)

        body = endpoint.bodies[0]
        assert (body["top_k"], body["seed"], body["min_p"], body["temperature"]) == (2, 7, 0.1, 0.5)
        assert body["chat_template_kwargs"] == {"enable_thinking": False, "lang": "en"}
        assert body["metadata"] == {"note": "mine"}
        assert body["messages"][0]["role"] == "system"
        assert got.json()["metadata"] == metadata


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"extra_body": "{"}, "metadata.extra_body is not JSON"),
        ({"chat_template_kwargs": "[]"}, "metadata.chat_template_kwargs is not a JSON object"),
        ({"audio_path": "x.txt"}, "must end in one of .wav"),
        ({"audio_path": "missing.wav"}, "No such file"),
        ({"audio_paths": "x"}, "metadata.audio_paths is not JSON"),
        ({"audio_paths": "{}"}, "not a JSON list of paths"),
        ({"audio_path": "x.wav", "audio_data": "AA=="}, "audio_data and audio_path"),
    ],
)
async def test_metadata_that_says_nothing_is_refused(metadata: dict[str, str], words: str) -> None:
    got = await post(model("http://127.0.0.1:1/v1"), {"input": "hi", "metadata": metadata})

    assert (got.status_code, got.json()["error"]["type"]) == (400, "rejected")
    assert words in got.json()["error"]["message"]


async def test_recordings_come_before_the_text_of_the_last_user(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "b.mp3").write_bytes(b"ID3")
    async with serving(reply(completion())) as endpoint:
        server = model(endpoint.url, audio_root=str(tmp_path))
        await post(server, {"input": "hi", "metadata": {"audio_paths": json.dumps(["a.wav", "b.mp3"])}})
        await post(server, {"input": [{"role": "user", "content": "hi"}], "metadata": {"audio_data": "UklGRg=="}})

        wav = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklGRg=="}}
        mp3 = {"type": "audio_url", "audio_url": {"url": "data:audio/mpeg;base64,SUQz"}}
        text = {"type": "text", "text": "hi"}
        assert [body["messages"][0]["content"] for body in endpoint.bodies] == [[wav, mp3, text], [wav, text]]
        assert not any("metadata" in body for body in endpoint.bodies)


async def test_a_chat_is_passed_on_as_a_chat() -> None:
    async with serving(reply(completion(reasoning_content="hm"))) as endpoint:
        got = await post(model(endpoint.url), {"messages": [{"role": "user", "content": "hi"}], "stop": ["x"]}, CHAT)

        assert endpoint.bodies[0] == {
            "model": "real-name",
            "messages": [{"role": "user", "content": "hi"}],
            "stop": ["x"],
        }
        assert ChatCompletion.model_validate(got.json()).choices[0].message.content == "hi"
        assert got.json()["choices"][0]["message"]["reasoning_content"] == "hm"


async def test_an_endpoint_with_its_own_responses_api_is_asked_through_it() -> None:
    said = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}
    async with serving(reply({"id": "r", "output": [said]}), reply(error("context length"), 400)) as endpoint:
        server = model(endpoint.url, is_responses_native=True, extra_body={"seed": 7})
        first = await post(server, {"input": "hi", "metadata": {"extra_body": '{"top_k": 2}'}})
        second = await post(server, {"input": "hi"})

        assert endpoint.paths == ["/v1/responses", "/v1/responses"]
        assert endpoint.bodies[0] == {"input": "hi", "seed": 7, "top_k": 2, "model": "real-name"}
        assert first.json()["output"][0]["content"][0]["text"] == "hi"
        assert second.json()["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_an_answer_that_ended_at_its_limit_is_incomplete_whatever_the_endpoint_says() -> None:
    said = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}
    usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    answers = [{"id": "r", "status": "completed", "output": [item], "usage": usage} for item in (said, said, call)]
    async with serving(*map(reply, answers)) as endpoint:
        server = model(endpoint.url, is_responses_native=True)
        cut, whole, called = [
            (await post(server, {"input": "hi", "max_output_tokens": limit})).json() for limit in (5, 6, 5)
        ]

        assert (cut["status"], cut["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert [one["status"] for one in (whole, called)] == ["completed", "completed"]


@pytest.mark.parametrize("status", ["queued", "cancelled", "in_progress"])
async def test_a_response_that_is_not_done_is_no_answer(status: str) -> None:
    async with serving(reply({"id": "r", "status": status, "output": []})) as endpoint:
        got = await post(model(endpoint.url, is_responses_native=True), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (502, "invalid_response")
        assert status.replace("_", " ") in got.json()["error"]["message"]


async def test_a_chat_that_ended_for_an_unknown_reason_is_no_answer() -> None:
    async with serving(reply(completion("abort")), reply(completion("max_tokens"))) as endpoint:
        got = await post(model(endpoint.url), {"input": "hi"})
        known = await post(model(endpoint.url), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (502, "invalid_response")
        assert "'abort'" in got.json()["error"]["message"]
        assert known.json()["status"] == "incomplete"


@pytest.mark.parametrize(
    "settings",
    [
        {"return_token_id_information": True},
        {"replace_developer_role_with_system": True},
        {"sequential_reasoning_allowed": False},
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=next(iter(settings))):
        model("http://127.0.0.1:1/v1", is_responses_native=True, **settings)


# ---- answers given here ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8 tokens. However, you requested 9 tokens",
        "max_tokens is too large: 99",
        "request (9010 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "The input (9010 tokens) is longer than the model's context length (4096 tokens).",
    ],
)
async def test_a_prompt_that_does_not_fit_gets_an_empty_incomplete_answer(words: str) -> None:
    async with serving(reply({"object": "error", "message": words, "code": 400}, 400)) as endpoint:
        server = model(endpoint.url, return_token_id_information=True)
        got = (await post(server, {"input": "hi"})).json()
        chat = (await post(server, {"messages": [{"role": "user", "content": "hi"}]}, CHAT)).json()

        assert got["incomplete_details"] == {"reason": "max_output_tokens"}
        assert got["status"] == "incomplete"
        assert [part["text"] for item in got["output"] for part in item["content"]] == [""]
        assert "generation_token_ids" not in got["output"][0]
        assert chat["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "words",
    [
        "no such tool parser",
        "max_tokens must be at least 1, got -5",
        "max_tokens=5000 cannot be greater than max_model_len=4096. Please request fewer output tokens.",
        "Field 'max_tokens': Value must be between -1 <= value <= 2147483647, but got -5",
        "temperature exceeds 2; max_tokens was not the problem",
    ],
)
async def test_other_refusals_stay_refusals(words: str) -> None:
    async with serving(reply({"object": "error", "message": words, "code": 400}, 400)) as endpoint:
        got = await post(model(endpoint.url), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (400, "rejected")
        assert f"status 400: {words}" in got.json()["error"]["message"]


async def test_a_model_that_only_thought_is_not_asked_again_if_that_is_not_allowed() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    question = {"role": "user", "content": "hi"}
    async with serving(reply(completion())) as endpoint:
        server = model(endpoint.url, sequential_reasoning_allowed=False)
        idle = (await post(server, {"input": [question, thought]})).json()
        busy = (await post(server, {"input": [question]})).json()

        assert idle["incomplete_details"] == {"reason": "content_filter"}
        assert busy["incomplete_details"] is None
        assert len(endpoint.bodies) == 1


# ---- token ids ------------------------------------------------------------------------------------------------------
async def test_every_answer_carries_its_tokens_on_its_last_item() -> None:
    answer = completion("tool_calls", choice={"logprobs": SCORES}, reasoning="hm", tool_calls=[TOOL_CALL])
    routes = {CHAT: reply(answer), TOKENIZE: reply({"count": 2, "tokens": [1, 2]})}
    async with serving(routes=routes) as endpoint:
        server = model(endpoint.url, return_token_id_information=True, chat_template_kwargs={"a": 1})
        got = (await post(server, {"input": "hi", "tools": [TOOL]})).json()

        *others, last = got["output"]
        assert (last["type"], last["prompt_token_ids"], last["generation_token_ids"]) == (
            "function_call",
            [1, 2],
            [7, 8],
        )
        assert last["generation_log_probs"] == [-0.7, -0.8]
        assert not any("generation_token_ids" in item for item in others)
        asked = endpoint.sent_to(CHAT)[0]
        assert (asked["logprobs"], asked["top_logprobs"], asked["return_tokens_as_token_ids"]) == (True, 0, True)
        assert endpoint.sent_to(TOKENIZE) == [
            {name: asked[name] for name in ("model", "messages", "tools", "chat_template_kwargs")}
        ]


@pytest.mark.parametrize(
    ("choice", "more"),
    [
        ({"logprobs": PLAIN_SCORES, "token_ids": [7, 8]}, {"prompt_token_ids": [1, 2]}),
        ({"logprobs": PLAIN_SCORES, "response_token_ids": [7, 8], "prompt_token_ids": [1, 2]}, {}),
        (
            {"logprobs": {"content": [s | {"id": i} for s, i in zip(PLAIN_SCORES["content"], (7, 8), strict=True)]}},
            {"usage": {**COUNTED, "prompt_tokens": 2}},
        ),
    ],
    ids=["vLLM", "SGLang", "llama.cpp"],
)
async def test_the_tokens_of_every_engine_are_read(choice: dict[str, Any], more: dict[str, Any]) -> None:
    answer = completion(choice=choice | {"routed_experts": [[3]]}, more=more)
    routes = {CHAT: reply(answer), TOKENIZE: reply({"tokens": [1, 2]}), "/apply-template": reply({"prompt": "hi"})}
    async with serving(routes=routes) as endpoint:
        got = await post(model(endpoint.url, return_token_id_information=True), {"input": "hi"})

        [item] = got.json()["output"]
        assert (item["prompt_token_ids"], item["generation_token_ids"]) == ([1, 2], [7, 8])
        assert (item["generation_log_probs"], item["routed_experts"]) == ([-0.5, -0.5], [[3]])
        assert endpoint.sent_to(CHAT)[0]["return_token_ids"] is True


async def test_an_answer_of_sglang_is_read_as_its_own_types_write_it() -> None:
    """The keys, their order and their nulls are those of the types of its version 0.5.23."""
    scores = [
        {"token": "Hi", "bytes": [72, 105], "logprob": -0.5, "top_logprobs": []},
        {"token": "<|im_end|>", "bytes": [60], "logprob": -0.25, "top_logprobs": []},
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi", "reasoning_content": None},
        "logprobs": {"content": scores},
        "finish_reason": "stop",
        "matched_stop": 2,
        "prompt_token_ids": [1, 9690, 198],
        "response_token_ids": [33577, 2],
    }
    usage = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}
    usage |= {"reasoning_tokens": 1, "completion_tokens_details": None}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    async with serving(reply(body | {"usage": usage, "metadata": None})) as endpoint:
        for wants_tokens in (True, False):
            got = (await post(model(endpoint.url, return_token_id_information=wants_tokens), {"input": "hi"})).json()

            [item] = got["output"]
            assert (item["content"][0]["text"], got["usage"]["output_tokens_details"]) == (
                "Hi",
                {"reasoning_tokens": 1},
            )
            expected = ([1, 9690, 198], [33577, 2], [-0.5, -0.25]) if wants_tokens else (None, None, None)
            names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
            assert tuple(item.get(name) for name in names) == expected


async def test_tokens_go_back_to_a_trainers_server_and_only_once() -> None:
    routes = {
        CHAT: [
            reply(completion(prompt_token_ids=[1, 2], generation_token_ids=[7, 8], generation_log_probs=[-1.0, -1.0])),
            reply(completion(prompt_token_ids=[1, 2, 7, 8, 3], generation_token_ids=[9], generation_log_probs=[-1.0])),
            reply(completion(prompt_token_ids=[4], generation_token_ids=[5, 6], generation_log_probs=[-1.0, -1.0])),
        ]
    }
    question = {"role": "user", "content": "hi"}
    async with serving(routes=routes) as endpoint:
        server = model(endpoint.url, return_token_id_information=True)
        history: list[Any] = [question]
        for _ in range(3):
            history += [*(await post(server, {"input": history})).json()["output"], question]

        first, second, third = endpoint.sent_to(CHAT)
        assert "required_prefix_token_ids" not in first
        assert second["required_prefix_token_ids"] == [1, 2, 7, 8]
        assert second["messages"][1]["prompt_token_ids"] == [1, 2]
        assert second["messages"][1]["generation_token_ids"] == [7, 8]
        assert third["required_prefix_token_ids"] == [1, 2, 7, 8, 3, 9]
        assert ["generation_token_ids" in message for message in third["messages"]] == [
            False,
            False,
            False,
            True,
            False,
        ]
        assert set(endpoint.paths) == {CHAT}
        assert (history[5]["prompt_token_ids"], history[5]["generation_token_ids"]) == ([4], [5, 6])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (completion(), "no log-probabilities"),
        (completion(choice={"logprobs": {"content": [{"token": "hi", "logprob": -1}]}}), "instead of its id"),
        (completion(choice={"logprobs": {"content": [{"token": "token_id:1"}]}}), "without its log-probability"),
        (completion(choice={"logprobs": SCORES, "token_ids": [7]}), "1 tokens and 2 log-probabilities"),
        (completion(choice={"logprobs": SCORES, "token_ids": "7"}), "not a list of numbers"),
        (
            completion(prompt_token_ids=[1], generation_token_ids=[1, 2], generation_log_probs=[-1.0]),
            "2 tokens and 1 log-probabilities",
        ),
        (
            completion(choice={"logprobs": SCORES}, more={"usage": COUNTED}),
            "5 prompt tokens, but 1 ids were found",
        ),
    ],
)
async def test_tokens_that_do_not_fit_together_are_refused(answer: dict[str, Any], words: str) -> None:
    async with serving(routes={CHAT: reply(answer), TOKENIZE: reply({"tokens": [1]})}) as endpoint:
        got = await post(model(endpoint.url, return_token_id_information=True), {"input": "hi"})

        told = got.json()["error"]
        assert (got.status_code, told["type"]) == (502, "invalid_response")
        assert words in told["message"]
        assert "return_token_id_information: false" in told["hint"]


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"tokens": ["a"]}', b"[1]"])
async def test_an_endpoint_that_does_not_tokenize_is_told_clearly(body: bytes) -> None:
    routes = {CHAT: reply(completion(choice={"logprobs": SCORES})), TOKENIZE: reply(body)}
    async with serving(routes=routes) as endpoint:
        got = await post(model(endpoint.url, return_token_id_information=True), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (502, "invalid_response")
        assert " at /tokenize" in got.json()["error"]["message"]


async def test_the_tokenizer_of_the_endpoint_can_be_used() -> None:
    routes = {TOKENIZE: reply({"tokens": [1]}), "/detokenize": reply({"prompt": "hi"})}
    async with serving(routes=routes) as endpoint:
        server = model(endpoint.url)

        assert (await post(server, {"prompt": "hi"}, TOKENIZE)).json() == {"tokens": [1]}
        assert (await post(server, {"tokens": [1]}, "/detokenize")).json() == {"prompt": "hi"}
        assert endpoint.bodies == [{"prompt": "hi", "model": "real-name"}, {"tokens": [1], "model": "real-name"}]


async def test_input_tokens_are_counted_by_the_endpoint_that_can() -> None:
    routes = {"/tokenize": [reply({"count": 7, "tokens": []}), reply({"error": "no"}, 404)]}
    async with serving(routes=routes) as endpoint:
        server = model(endpoint.url)
        counted = await post(server, {"input": "hi"}, "/v1/responses/input_tokens")
        unknown = await post(server, {"input": "hi"}, "/v1/responses/input_tokens")

        assert counted.json() == {"object": "response.input_tokens", "input_tokens": 7}
        assert unknown.status_code == 501
        assert set(endpoint.bodies[0]) == {"messages", "model"}


async def test_input_tokens_are_counted_with_what_the_template_makes_of_the_effort() -> None:
    routes = {"/tokenize": reply({"count": 7, "tokens": []})}
    effort = {"reasoning_effort": "low", "enable_thinking": True}
    asked = {"model": "any", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with serving(routes=routes) as endpoint:
        server = model(endpoint.url, chat_template_kwargs={"style": "brief"})
        await post(server, {"input": "hi", "reasoning": {"effort": "low"}}, "/v1/responses/input_tokens")
        await post(server, asked | {"output_config": {"effort": "low"}}, "/v1/messages/count_tokens")

        assert [body["chat_template_kwargs"] for body in endpoint.bodies] == [effort | {"style": "brief"}] * 2


@pytest.mark.parametrize("keeps", [False, True])
async def test_strict_tools_are_sent_as_configured_and_said_to_be_left_out(
    keeps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    async with serving(reply(completion())) as endpoint:
        server = model(endpoint.url, strict_tools=keeps)
        for _ in range(2):
            await post(server, {"input": "hi", "tools": [tool]})

        sent = [body["tools"][0]["function"].get("strict") for body in endpoint.bodies]
        notes = [record for record in caplog.records if "strict_tools: true" in record.getMessage()]
        assert (sent, len(notes)) == (([True] * 2, 0) if keeps else ([None] * 2, 1))


# ---- streams --------------------------------------------------------------------------------------------------------
async def test_a_streamed_chat_is_passed_on_with_the_settings_of_the_server() -> None:
    body = completion_stream(completion(), usage=False)
    async with serving(reply(body, headers="Content-Type: text/event-stream\r\n")) as endpoint:
        asked = {"messages": [{"role": "developer", "content": "hi"}], "stream": True, "top_k": 3}
        server = model(endpoint.url, replace_developer_role_with_system=True, extra_body={"min_p": 0.1})
        got = await post(server, asked, CHAT)

        assert got.content == body
        (sent,) = endpoint.bodies
        assert (sent["stream"], sent["top_k"], sent["min_p"]) == (True, 3, 0.1)
        assert sent["messages"][0]["role"] == "system"


async def test_a_stream_that_does_not_begin_is_answered_like_any_other_request() -> None:
    too_long = reply({"error": {"message": "This model's maximum context length is 8 tokens"}}, 400)
    async with serving(too_long) as endpoint:
        got = await post(model(endpoint.url), {"messages": [], "stream": True}, CHAT)

        assert (got.status_code, got.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        assert b'"finish_reason":"length"' in got.content
    async with serving(reply({"error": {"message": "no"}}, 400)) as endpoint:
        refused = await post(model(endpoint.url), {"messages": [], "stream": True}, CHAT)

        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "rejected")


# ---- several endpoints ----------------------------------------------------------------------------------------------
async def test_a_session_stays_with_its_endpoint_and_sessions_are_spread() -> None:
    async with serving(reply(completion())) as one, serving(reply(completion())) as other:
        server = model(one.url, other.url)
        for number in range(4):
            async with client(server) as session:
                for _ in range(number + 1):
                    assert (await session.post("/v1/responses", json={"input": f"{number}"})).status_code == 200

        def asked(endpoint: Endpoint) -> list[str]:
            return [body["messages"][0]["content"][0]["text"] for body in endpoint.bodies]

        assert (asked(one), asked(other)) == (["0", "2", "2", "2"], ["1", "1", "3", "3", "3", "3"])


async def test_a_client_with_one_cookie_is_spread_over_the_endpoints_by_conversation_and_by_rollout() -> None:
    async with serving(reply(completion())) as one, serving(reply(completion())) as other:
        server = model(one.url, other.url)
        async with client(server) as session:
            for text in ("a", "b", "a", "b"):
                question = {"role": "user", "content": text}
                await session.post("/v1/responses", json={"input": [question]})
        counts = len(one.bodies), len(other.bodies)
        mark_rollout(0, 0, 1)
        async with client(server) as session:
            for text in ("c", "d"):
                await session.post("/v1/responses", json={"input": text})

        assert counts == (2, 2)
        assert [body["messages"][0]["content"] for body in one.bodies[:2]] == ["a", "a"]
        assert (len(one.bodies), len(other.bodies)) == (4, 2)


@pytest.mark.parametrize("answer", [CUT, reply(b"upstream gone", 502), reply({}, 503)])
async def test_the_sessions_of_an_endpoint_that_is_gone_move_on(answer: bytes) -> None:
    async with serving(answer) as gone, serving(reply(completion())) as working:
        server = model(gone.url, working.url)
        async with client(server) as session:
            for _ in range(3):
                assert (await session.post("/v1/responses", json={"input": "hi"})).status_code == 200

        assert (len(gone.bodies), len(working.bodies)) == (1, 3)


async def test_an_endpoint_that_works_again_is_asked_for_its_health_first() -> None:
    routes = {CHAT: [CUT, reply(completion())], "/health": reply(b"")}
    async with serving(routes=routes) as first, serving(reply(completion())) as second:
        server = model(first.url, second.url)
        await post(server, {"input": "hi"})
        server._calls.replicas.all[0].down_until = 0.0  # the rest is over
        await post(server, {"input": "hi"})
        await post(server, {"input": "hi"})

        assert first.paths == [CHAT, "/health", CHAT]
        assert len(second.bodies) == 2


async def test_when_no_endpoint_works_the_last_error_is_told() -> None:
    async with serving(CUT) as one, serving(CUT) as other:
        got = await post(model(one.url, other.url, max_retries=1), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (502, "unreachable")
        assert len(one.bodies) + len(other.bodies) == 3


async def test_the_health_of_all_endpoints_can_be_asked_for() -> None:
    async with serving(reply(b"")) as one, serving(reply(b"", 500)) as other:
        async with client(model(one.url, other.url)) as session:
            some = await session.get("/health")
        async with client(model(other.url)) as session:
            none = await session.get("/health")

        assert [entry["healthy"] for entry in some.json()["endpoints"]] == [True, False]
        assert (some.status_code, none.status_code) == (200, 503)


# ---- back-pressure --------------------------------------------------------------------------------------------------
def metrics(waiting: int) -> bytes:
    lines = ["# TYPE x gauge", 'vllm:num_requests_running{engine="0"} 9', 'vllm:num_requests_waiting{engine="0"} %d.0']
    text = "\n".join(lines) % waiting
    return reply(text.encode())


async def test_requests_are_held_back_while_the_endpoint_has_a_long_queue() -> None:
    routes = {CHAT: reply(completion()), "/metrics": [metrics(3), metrics(0)]}
    async with (
        serving(routes=routes, delay_s=0.2) as endpoint,
        client(model(endpoint.url, max_queue_depth=2)) as session,
    ):
        await asyncio.gather(*(session.post("/v1/responses", json={"input": "hi"}) for _ in range(12)))

        before = endpoint.paths[: endpoint.paths.index("/metrics", endpoint.paths.index("/metrics") + 1)]
        assert before.count(CHAT) == 7
        assert endpoint.paths.count(CHAT) == 12


async def test_an_endpoint_that_does_not_publish_its_queue_is_asked_once() -> None:
    routes = {CHAT: reply(completion()), "/metrics": reply(b"", 404)}
    async with serving(routes=routes, delay_s=0.3) as endpoint:
        server = model(endpoint.url, max_queue_depth=1)
        await asyncio.gather(*(post(server, {"input": "hi"}) for _ in range(20)))

        assert endpoint.paths.count("/metrics") == 1


async def test_a_queue_that_stays_long_is_a_rate_limit() -> None:
    routes = {CHAT: reply(completion()), "/metrics": metrics(99)}
    settings = {"max_queue_depth": 2, "request_timeout_s": 1.0}
    async with serving(routes=routes, delay_s=0.2) as endpoint, client(model(endpoint.url, **settings)) as session:
        answers = await asyncio.gather(*(session.post("/v1/responses", json={"input": "hi"}) for _ in range(9)))

        refused = [answer.json()["error"] for answer in answers if answer.status_code == 429]
        assert len(refused) == 2
        assert "99 requests waited there" in refused[0]["message"]
        assert "max_queue_depth" in refused[0]["hint"]


async def test_no_more_requests_at_once_than_allowed() -> None:
    async with serving(reply(completion()), delay_s=0.01) as endpoint:
        server = model(endpoint.url, max_concurrent_requests=2)
        await asyncio.gather(*(post(server, {"input": "hi"}) for _ in range(6)))

        assert endpoint.most_busy == 2


# ---- what goes wrong ------------------------------------------------------------------------------------------------
REPEATED = completion("tool_calls", tool_calls=[TOOL_CALL, TOOL_CALL])
FAULTS: dict[str, tuple[bytes, int, str, str]] = {
    "wrong key": (reply(error(f"Incorrect API key: {KEY}"), 401), 502, "auth", "Incorrect API key: ****"),
    "wrong model": (
        reply({"object": "error", "message": "no model x"}, 404),
        502,
        "unreachable",
        "status 404: no model x",
    ),
    "busy": (reply(error("slow"), 429, "Retry-After: 0\r\n"), 429, "rate_limited", "status 429 (2 attempts): slow"),
    "broken": (reply(error("boom"), 500), 502, "model_error", "status 500 (2 attempts): boom"),
    "a page": (reply(b"<html>gateway</html>"), 502, "invalid_response", "gateway"),
    "half the JSON": (reply(json.dumps(completion()).encode()[:-7]), 502, "invalid_response", "not a chat completion"),
    "nothing": (reply(b""), 502, "invalid_response", "(empty)"),
    "an error as 200": (reply({"object": "error", "message": "overloaded"}), 502, "model_error", "overloaded"),
    "half the body": (reply(completion())[:-40] + CUT, 502, "connection", "the reply broke off (2 attempts)"),
    "not HTTP": (CUT, 502, "unreachable", "not a valid HTTP reply"),
    "half a stream": (stream({"choices": []}), 502, "invalid_response", "a stream that broke off"),
}


@pytest.mark.parametrize(("answer", "status", "kind", "words"), FAULTS.values(), ids=FAULTS)
async def test_what_goes_wrong_upstream_is_told_clearly_and_without_the_key(
    answer: bytes, status: int, kind: str, words: str
) -> None:
    async with serving(answer) as endpoint:
        got = await post(model(endpoint.url, max_retries=1), {"input": "hi"})

        told = got.json()["error"]
        assert (got.status_code, told["type"], got.headers["X-NG-Failure-Class"]) == (status, kind, kind)
        assert words in told["message"]
        assert told["message"].startswith(f"model real-name at {endpoint.url}: ")
        assert told["hint"]
        assert KEY not in got.text


async def test_an_endpoint_that_streams_for_ever_is_given_up() -> None:
    head = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(head + ENDLESS) as endpoint:
        got = await post(model(endpoint.url, request_timeout_s=0.1), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (504, "timeout")
        assert len(endpoint.bodies) == 1


async def test_an_endpoint_that_is_not_there_is_told_clearly() -> None:
    got = await post(model("http://127.0.0.1:1/v1"), {"input": "hi"})
    await close_http_client()

    assert (got.status_code, got.json()["error"]["type"]) == (502, "unreachable")
    assert "cannot connect" in got.json()["error"]["message"]


async def test_odd_answers_are_used_and_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": -4, "total_tokens": -1}
    async with serving(reply(REPEATED | {"usage": usage})) as endpoint:
        server = model(endpoint.url)
        for _ in range(2):
            got = (await post(server, {"input": "hi"})).json()

            assert [item["call_id"] for item in got["output"][1:]] == ["c", "c_2"]
            assert got["usage"] is None
        assert caplog.text.count("repeated call ids") == caplog.text.count("negative numbers") == 1


async def test_anthropics_protocol_is_spoken_too() -> None:
    async with serving(reply(completion())) as endpoint:
        body = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        got = (await post(model(endpoint.url), body, "/v1/messages")).json()

        assert (got["content"], got["stop_reason"]) == ([{"type": "text", "text": "hi"}], "end_turn")
        assert endpoint.bodies[0]["max_tokens"] == 9


def test_the_converter_can_be_imported_from_here() -> None:
    assert split_responses_input_output_items([]) == ([], [])


def test_the_key_is_in_no_repr() -> None:
    server = model("http://127.0.0.1:1/v1", default_headers={"X-Key": KEY})

    assert KEY not in repr(server)
    assert KEY not in repr(server._calls.replicas.all)


async def test_an_empty_account_is_not_asked_again() -> None:
    refusal = reply({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, 429)
    async with serving(refusal) as endpoint:
        got = await post(model(endpoint.url, max_retries=8), {"input": "hi"})

        assert (got.json()["error"]["type"], len(endpoint.bodies)) == ("quota", 1)
        assert "status 429: You exceeded your current quota" in got.json()["error"]["message"]
