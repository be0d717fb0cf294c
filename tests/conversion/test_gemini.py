"""Gemini's protocol: what is said in it arrives, and what a model says comes back."""

import base64
from typing import Any

import orjson
import pytest

from nemo_gym.conversion.gemini.gemini_completions import gemini_chunks, gemini_stream, response_to_gemini
from nemo_gym.conversion.gemini.gemini_history import contents_to_items
from nemo_gym.conversion.gemini.gemini_requests import gemini_to_request, json_schema
from nemo_gym.conversion.parts import UnsupportedContentError

THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    details = {"input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 3}}
    return {"id": "r", "model": "m", "output": list(output), "usage": usage | details, **more}


@pytest.mark.parametrize("shown", [False, True])
def test_thoughts_come_back_with_what_follows_them_whether_or_not_they_are_shown(shown: bool) -> None:
    content = response_to_gemini(response(THOUGHT, SAID, CALL), thoughts=shown)["candidates"][0]["content"]
    assert [part.get("thought", False) for part in content["parts"]] == ([True] if shown else []) + [False, False]
    items = contents_to_items([content])
    assert items[0] == THOUGHT
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert items[2] == CALL


def test_signatures_of_others_are_left_alone() -> None:
    part = {"text": "Yes.", "thoughtSignature": base64.b64encode(b"\x01\x02\xff").decode()}
    assert [item["type"] for item in contents_to_items([{"role": "model", "parts": [part]}])] == ["message"]


def test_usage_counts_thoughts_apart() -> None:
    assert response_to_gemini(response(SAID))["usageMetadata"] == {
        "promptTokenCount": 5,
        "candidatesTokenCount": 4,
        "totalTokenCount": 12,
        "cachedContentTokenCount": 2,
        "thoughtsTokenCount": 3,
    }


def test_a_stream_adds_up_to_the_whole() -> None:
    whole = response_to_gemini(response(THOUGHT, SAID, CALL, incomplete_details={"reason": "max_output_tokens"}))
    chunks = list(gemini_chunks(whole))
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert parts == whole["candidates"][0]["content"]["parts"]
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks] == [None, "MAX_TOKENS"]
    assert orjson.loads(gemini_stream(whole, as_events=False)) == chunks


def test_calls_without_ids_find_their_results_by_name_and_order() -> None:
    def called(name: str) -> dict[str, Any]:
        return {"functionCall": {"name": name, "args": {}}}

    def result(name: str, value: Any) -> dict[str, Any]:
        return {"functionResponse": {"name": name, "response": value}}

    turns = [
        {"role": "model", "parts": [called("f"), called("g"), called("f")]},
        {"role": "user", "parts": [result("g", {"output": "1"}), result("f", {"error": "no"}), result("f", {"a": 2})]},
    ]
    items = contents_to_items(turns)
    assert [item["call_id"] for item in items] == ["call_1", "call_2", "call_3", "call_2", "call_1", "call_3"]
    assert [item["output"] for item in items[3:]] == ["1", '{"error":"no"}', '{"a":2}']


def test_files_become_parts() -> None:
    given = [("image/png", "input_image"), ("audio/wav", "input_audio"), ("application/pdf", "input_file")]
    parts = [{"inline_data": {"mime_type": kind, "data": "AA=="}} for kind, _ in given]
    [item] = contents_to_items([{"role": "user", "parts": parts}])
    assert [part["type"] for part in item["content"]] == [kind for _, kind in given]
    with pytest.raises(UnsupportedContentError, match="video/mp4"):
        contents_to_items([{"role": "user", "parts": [{"inlineData": {"mimeType": "video/mp4", "data": ""}}]}])


def test_schemas_of_openapi_become_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "a": {"type": "STRING", "nullable": True, "enum": ["x"]},
            "b": {"type": "ARRAY", "minItems": "1"},
        },
        "propertyOrdering": ["a", "b"],
    }
    assert json_schema(schema) == {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"], "enum": ["x", None]}, "b": {"type": "array", "minItems": 1}},
    }


def test_choices_of_tools_are_carried_over() -> None:
    declared = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]

    def choice(**config: Any) -> Any:
        body = {"contents": [], "tools": declared, "toolConfig": {"functionCallingConfig": config}}
        return gemini_to_request(body).request["tool_choice"]

    assert [choice(mode=mode) for mode in ("AUTO", "NONE", "ANY")] == ["auto", "none", "required"]
    assert choice(mode="ANY", allowedFunctionNames=["g"]) == {"type": "function", "name": "g"}
    assert choice(mode="AUTO", allowedFunctionNames=["g"])["tools"] == [{"type": "function", "name": "g"}]


def test_forms_of_answers_are_carried_over() -> None:
    def form(**config: Any) -> Any:
        return gemini_to_request({"contents": [], "generationConfig": config}).request.get("text")

    assert form(responseMimeType="application/json") == {"format": {"type": "json_object"}}
    assert form(responseSchema={"type": "STRING"})["format"]["schema"] == {"type": "string"}
    assert form(responseMimeType="text/plain") is None
