"""Model calls of rollouts in files, and the trajectories that are made of them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from pydantic import ValidationError
from starlette.responses import StreamingResponse

from nemo_gym import base_responses_api_model as front
from nemo_gym.base_responses_api_model import CaptureStore, ModelCallCaptureConfig, install_model_call_capture
from nemo_gym.capture.call_records import build_model_call_record, extract_token_stats
from nemo_gym.capture.trajectories import attach_trajectory, build_trajectory
from nemo_gym.conversion.response_streams import response_stream
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle, ModelCallRef

if TYPE_CHECKING:
    from conftest import MockModel

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": "m",
    "status": "completed",
    "output": [{"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": '{"far": true}'}],
    "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9, "input_tokens_details": {"cached_tokens": 4}},
}


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    return CaptureStore(tmp_path / "calls")


@pytest.fixture
def client(store: CaptureStore) -> TestClient:
    app = FastAPI()

    @app.post("/v1/responses")
    async def responses(request: Request) -> Any:
        front.start_model_execution(request, upstream_attempted=True)["response_source"] = "upstream"
        if (await request.json()).get("stream"):
            return StreamingResponse(iter([response_stream(RESPONSE)]), media_type="text/event-stream")
        return RESPONSE

    @app.post("/v1/chat/completions")
    async def chat() -> Any:
        raise RuntimeError("broken")

    settings = ModelCallCaptureConfig(observability_enabled=True, model_call_capture_dir=store.root)
    install_model_call_capture(app, settings, model_server_name="policy")
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_names_its_rollout_is_recorded_with_what_it_cost(
    client: TestClient, store: CaptureStore, stream: bool
) -> None:
    request = {"input": "hi", "stream": stream}
    client.post("/ng-rollout/3-1/v1/responses", json=request, headers={"x-session-id": "main"})
    client.post("/v1/responses", json=request)
    client.get("/ng-rollout/3-1/v1/models")
    [call] = front.read_model_call_records(store, "3-1")
    assert (call.model_ref, call.client_session_id, call.dialect) == ("policy", "main", "responses")
    assert (call.response_id, call.status_code, call.tokens_in, call.cached_tokens) == ("resp_1", 200, 7, 4)
    assert call.tool_calls == [{"name": "look", "arguments": {"far": True}}]
    assert (call.upstream_attempted, call.response_source) == (True, "upstream")
    assert call.request["input"] == "hi"
    assert call.response["output"][0]["name"] == "look"
    assert sorted(path.name for path in store.root.iterdir()) == ["3-1.capture.jsonl"]


def test_a_call_that_cannot_be_written_is_answered_and_noted(client: TestClient, store: CaptureStore) -> None:
    store.path_for("0-0").mkdir()
    assert client.post("/ng-rollout/0-0/v1/responses", json={"input": "hi"}).status_code == 200
    assert store.is_incomplete("0-0")
    found = front.merge_model_call_capture_into_record({"_ng_rollout_id": "0-0"}, [store.root])
    assert {gap["code"] for gap in found["ng_model_call_capture"]["gaps"]} >= {"model_call_capture_no_records"}


def test_a_torn_line_is_left_out_and_counted(store: CaptureStore) -> None:
    store.record("1-0", {"path": "/v1/responses", "response": RESPONSE})
    with store.path_for("1-0").open("ab") as file:
        file.write(b'{"path": "/v1/resp')
    assert store.read_available("1-0").unreadable == 1
    with pytest.raises(ValueError, match="not JSON"):
        store.read("1-0")
    record = {"_ng_task_index": 1, "_ng_rollout_index": 0}
    captured = front.merge_model_call_capture_into_record(record, [store.root])["ng_model_call_capture"]
    assert captured["metrics"]["tokens_total"] == 9
    assert captured["gaps"] == [{"code": "model_call_capture_records_unreadable"}]
    assert "request" not in captured["calls"][0]


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden"])
def test_a_rollout_id_that_is_not_a_file_name_is_refused(store: CaptureStore, name: str) -> None:
    with pytest.raises(ValueError, match="can't name a file"):
        store.record(name, {})


def test_recording_needs_an_absolute_folder() -> None:
    for folder in (None, Path("calls")):
        with pytest.raises(ValidationError, match="absolute"):
            ModelCallCaptureConfig(observability_enabled=True, model_call_capture_dir=folder)
    assert front.make_capture_store(ModelCallCaptureConfig()) is None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 5, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 1}},
            (5, 3, 1, 8),
        ),
        ({"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 10}, (15, 3, None, 18)),
        ({"input_tokens": True}, (None, None, None, None)),
        (None, (None, None, None, None)),
    ],
)
def test_tokens_are_read_in_every_dialect(usage: Any, expected: tuple[int | None, ...]) -> None:
    found = extract_token_stats(usage)
    assert tuple(found[f"tokens_{name}"] for name in ("in", "out", "reasoning", "total")) == expected


def test_a_message_of_chat_or_messages_says_what_it_called() -> None:
    function = {"function": {"name": "look", "arguments": "{}"}}
    choice = {"finish_reason": "tool_calls", "message": {"tool_calls": [function], "reasoning_content": "hm"}}
    chat = build_model_call_record({"path": "/v1/chat/completions", "response": {"choices": [choice]}}, call_index=0)
    assert (chat.finish_reason, chat.reasoning_content, chat.tool_calls[0]["name"]) == ("tool_calls", "hm", "look")
    content = [{"type": "thinking", "thinking": "so"}, {"type": "tool_use", "name": "look", "input": {}}]
    body = {"stop_reason": "tool_use", "content": content}
    message = build_model_call_record({"path": "/v1/messages", "response": body}, call_index=1)
    assert (message.finish_reason, message.reasoning_content, message.tool_calls[0]["name"]) == (
        "tool_use",
        "so",
        "look",
    )


# ---- trajectories ----------------------------------------------------------------------------------------------------
def test_a_trajectory_joins_what_an_agent_reports_with_what_was_recorded(store: CaptureStore) -> None:
    ids = {"model_call_id": "c0", "started_at": 10.0, "completed_at": 11.0}
    store.record("2-0", {**ids, "path": "/v1/responses", "model_ref": "policy", "response": RESPONSE})
    result: dict[str, Any] = {"_ng_task_index": 2, "_ng_rollout_index": 0, "resolved": True}
    front.merge_model_call_capture_into_record(result, [store.root], include_payloads=True)
    main = AgentInvocation(invocation_id="main", model_calls=[ModelCallRef(model_ref="policy", response_id="resp_1")])
    result["ng_agent_observations"] = AgentObservationBundle(source="me", records=[main]).model_dump(mode="json")
    attach_trajectory(result, result)
    trajectory = result["ng_trajectory"]
    assert (trajectory["task_id"], trajectory["rollout_id"]) == ("2", "2-0")
    [turn] = trajectory["turns"]
    assert (turn["turn_no"], turn["resolved"], turn["model_calls"][0]["model_call_id"]) == (1, True, "c0")
    assert trajectory["model_calls"][0]["response"]["id"] == "resp_1"
    assert "response" not in result["ng_model_call_capture"]["calls"][0]
    assert [gap["code"] for gap in trajectory["gaps"]] == ["conversation_unavailable"]


def test_a_trajectory_says_what_is_missing() -> None:
    empty = build_trajectory({"task_id": "t"}, {"ng_trajectory": {"task_id": "other", "rollout_id": "x"}})
    codes = {gap.code for gap in empty.gaps}
    assert codes >= {"producer_trajectory_identity_mismatch", "model_calls_unavailable", "turns_unavailable"}
    broken: dict[str, Any] = {"ng_model_call_capture": {"calls": [{"call_index": "many"}]}}
    attach_trajectory({}, broken)
    assert broken["ng_trajectory"]["gaps"][0]["code"] == "trajectory_projection_failed"


# ---- a whole collection ----------------------------------------------------------------------------------------------
def test_rollouts_of_a_collection_have_their_calls(tmp_path: Path, mock_model: "MockModel") -> None:
    import nemo_gym

    settings = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "calls")}
    run = nemo_gym.collect(
        "calculator", model="openai:mock", base_url=mock_model.base_url, api_key="none", limit=2, settings=settings
    )
    for rollout in run:
        captured = rollout.fields["ng_model_call_capture"]
        assert captured["metrics"]["num_calls"] == len(captured["calls"]) >= 1
        assert rollout.fields["ng_trajectory"]["rollout_id"] == captured["rollout_id"]
    assert json.loads(next((tmp_path / "calls").iterdir()).read_bytes().splitlines()[0])["status_code"] == 200
