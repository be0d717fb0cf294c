"""Every row of the table of losses, played through a real model server: refused, or answered and logged."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.conversion.losses import (
    ANNOTATIONS,
    ASYNC,
    CACHE_CONTROL,
    CALLER,
    COMPLETION_ANNOTATIONS,
    COMPLETION_AUDIO,
    DOCUMENT_CITATIONS,
    DOCUMENT_CONTEXT,
    ENCRYPTED,
    FILE_DETAIL,
    IMAGE_DETAIL,
    IS_ERROR,
    LATE_INSTRUCTIONS,
    LOSSES,
    NAMESPACE,
    PAST_AUDIO,
    PAST_LOGPROBS,
    PHASE,
    SPEAKERS,
    SUMMARY,
    UNSIGNED,
    Loss,
    Way,
)
from nemo_gym.conversion.parts import CACHE_BREAKPOINT, CHOICE_WITHOUT_TOOLS
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from responses_api_models.anthropic_model.app import AnthropicModel, AnthropicModelConfig
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from responses_api_models.openai_model.tests.scripted_endpoint import reply, serving

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"
USER = {"role": "user", "content": "hi"}


def said(part: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    text = {"type": "output_text", "text": "yes", "annotations": [], **(part or {})}
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text], **more}


def thought(**more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "r", "summary": [], **more}


CITED = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 1}
SCORED = {"token": "yes", "logprob": -1.0, "bytes": [], "top_logprobs": []}
SUMMARISED = [{"type": "summary_text", "text": "hm"}]
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "1"}
FILE = {"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}

# What of a request of the Responses API is lost in both of the other protocols.
COMMON: dict[str, dict[str, Any]] = {
    "items of type *": {"input": [USER, {"type": "local_shell_call", "call_id": "c", "id": "i", "action": {}}]},
    "previous_response_id": {"previous_response_id": "resp_1"},
    "conversation": {"conversation": "conv_1"},
    "prompt": {"prompt": {"id": "p"}},
    "truncation": {"truncation": "auto"},
    "max_tool_calls": {"max_tool_calls": 3},
    "tools.*": {"tools": [{"type": "mcp", "server_label": "s", "server_url": "https://s"}]},
    "tool_choice.*": {"tools": [FUNCTION], "tool_choice": {"type": "web_search"}},
    CHOICE_WITHOUT_TOOLS: {"tool_choice": "required"},
    "reasoning.*": {"reasoning": {"summary": "auto"}},
    "include": {"include": ["file_search_call.results"]},
    "background": {"background": True},
    ANNOTATIONS: {"input": [USER, said({"annotations": [CITED]}), USER]},
    PAST_LOGPROBS: {"input": [USER, said({"logprobs": [SCORED]}), USER]},
    PHASE: {"input": [USER, said(phase="commentary"), USER]},
    NAMESPACE: {"input": [USER, CALLED, RESULT]},
    CALLER: {"input": [USER, CALLED | {"caller": {"type": "program", "caller_id": "p"}}, RESULT]},
    ASYNC: {"input": [USER, CALLED | {"async": True}, RESULT]},
    "options of tools: *": {"tools": [FUNCTION | {"defer_loading": True}]},
    FILE_DETAIL: {"input": [{"role": "user", "content": [FILE | {"detail": "high"}]}]},
}
EXAMPLES: dict[Way, dict[str, dict[str, Any]]] = {
    Way.TO_CHAT: COMMON
    | {
        "text.*": {"text": {"shape": "round"}},
        "*": {"context_management": [{"type": "compaction", "compact_threshold": 9}]},
        ENCRYPTED: {"input": [USER, thought(encrypted_content="x"), said(), USER]},
        SUMMARY: {
            "input": [
                USER,
                thought(summary=SUMMARISED, content=[{"type": "reasoning_text", "text": "h"}]),
                said(),
                USER,
            ]
        },
    },
    Way.TO_MESSAGES: COMMON
    | {
        "text.*": {"text": {"verbosity": "low"}},
        "reasoning.effort": {"reasoning": {"effort": "extreme"}},
        "top_logprobs": {"top_logprobs": 2},
        "include.message.output_text.logprobs": {"include": ["message.output_text.logprobs"]},
        "service_tier": {"service_tier": "flex"},
        "prompt_cache_*": {"prompt_cache_key": "k"},
        "safety_identifier": {"safety_identifier": "s", "user": "u"},
        IMAGE_DETAIL: {"input": [{"role": "user", "content": [IMAGE]}]},
        CACHE_BREAKPOINT: {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x", CACHE_BREAKPOINT: {"type": "auto"}}]}
            ]
        },
        COMPLETION_ANNOTATIONS: {},
        "metadata": {"metadata": {"a": "b"}},
        "store": {"store": True},
        UNSIGNED: {"input": [USER, thought(summary=SUMMARISED), said(), USER]},
        LATE_INSTRUCTIONS: {"input": [USER, {"role": "system", "content": "be brief"}]},
        "*": {"min_p": 0.1},
    },
    Way.FROM_CHAT: {
        PAST_AUDIO: {"messages": [USER, {"role": "assistant", "content": "x", "audio": {"id": "a"}}, USER]},
        COMPLETION_AUDIO: {},
        ANNOTATIONS: {"messages": [USER, {"role": "assistant", "content": "x", "annotations": [CITED]}, USER]},
        SPEAKERS: {"messages": [USER | {"name": "Ada"}]},
        "*": {"logit_bias": {"1": 2.0}},
    },
    Way.FROM_MESSAGES: {
        "stop_sequences": {"stop_sequences": ["x"]},
        "top_k": {"top_k": 3},
        "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "context_management": {"context_management": {"edits": []}},
        "tools.*": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "options of tools: *": {"tools": [{"name": "f", "input_schema": {"type": "object"}, "input_examples": [{}]}]},
        "output_config.*": {"output_config": {"task_budget": {"tokens": 9}}},
        DOCUMENT_CITATIONS: {"messages": [{"role": "user", "content": []}]},
        DOCUMENT_CONTEXT: {"messages": [{"role": "user", "content": []}]},
        IS_ERROR: {"messages": [{"role": "user", "content": []}]},
        CACHE_CONTROL: {"messages": [{"role": "user", "content": []}]},
        "service_tier": {"service_tier": "auto"},
        "metadata.*": {"metadata": {"other": "x"}},
        "*": {"mcp_servers": [{"name": "s"}]},
    },
    Way.FROM_GEMINI: {
        "generationConfig.stopSequences": {"generationConfig": {"stopSequences": ["x"]}},
        "generationConfig.topK": {"generationConfig": {"topK": 3}},
        "generationConfig.seed": {"generationConfig": {"seed": 3}},
        "generationConfig.presencePenalty": {"generationConfig": {"presencePenalty": 0.5}},
        "generationConfig.frequencyPenalty": {"generationConfig": {"frequencyPenalty": 0.5}},
        "generationConfig.thinkingConfig.*": {"generationConfig": {"thinkingConfig": {"thinkingBudget": 9}}},
        "generationConfig.*": {"generation_config": {"candidate_count": 2}},
        "tools.*": {"tools": [{"googleSearch": {}}]},
        "options of tools: *": {"tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]},
        "safetySettings": {"safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}]},
        "labels": {"labels": {"a": "b"}},
        "*": {"cachedContent": "cachedContents/1"},
    },
    Way.TO_HANDLER: {
        "prompt_cache_*": {"prompt_cache_retention": "24h"},
        "safety_identifier": {"safety_identifier": "s"},
    },
}
SOURCE = {"type": "text", "media_type": "text/plain", "data": "d"}
BLOCKS: dict[str, dict[str, Any]] = {
    DOCUMENT_CITATIONS: {"type": "document", "source": SOURCE, "citations": {"enabled": True}},
    DOCUMENT_CONTEXT: {"type": "document", "source": SOURCE, "context": "c"},
    IS_ERROR: {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True},
    CACHE_CONTROL: {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
}
for name, block in BLOCKS.items():
    EXAMPLES[Way.FROM_MESSAGES][name] = {"messages": [{"role": "user", "content": [block]}]}

ANSWERS: dict[Way, Any] = {
    Way.TO_CHAT: {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    },
    Way.TO_MESSAGES: {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    Way.FROM_MESSAGES: {
        "id": "resp",
        "object": "response",
        "created_at": 1.0,
        "model": "m",
        "output": [said()],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    },
}
ANSWERS[Way.FROM_CHAT] = ANSWERS[Way.TO_MESSAGES]
ANSWERS[Way.FROM_GEMINI] = ANSWERS[Way.FROM_MESSAGES]
ANSWERS[Way.TO_HANDLER] = ANSWERS[Way.FROM_MESSAGES]
SPOKEN = {"role": "assistant", "content": None, "audio": {"id": "a", "data": "UklGRg==", "transcript": "hi"}}
# What is lost of an answer: the way of the request, and the answer.
OF_ANSWERS: dict[str, tuple[Way, Any]] = {
    COMPLETION_AUDIO: (
        Way.TO_CHAT,
        ANSWERS[Way.TO_CHAT] | {"choices": [{"index": 0, "finish_reason": "stop", "message": SPOKEN}]},
    ),
    COMPLETION_ANNOTATIONS: (
        Way.FROM_MESSAGES,
        ANSWERS[Way.FROM_MESSAGES] | {"output": [said({"annotations": [CITED]})]},
    ),
}
BASES: dict[Way, tuple[str, dict[str, Any]]] = {
    Way.TO_CHAT: ("/v1/responses", {"input": "hi"}),
    Way.TO_MESSAGES: ("/v1/responses", {"input": "hi"}),
    Way.FROM_CHAT: ("/v1/chat/completions", {"messages": [USER]}),
    Way.FROM_MESSAGES: ("/v1/messages", {"messages": [USER], "max_tokens": 9}),
    Way.FROM_GEMINI: ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
    Way.TO_HANDLER: ("/v1/responses", {"input": "hi"}),
}


class Overriding(OpenAIModel):
    """A server with a handler of its own, which takes the interface's request type."""

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        return await super().responses(body)


def server_of(way: Way, url: str, **settings: Any) -> SimpleResponsesAPIModel:
    """A server that has to go this way."""
    common = {"host": "h", "port": 1, "entrypoint": "", "name": "policy_model", "max_retries": 0, **settings}
    client = ServerClient.detached()
    if way in (Way.TO_MESSAGES, Way.FROM_CHAT):
        address = {"anthropic_base_url": url, "anthropic_api_key": "none", "anthropic_model": "m"}
        return AnthropicModel(config=AnthropicModelConfig(**common | address), server_client=client)
    address = {"openai_base_url": url, "openai_api_key": "none", "openai_model": "m"}
    if way is Way.TO_CHAT:
        address["endpoint"] = "chat_completions"
    kind = Overriding if way is Way.TO_HANDLER else OpenAIModel
    return kind(config=OpenAIModelConfig(**common | address), server_client=client)


async def ask(server: SimpleResponsesAPIModel, way: Way, example: dict[str, Any]) -> httpx.Response:
    path, body = BASES[way]
    transport = httpx.ASGITransport(server.setup_webserver(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
        return await client.post(path, json=body | example)


# The rows of the embedded model are played in its own tests, where one is loaded.
PLAYED_HERE = [loss for loss in LOSSES if loss.way is not Way.TO_LOCAL]


@pytest.mark.parametrize("loss", PLAYED_HERE, ids=lambda loss: f"{loss.way.name}-{loss.name}")
async def test_nothing_is_lost_in_silence(loss: Loss, caplog: pytest.LogCaptureFixture) -> None:
    example = EXAMPLES[loss.way][loss.name]
    way, answer = OF_ANSWERS.get(loss.name, (loss.way, ANSWERS.get(loss.way)))
    words = f"{loss.way.target} has no equivalent for {loss.name.removesuffix('*')}"
    async with serving(reply(answer)) as endpoint:
        strict = await ask(server_of(way, endpoint.url), way, example)
        if loss.changes_answer:
            assert (strict.status_code, endpoint.bodies) == (400, [])
            assert words in strict.json()["error"]["message"]
            assert "on_loss: warn" in strict.json()["error"]["message"]
        else:
            assert strict.status_code == 200, strict.text
            assert words in caplog.text
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            lenient = await ask(server_of(way, endpoint.url, on_loss="warn"), way, example)
            assert (lenient.status_code, words in caplog.text) == (200, True), lenient.text
            caplog.clear()
            silent = await ask(server_of(way, endpoint.url, on_loss="ignore"), way, example)
            assert (silent.status_code, caplog.text) == (200, "")


@pytest.mark.parametrize("way", [Way.TO_CHAT, Way.TO_MESSAGES])
async def test_allowed_tools_of_other_kinds_are_not_lost_in_silence(way: Way) -> None:
    hosted = {"type": "mcp", "server_label": "s"}
    asked = {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [hosted, FUNCTION]}}
    async with serving(reply(ANSWERS[way])) as endpoint:
        refused = await ask(server_of(way, endpoint.url), way, asked)
        assert (refused.status_code, endpoint.bodies) == (400, [])
        assert "tool_choice.allowed_tools.mcp" in refused.json()["error"]["message"]
        assert (await ask(server_of(way, endpoint.url, on_loss="warn"), way, asked)).status_code == 200
        assert len(endpoint.bodies[0]["tools"]) == 1
        assert "mcp" not in str(endpoint.bodies)


async def test_an_allowed_tool_that_is_not_offered_is_named() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    async with serving(reply(ANSWERS[Way.TO_MESSAGES])) as endpoint:
        server = server_of(Way.TO_MESSAGES, endpoint.url)
        refused = await ask(server, Way.TO_MESSAGES, {"tools": [FUNCTION], "tool_choice": choice})
        assert (refused.status_code, endpoint.bodies) == (400, [])
        assert "tool_choice.allowed_tools other" in refused.json()["error"]["message"]


async def test_custom_tools_reach_an_endpoint_that_is_asked_in_its_own_protocol() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "python", "input": "1 + 1"}}
    history = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "2"}]
    asked = {"messages": history, "tools": [{"type": "custom", "custom": {"name": "python"}}]}
    async with serving(reply(ANSWERS[Way.TO_CHAT])) as endpoint:
        server = server_of(Way.TO_CHAT, endpoint.url)
        assert (await ask(server, Way.FROM_CHAT, asked)).status_code == 200
        assert endpoint.bodies[0].items() >= asked.items()
    async with serving(reply(ANSWERS[Way.FROM_CHAT])) as endpoint:
        refused = await ask(server_of(Way.FROM_CHAT, endpoint.url), Way.FROM_CHAT, asked)
        assert (refused.status_code, endpoint.bodies) == (400, [])
        assert "tools.custom" in refused.json()["error"]["message"]


def test_the_documents_list_every_loss() -> None:
    rows = [
        f"| {loss.way} | `{loss.name}` | {'yes' if loss.changes_answer else 'no'} | {loss.why} |" for loss in LOSSES
    ]

    assert "\n".join(rows) in DOCUMENT.read_text(encoding="utf-8")
