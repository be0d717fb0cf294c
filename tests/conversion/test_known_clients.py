"""Requests of known programs become ordinary ones, and answers come back under the names that the program knows."""

from typing import Any

import orjson
import pytest

from nemo_gym.capture.outline import outline
from nemo_gym.conversion.programs.dialects import Dialect, asked_items, route_of
from nemo_gym.conversion.programs.known_clients import adapt, flat_name, restore
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming

SPAWN = {"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}, "defer_loading": True}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"definition": "start: X"}}
CODEX = {
    "model": "m",
    "input": [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "a", "name": "spawn_agent", "namespace": "agents", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "ok"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
    ],
    "tools": [{"type": "namespace", "name": "agents", "tools": [SPAWN]}, PATCH, {"type": "web_search"}],
    "client_metadata": {"a": "b"},
    "reasoning": {"effort": "low", "context": "all"},
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "shiny_new_option": 1,
}


def test_a_request_of_codex_becomes_an_ordinary_one_and_its_names_come_back() -> None:
    adapted = adapt(Dialect.RESPONSES, CODEX)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(adapted.body)
    assert [tool["name"] for tool in adapted.body["tools"]] == ["agents__spawn_agent", "apply_patch"]
    assert "start: X" in adapted.body["tools"][1]["description"]
    assert "defer_loading" not in str(adapted.body)
    assert [item.get("name") for item in adapted.body["input"]] == [
        *(None, "agents__spawn_agent", None, "apply_patch", None)
    ]
    assert sorted(adapted.left_out) == ["items of type web_search_call", "shiny_new_option", "tools.web_search"]
    output = [
        {"type": "function_call", "call_id": "c", "name": "agents__spawn_agent", "arguments": "{}", "ng_call": "x"},
        {"type": "function_call", "call_id": "d", "name": "apply_patch", "arguments": '{"input": "*** End"}'},
        {"type": "function_call", "call_id": "e", "name": "other", "arguments": "{}"},
    ]
    restored = restore(Dialect.RESPONSES, {"output": output}, adapted.names)["output"]
    assert (restored[0]["name"], restored[0]["namespace"], restored[0]["ng_call"]) == ("spawn_agent", "agents", "x")
    assert restored[1] == {"type": "custom_tool_call", "call_id": "d", "name": "apply_patch", "input": "*** End"}
    assert restored[2] == output[2]


def test_long_names_stay_within_the_limit_and_apart() -> None:
    names = {flat_name("mcp__" + "x" * 60, f"tool_{number}") for number in range(50)}
    assert len(names) == 50
    assert max(map(len, names)) <= 64
    assert flat_name("mcp__files__", "read") == "mcp__files__read"


def test_what_only_a_hosted_service_can_do_is_left_out_of_messages() -> None:
    tool = {"name": "Read", "input_schema": {"type": "object"}, "defer_loading": True, "cache_control": {"type": "x"}}
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": "m", "messages": [], "max_tokens": 1, "tools": [tool, hosted], "context_management": {"edits": []}}
    adapted = adapt(Dialect.MESSAGES, {**body, "mcp_servers": [{}]})
    assert adapted.body["tools"] == [{key: value for key, value in tool.items() if key != "defer_loading"}]
    assert adapted.left_out == ["mcp_servers", "tools.web_search_20250305"]
    alone = adapt(Dialect.MESSAGES, {**body, "tools": [hosted], "tool_choice": {"type": "any"}})
    assert not alone.body.keys() & {"tools", "tool_choice"}


def test_a_request_of_gemini_keeps_its_functions() -> None:
    declared = [{"function_declarations": [{"name": "f", "behavior": "BLOCKING"}]}, {"googleSearch": {}}]
    body = {"contents": [], "tools": declared, "generation_config": {"top_p": 1, "speech_config": {}}, "x": 1}
    adapted = adapt(Dialect.GEMINI, body)
    assert adapted.body["tools"] == [{"functionDeclarations": [{"name": "f"}]}]
    assert adapted.body["generationConfig"] == {"topP": 1}
    assert adapted.left_out == ["x", "tools.googleSearch", "generationConfig.speechConfig"]


@pytest.mark.parametrize(
    ("path", "dialect", "asked"),
    [
        ("/v1/responses", Dialect.RESPONSES, "/v1/responses"),
        ("//v1//chat/completions/", Dialect.CHAT, "/v1/chat/completions"),
        ("/v1beta/models/a/b:streamGenerateContent", Dialect.GEMINI, "/v1beta/models/a/b:generateContent"),
        ("/v1/messages/count_tokens", Dialect.MESSAGES, "/v1/messages/count_tokens"),
    ],
)
def test_paths_name_their_protocol(path: str, dialect: Dialect, asked: str) -> None:
    route = route_of(path)
    assert route is not None
    assert (route.dialect, route.path) == (dialect, asked)


@pytest.mark.parametrize("path", ["/ng-calls", "/v1/models", "/v1/responses/../ng-calls", "/tokenize", ""])
def test_other_paths_call_no_model(path: str) -> None:
    assert route_of(path) is None


def test_one_conversation_has_the_same_items_in_every_protocol() -> None:
    arguments: dict[str, Any] = {"a": 1}
    text = orjson.dumps(arguments).decode()
    chat_call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": arguments}
    bodies: dict[Dialect, dict[str, Any]] = {
        Dialect.RESPONSES: {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "Hi"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": text},
                {"type": "function_call_output", "call_id": "c", "output": "2"},
            ],
        },
        Dialect.CHAT: {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None, "tool_calls": [chat_call]},
                {"role": "tool", "tool_call_id": "c", "content": "2"},
            ]
        },
        Dialect.MESSAGES: {
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "2"}]},
            ],
        },
        Dialect.GEMINI: {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "Hi"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "f", "args": arguments}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "2"}}}]},
            ],
        },
    }
    assert len({outline(asked_items(dialect, body)).text for dialect, body in bodies.items()}) == 1
