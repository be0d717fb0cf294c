"""The steps of rollouts: the same in one process, over HTTP and in workers; of failed ones, up to the failure."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.addresses import server_type
from nemo_gym.config.parse import parse_config
from nemo_gym.executors.processes import worker_pool
from nemo_gym.rollouts.attempt import AgentAttempt, recorded
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome, PlannedRollout
from nemo_gym.schemas.responses import NeMoGymResponse
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from nemo_gym.steps.recording import (
    Span,
    current_span,
    describe_callee,
    first_span,
    note_completion,
    note_retry,
    note_wait,
    open_span,
)
from nemo_gym.steps.remote import adopt_steps
from nemo_gym.steps.rollout_steps import RolloutSteps, Step, from_line

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "resources_servers/example_single_tool_call"
AGENT = "example_single_tool_call_simple_agent"
EXPECTED = [
    ("seed", "example_single_tool_call", "/seed_session", ""),
    ("call", AGENT, "/v1/responses", ""),
    ("model", "policy_model", "/v1/responses", ""),
    ("tool", "example_single_tool_call", "/get_weather", "get_weather"),
    ("model", "policy_model", "/v1/responses", ""),
    ("verify", "example_single_tool_call", "/verify", ""),
]


@pytest.fixture(autouse=True)
def _nothing_is_current() -> None:
    """A span stays current when it has ended, and these tests share a context."""
    current_span.set(None)


def configuration(base_url: str, *extra: str, model: str = "openai_model") -> DictConfig:
    config = f"responses_api_models/{model}/configs/{model}.yaml"
    paths = f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,{config}"
    policy = [f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    return parse_config([f"+config_paths=[{paths}]", *policy, *extra]).config


def planned(number: int = 0) -> PlannedRollout:
    task = json.loads((ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()[0])
    row = {**task, "_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": {"name": AGENT}}
    return PlannedRollout.of(row, last_attempt=3)


def record_of(outcome: Outcome) -> RolloutSteps:
    record = from_line(outcome.steps)
    assert record is not None
    return record


def steps_of(span: Span) -> list[Step]:
    return span.trail.steps


def calls(record: RolloutSteps) -> list[tuple[str, str, str, str]]:
    return [(step.kind, step.server, step.route, step.tool) for step in record.steps]


def far(client: GymClient) -> GymClient:
    """A client that reaches the same servers over HTTP."""
    return GymClient(head_server_config=client.head_server_config, global_config_dict=client.global_config_dict)


async def test_one_process_http_and_workers_record_the_same_steps(mock_model: Any) -> None:
    config = configuration(mock_model.base_url)
    async with host_gym(config) as gym:
        here = record_of(await recorded(AgentAttempt(gym.client))(planned()))
        over_http = record_of(await recorded(AgentAttempt(far(gym.client)))(planned()))
    async with worker_pool(config, 1, steps=True) as pool:
        there = record_of(await recorded(pool)(planned()))
    assert calls(here) == calls(over_http) == calls(there) == EXPECTED
    for record in (here, over_http, there):
        assert (record.agent, record.attempt, record.outcome) == (AGENT, 1, "completed")
        assert [step.status for step in record.steps] == [200] * 6
        assert [step.parent for step in record.steps] == [None, None, 1, 1, 1, None]
        assert [(step.tokens_in, step.tokens_out, step.finish) for step in record.steps if step.kind == "model"] == [
            (100, 20, "completed")
        ] * 2
        assert all(step.bytes_in and step.bytes_out and step.end <= record.duration for step in record.steps)
        starts = [step.start for step in record.steps]
        assert starts == sorted(starts)


async def test_what_the_caller_of_a_server_in_another_process_gets_is_its_answer(mock_model: Any) -> None:
    """The steps behind the answer are nobody else's business."""
    async with host_gym(configuration(mock_model.base_url)) as gym:
        plain = await AgentAttempt(far(gym.client))(planned())
        with_steps = await recorded(AgentAttempt(far(gym.client)))(planned())
    assert plain.line == with_steps.line
    assert not plain.steps


async def test_a_failed_rollout_has_its_steps_up_to_the_failure(mock_model: Any) -> None:
    mock_model.set(error_rate="1")
    config = configuration(mock_model.base_url, "++policy_model.responses_api_models.openai_model.max_retries=1")
    async with host_gym(config) as gym:
        here = await recorded(AgentAttempt(gym.client))(planned())
        over_http = await recorded(AgentAttempt(far(gym.client)))(planned())
    for outcome in (here, over_http):
        assert isinstance(outcome, Failed)
        record = record_of(outcome)
        assert record.outcome == outcome.failure.kind
        assert calls(record) == EXPECTED[:3]
        model = record.steps[2]
        assert model.status >= 500
        assert [retry.failed for retry in model.retries] == ["500"]
        assert model.waited_for == "retry"
        assert 0 < model.waited <= model.duration
        assert record.waited == model.waited


async def test_a_rollout_that_takes_too_long_has_the_step_it_was_in(mock_model: Any) -> None:
    mock_model.set(latency="600000")
    async with host_gym(configuration(mock_model.base_url)) as gym:
        outcome = await recorded(AgentAttempt(gym.client, timeout_s=0.3))(planned())
    record = record_of(outcome)
    assert record.outcome == "timeout"
    assert calls(record) == EXPECTED[:3]
    assert record.steps[2].finish == "CancelledError"
    assert record.steps[2].duration > 0


@pytest.mark.parametrize(
    ("limit", "waited_for"),
    [
        ("++policy_model.responses_api_models.openai_model.max_concurrent_requests=1", "slot"),
        ("+global_aiohttp_connector_limit_per_host=1", "connection"),
    ],
)
async def test_waiting_is_told_from_working(mock_model: Any, limit: str, waited_for: str) -> None:
    mock_model.set(latency="30")
    async with host_gym(configuration(mock_model.base_url, limit)) as gym:
        attempt = recorded(AgentAttempt(gym.client))
        outcomes = await asyncio.gather(*(attempt(planned(number)) for number in range(3)))
    model = [step for outcome in outcomes for step in record_of(outcome).steps if step.kind == "model"]
    assert any(step.waited_for == waited_for and step.waited > 0 for step in model)
    assert all(step.waited <= step.duration for step in model)


async def test_waiting_for_a_turn_of_vllm_is_told_from_working(mock_model: Any) -> None:
    mock_model.set(latency="30")
    limit = "++policy_model.responses_api_models.vllm_model.max_concurrent_requests=1"
    config = configuration(mock_model.base_url, limit, model="vllm_model")
    async with host_gym(config) as gym:
        attempt = recorded(AgentAttempt(gym.client))
        outcomes = await asyncio.gather(*(attempt(planned(number)) for number in range(3)))
    model = [step for outcome in outcomes for step in record_of(outcome).steps if step.kind == "model"]
    assert any(step.waited_for == "slot" and step.waited > 0 for step in model)


async def test_attempts_beside_each_other_do_not_mix(mock_model: Any) -> None:
    async with host_gym(configuration(mock_model.base_url)) as gym:
        attempt = recorded(AgentAttempt(gym.client))
        outcomes = await asyncio.gather(*(attempt(planned(number)) for number in range(8)))
    assert [record_of(outcome).task for outcome in outcomes] == list(range(8))
    assert all(calls(record_of(outcome)) == EXPECTED for outcome in outcomes)


@pytest.mark.parametrize(
    ("server_type", "path", "from_resources", "kind", "tool"),
    [
        ("responses_api_models", "/v1/chat/completions", False, "model", ""),
        ("responses_api_models", "/v1/responses", True, "judge", ""),
        ("resources_servers", "/seed_session", False, "seed", ""),
        ("resources_servers", "/verify", False, "verify", ""),
        ("resources_servers", "/look_up?x=1", False, "tool", "look_up"),
        ("resources_servers", "/look_up", True, "call", ""),
        ("responses_api_agents", "/v1/responses", False, "call", ""),
        ("", "/anything", False, "call", ""),
    ],
)
def test_the_kind_of_a_step(server_type: str, path: str, from_resources: bool, kind: str, tool: str) -> None:
    callee = describe_callee(server_type, "s", path, from_resources=from_resources)
    assert (callee.kind, callee.names[3]) == (kind, tool)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"not JSON",
        b'{"duration":-1,"steps":[{"kind":"model"}]}',
        b'{"steps":[["model"]]}',
        b'{"duration":1e999,"steps":[]}',
        b'{"steps":[{"kind":"model","start":"soon"}]}',
    ],
)
def test_nonsense_of_another_process_is_ignored(tail: bytes) -> None:
    span = first_span().begin(describe_callee("", "s", "/x", from_resources=False))
    adopt_steps(span, tail)
    assert len(span.trail.steps) == 1


def test_times_of_another_process_are_believed_as_far_as_they_fit() -> None:
    span = first_span().begin(describe_callee("", "s", "/x", from_resources=False))
    tail = (
        b'{"duration":900000000,"waited":5000,"steps":['
        b'{"kind":"model","start":700,"duration":800,"status":200,"waited":999,"parent":7},{"status":200,"parent":0}]}'
    )
    adopt_steps(span, tail)
    span.end(200, 1, b"")
    outer, model, inner = steps_of(span)
    assert model.parent == 0
    assert inner.parent == 1
    assert model.waited <= model.duration <= outer.duration < 1
    assert model.start < 1
    assert outer.waited == 0


def test_what_belongs_to_no_rollout_is_not_recorded() -> None:
    note_wait(0.0, "gate")
    note_retry("500", 1.0)
    assert current_span.get() is None


def model_call(route: str = "/v1/responses") -> Span:
    return first_span().begin(describe_callee("responses_api_models", "m", route, from_resources=False))


CHAT = {
    "object": "chat.completion",
    "choices": [{"finish_reason": "length", "message": {"content": '"usage":{'}}],
    "usage": {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
}
MESSAGE = {
    "type": "message",
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 9, "cache_read_input_tokens": 2, "output_tokens": 4},
}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
CUT_OFF = {
    **RESPONSE,
    "incomplete_details": {"reason": "max_output_tokens"},
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    },
}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (CHAT, (7, 3, 5, "length")),
        (MESSAGE, (9, 4, 2, "tool_use")),
        (CUT_OFF, (1, 2, 0, "max_output_tokens")),
        (NeMoGymResponse.model_validate(CUT_OFF), (1, 2, 0, "max_output_tokens")),
        (RESPONSE, (0, 0, 0, "completed")),
        (b"", (0, 0, 0, "")),
        ({"usage": {"input_tokens": "many"}}, (0, 0, 0, "")),
    ],
)
def test_the_tokens_of_a_completion_are_noted(completion: Any, expected: tuple[int, int, int, str]) -> None:
    forms = [completion, json.dumps(completion).encode()] if isinstance(completion, dict) else [completion]
    for form in forms:
        span = model_call()
        note_completion(form)
        span.end(200, 0, b"")
        [step] = steps_of(span)
        assert (step.tokens_in, step.tokens_out, step.tokens_cached, step.finish) == expected


def test_the_tokens_of_a_failed_call_are_not_recorded() -> None:
    span = model_call()
    note_completion(CHAT)
    span.end(500, 0, b"")
    [step] = steps_of(span)
    assert (step.tokens_in, step.finish) == (0, "")


def test_what_is_noted_in_parts_adds_up() -> None:
    span = model_call("/v1/chat/completions")
    note_completion({"choices": [{"finish_reason": "stop"}], "usage": None})
    note_completion({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    span.end(200, 0, b"")
    [step] = steps_of(span)
    assert (step.tokens_in, step.tokens_out, step.finish) == (7, 3, "stop")


def test_an_attempt_that_never_stops_calling_is_recorded_up_to_a_limit() -> None:
    span = first_span()
    callee = describe_callee("", "s", "/x", from_resources=False)
    for _ in range(10_050):
        span.begin(callee).end(200, 0, b"")
    assert len(span.trail.steps) == 10_000


def test_names_can_hold_any_sign() -> None:
    span = first_span().begin(describe_callee("resources_servers", "100%s", '/a"b%d', from_resources=False))
    span.end(200, 0, b"")
    [step] = steps_of(span)
    assert (step.server, step.route, step.tool) == ("100%s", '/a"b%d', 'a"b%d')


def test_impossible_figures_are_not_recorded() -> None:
    span = model_call("/v1/\ud800")
    note_completion({"usage": {"input_tokens": 10**30, "output_tokens": 3}})
    span.end(200, 0, b"")
    assert [(step.tokens_in, step.tokens_out) for step in steps_of(span)] == [(0, 3)]


async def test_a_call_that_outlives_its_attempt_ends_where_it_began() -> None:
    agent = describe_callee("responses_api_agents", AGENT, "/run", from_resources=False)
    left_open = describe_callee("resources_servers", "s", "/look_up", from_resources=False)
    counted = describe_callee("responses_api_models", "m", "/v1/responses", from_resources=False)

    async def attempt(planned: PlannedRollout) -> Outcome:
        span = current_span.get()
        assert span is not None
        assert span.begin(agent) is span, "the first call is the attempt itself"
        span.begin(left_open)
        model = span.begin(counted)
        note_completion({"usage": {"input_tokens": 10**30, "output_tokens": 3}})
        model.end(200, 7, b"")
        return Completed(planned, b"{}", 1.0, 1.0)

    tool, model = record_of(await recorded(attempt)(planned())).steps
    assert (tool.tool, tool.duration, tool.status) == ("look_up", 0.0, 0)
    assert (model.tokens_in, model.tokens_out, model.bytes_out) == (0, 3, 7)


def test_a_call_belongs_to_the_innermost_call_in_progress() -> None:
    root = first_span()
    verify = root.begin(describe_callee("resources_servers", "s", "/verify", from_resources=False))
    judge = verify.begin(describe_callee("responses_api_models", "m", "/v1/responses", from_resources=True))
    assert open_span() is judge
    judge.end(200, 0, b"")
    assert open_span() is verify
    verify.fail(ValueError())
    assert open_span() is root
    assert [step.parent for step in steps_of(root)] == [None, 0]


async def test_calls_beside_each_other_are_not_inside_each_other() -> None:
    root = first_span()
    current_span.set(root)
    tool = describe_callee("resources_servers", "s", "/look_up", from_resources=False)
    inner = describe_callee("responses_api_models", "m", "/v1/responses", from_resources=True)

    async def call(seconds: float) -> None:
        caller = open_span()
        assert caller is not None
        span = caller.begin(tool)
        await asyncio.sleep(seconds)
        made_by = open_span()
        assert made_by is span
        made_by.begin(inner).end(200, 0, b"")
        span.end(200, 0, b"")

    await asyncio.gather(call(0.02), call(0.01))
    assert [(step.kind, step.parent) for step in steps_of(root)] == [
        ("tool", None),
        ("tool", None),
        ("judge", 1),
        ("judge", 0),
    ]
    assert open_span() is root


def test_a_configuration_without_servers_has_no_types() -> None:
    assert server_type(OmegaConf.create({"a": 1}), "a") == ""
    assert server_type(OmegaConf.create({}), "a") == ""
