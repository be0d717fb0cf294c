import asyncio
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from starlette.responses import JSONResponse

from nemo_gym.base_responses_api_agent import ResponseFields
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, add_usages
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from nemo_gym.servers.server_client import DirectServer
from responses_api_agents.simple_agent.app import (
    DEFAULT_MAX_STEPS,
    MAX_SILENT_STEPS,
    SimpleAgent,
    SimpleAgentConfig,
    SimpleAgentRunRequest,
    SimpleAgentVerifyResponse,
)

REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}


def usage(tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": tokens + 1,
    }


def response(*output: dict[str, Any], **extra: Any) -> dict[str, Any]:
    fixed = {"object": "response", "created_at": 1.0, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto"}
    return {"id": "resp_1", "output": list(output), "tools": [], **fixed, **extra}


class Servers:
    """A scripted model and tools in this process, which the agent calls as it calls any other server."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers: Iterator[dict[str, Any]] = iter(answers)
        self.model_requests: list[dict[str, Any]] = []
        self.tool_calls: list[tuple[str, Any, Any]] = []
        self.client = ServerClient.detached()
        for name, path, handler in (("model", "/v1/responses", self.answer), ("tools", "/{tool}", self.use_tool)):
            app = FastAPI()
            app.post(path)(handler)
            self.client.attach(name, LocalServer(app, label=name, base_url="http://127.0.0.1:1"))

    async def answer(self, request: Request) -> JSONResponse:
        self.model_requests.append(await request.json())
        answer = JSONResponse(next(self.answers))
        answer.set_cookie("model_session", "m")
        return answer

    async def use_tool(self, tool: str, request: Request) -> JSONResponse:
        self.tool_calls.append((f"/{tool}", await request.json(), dict(request.cookies)))
        answer = JSONResponse({"tool": f"/{tool}"})
        answer.set_cookie("tool_session", f"t{len(self.tool_calls)}")
        return answer


class MockedServers:
    """A model behind a mocked client."""

    def __init__(self, answer: dict[str, Any]) -> None:
        reply = MagicMock(ok=True, cookies={}, read=AsyncMock(return_value=json.dumps(answer).encode()))
        self.client = MagicMock(spec=ServerClient)
        self.client.post = AsyncMock(return_value=reply)


def configured(**settings: Any) -> SimpleAgentConfig:
    return SimpleAgentConfig(
        host="127.0.0.1",
        port=1,
        entrypoint="",
        name="agent",
        resources_server=ResourcesServerRef(type="resources_servers", name="tools"),
        model_server=ModelServerRef(type="responses_api_models", name="model"),
        **settings,
    )


def ask(
    servers: Servers | MockedServers,
    *,
    max_steps: int | None = None,
    settings: dict[str, Any] | None = None,
    **params: Any,
) -> Any:
    agent = SimpleAgent(config=configured(max_steps=max_steps, **(settings or {})), server_client=servers.client)
    with TestClient(agent.setup_webserver()) as client:
        return client.post("/v1/responses", json={"input": "hello", **params})


def test_an_answer_without_tool_calls_ends_the_loop() -> None:
    servers = Servers(response(message("hi")))
    result = ask(servers).json()
    assert [item["type"] for item in result["output"]] == ["message"]
    assert servers.model_requests == [{"input": [{"role": "user", "content": "hello"}]}]


def test_tests_that_mock_the_client_keep_working() -> None:
    """Mocks here on purpose: existing tests of servers and agents give them a ``MagicMock(spec=ServerClient)``."""
    assert ask(MockedServers(response(message("hi")))).json()["output"][0]["content"][0]["text"] == "hi"


def test_tool_results_are_given_back_and_the_trajectory_is_returned_whole() -> None:
    servers = Servers(response(call("add", '{"a": 1}')), response(message("2")))
    result = ask(servers).json()
    assert [item["type"] for item in result["output"]] == ["function_call", "function_call_output", "message"]
    assert json.loads(result["output"][1]["output"]) == {"tool": "/add"}
    assert servers.tool_calls == [("/add", {"a": 1}, {})]
    assert [item.get("type") for item in servers.model_requests[1]["input"]][1:] == [
        "function_call",
        "function_call_output",
    ]


def test_sessions_of_model_and_tools_are_carried_and_handed_to_the_caller() -> None:
    calls = [call("a", "{}", "1"), call("b", "{}", "2")]
    servers = Servers(response(*calls), response(message("done")))
    result = ask(servers)
    assert servers.tool_calls[1][2] == {"tool_session": "t1"}
    assert {"tool_session", "model_session"} <= set(result.cookies)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("{a: 1", "JSONDecodeError("), ("[" * 100_000, "RecursionError("), ("1" * 5000, "ValueError(")],
    ids=["not JSON", "nested too deeply", "too many digits"],
)
def test_arguments_that_cannot_be_read_become_an_error_for_the_model(arguments: str, reason: str) -> None:
    servers = Servers(response(call("add", arguments)), response(message("sorry")))
    output = ask(servers).json()["output"][1]["output"]
    assert json.loads(output)["error"].startswith(f"Invalid tool call arguments: {reason}")
    assert servers.tool_calls == []


def test_an_incomplete_answer_ends_the_loop_before_its_tools_run() -> None:
    cut_off = response(call("add", "{}"), incomplete_details={"reason": "max_output_tokens"})
    servers = Servers(cut_off)
    assert ask(servers).json()["incomplete_details"] == {"reason": "max_output_tokens"}
    assert servers.tool_calls == []


def test_reasoning_alone_is_not_an_answer() -> None:
    servers = Servers(response(REASONING), response(message("so")))
    assert [item["type"] for item in ask(servers).json()["output"]] == ["reasoning", "message"]


def test_max_steps_ends_the_loop_after_the_tools_of_the_last_step() -> None:
    servers = Servers(*[response(call("again", "{}"))] * 5)
    result = ask(servers, max_steps=2).json()
    assert [item["type"] for item in result["output"]] == ["function_call", "function_call_output"] * 2
    assert result.get("incomplete_details") is None


@pytest.mark.parametrize(("max_steps", "calls", "reason"), [(2, 2, "max_steps"), (None, 3, "no_answer")])
def test_a_model_that_only_reasons_leaves_an_incomplete_rollout(max_steps: int | None, calls: int, reason: str) -> None:
    assert MAX_SILENT_STEPS == 3
    servers = Servers(*[response(REASONING, status="completed")] * 9)
    result = ask(servers, max_steps=max_steps).json()
    assert len(servers.model_requests) == calls
    assert (result["status"], result["incomplete_details"]) == ("incomplete", {"reason": reason})


def test_only_completions_in_a_row_count_as_silent() -> None:
    tool_call = response(call("again", "{}"))
    servers = Servers(*[response(REASONING)] * 2, tool_call, *[response(REASONING)] * 2, response(message("so")))
    assert ask(servers).json().get("incomplete_details") is None
    assert len(servers.model_requests) == 6


def test_a_completion_without_items_is_an_empty_answer() -> None:
    servers = Servers(*[response(status="completed")] * 9)
    result = ask(servers).json()
    assert len(servers.model_requests) == 1
    assert (result["output"], result["status"], result.get("incomplete_details")) == ([], "completed", None)


def test_a_model_that_calls_tools_for_ever_leaves_an_incomplete_rollout() -> None:
    servers = Servers(*[response(call("again", "{}"))] * 200)
    result = ask(servers).json()
    assert len(servers.tool_calls) == DEFAULT_MAX_STEPS
    assert result["incomplete_details"] == {"reason": "max_steps"}


class SlowTools(Servers):
    """Tools of which each waits for all later ones of the same answer; ``most`` is how many ran at once."""

    def __init__(self, *answers: dict[str, Any], expected: int) -> None:
        super().__init__(*answers)
        self.expected = expected
        self.running = self.most = self.ended = 0
        self.all_there = asyncio.Event()

    async def use_tool(self, tool: str, request: Request) -> JSONResponse:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.most >= self.expected:
                self.all_there.set()
            await self.all_there.wait()
            for _ in range(10 - 3 * len(self.tool_calls)):  # the first one takes longest
                await asyncio.sleep(0)
            return await super().use_tool(tool, request)
        finally:
            self.running -= 1
            self.ended += 1


class CrashingTools:
    """Tools of a server that goes away when ``/crash`` is called."""

    def __init__(self, server: DirectServer) -> None:
        self.server = server

    async def call(self, method: str, path: str, **options: Any) -> Any:
        if path == "/crash":
            raise ConnectionResetError("gone")
        return await self.server.call(method, path, **options)


def test_calls_of_one_answer_can_run_at_the_same_time_and_keep_their_order() -> None:
    calls = [call(name, "{}", name) for name in ("a", "b", "c")]
    servers = SlowTools(response(*calls), response(message("done")), expected=3)
    output = ask(servers, settings={"concurrent_tool_calls": True}).json()["output"]
    assert servers.most == 3
    assert [item["call_id"] for item in output if item["type"] == "function_call_output"] == ["a", "b", "c"]
    assert [json.loads(item["output"])["tool"] for item in output[3:6]] == ["/a", "/b", "/c"]


def test_calls_run_one_after_the_other_unless_told_otherwise() -> None:
    servers = SlowTools(response(call("a", "{}", "a"), call("b", "{}", "b")), response(message("done")), expected=1)
    ask(servers)
    assert (servers.most, servers.ended) == (1, 2)


def test_a_call_that_fails_the_rollout_ends_the_others() -> None:
    servers = SlowTools(response(call("a", "{}", "a"), call("crash", "{}", "b")), expected=3)
    servers.client.attach("tools", CrashingTools(servers.client.local_servers["tools"]))
    with pytest.raises(ConnectionResetError):
        ask(servers, settings={"concurrent_tool_calls": True})
    assert (servers.running, servers.ended) == (0, 1)


def test_what_the_model_may_write_is_limited_over_all_its_answers() -> None:
    answers = [response(call("again", "{}"), usage={**usage(10), "output_tokens": 40}) for _ in range(9)]
    servers = Servers(*answers)
    result = ask(servers, settings={"max_generated_tokens": 100}, max_output_tokens=70).json()
    assert [request["max_output_tokens"] for request in servers.model_requests] == [70, 60, 20]
    assert result["incomplete_details"] == {"reason": "max_generated_tokens"}
    assert result["usage"]["output_tokens"] == 120
    unlimited = Servers(response(message("hi")))
    ask(unlimited)
    assert "max_output_tokens" not in unlimited.model_requests[0]


def test_usage_is_summed_with_its_details() -> None:
    servers = Servers(response(call("a", "{}"), usage=usage(10)), response(message("x"), usage=usage(20)))
    total = ask(servers).json()["usage"]
    assert (total["input_tokens"], total["output_tokens"], total["total_tokens"]) == (30, 2, 32)
    assert total["input_tokens_details"]["cached_tokens"] == 6
    assert total["output_tokens_details"]["reasoning_tokens"] == 4
    assert "spent" not in total


def test_what_the_endpoint_had_in_its_cache_is_summed_over_all_turns() -> None:
    first, second = usage(10), usage(20)
    first["input_tokens_details"] = {"cached_tokens": 4}
    second["spent"] = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0}  # answered from a cache of ours

    total = add_usages(first, second)

    assert total is not None
    assert total["spent"] == {"input_tokens": 10, "output_tokens": 1, "cached_tokens": 4}
    assert add_usages(total, usage(5))["spent"]["input_tokens"] == 15  # type: ignore[index]


def test_a_single_usage_is_kept_as_it_is() -> None:
    only = usage(10)
    assert add_usages(None, only) == add_usages(only, None) == usage(10)


def test_a_model_that_answers_nonsense_is_named() -> None:
    with pytest.raises(RuntimeError, match="Received an invalid response from model server"):
        ask(Servers({"hello": "world"}))


# ---- whole rollouts --------------------------------------------------------------------------------------------------
ROW = {"responses_create_params": {"input": "hello", "top_k": 5}, "expected": 10**30, "response": "of an earlier run"}
UNKNOWN = {"type": "reasoning", "id": "rs_1", "summary": [], "from_next_year": {"a": [1]}}


class Verifier(Servers):
    """Servers whose resources server seeds and verifies, too."""

    verdict: bytes = b'{"reward": 1.0, "scale": 123456789012345678901234567890}'
    status = 200

    async def use_tool(self, tool: str, request: Request) -> Response:
        reply = await super().use_tool(tool, request)
        return Response(self.verdict, self.status, media_type="application/json") if tool == "verify" else reply


async def run(servers: Servers, agent_class: type[SimpleAgent] = SimpleAgent, row: Any = ROW) -> Any:
    agent = agent_class(config=configured(), server_client=servers.client)
    app = build_app(agent)
    servers.client.attach("agent", LocalServer(app, label="agent", base_url="http://127.0.0.1:1"))
    return await servers.client.post(server_name="agent", url_path="/run", json=row)


async def test_a_rollout_is_seeded_worked_on_and_verified_in_one_session() -> None:
    servers = Verifier(response(UNKNOWN, call("look", "{}")), response(message("done"), usage=usage(10)))
    assert (await run(servers)).ok
    assert [path for path, _, _ in servers.tool_calls] == ["/seed_session", "/look", "/verify"]
    assert [cookies.get("tool_session") for _, _, cookies in servers.tool_calls] == [None, "t1", "t2"]
    assert servers.tool_calls[0][1] == ROW
    verify = servers.tool_calls[2][1]
    assert {**verify, "response": None} == {**ROW, "response": None}
    assert verify["response"]["output"][0] == UNKNOWN


@pytest.mark.parametrize("row", [{}, {"responses_create_params": []}, {"responses_create_params": None}])
async def test_a_row_without_a_request_is_refused(row: Any) -> None:
    assert (await run(Verifier(), row=row)).status == 422


async def test_a_verdict_is_passed_on_as_it_came() -> None:
    reply = await run(Verifier(response(message("done"))))
    assert await reply.read() == Verifier.verdict


async def test_what_was_spent_before_a_failed_verification_is_reported() -> None:
    servers = Verifier(response(message("done"), usage=usage(10)))
    servers.status = 503
    reply = await run(servers)
    assert (reply.status, reply.headers["X-NG-Failure-Class"]) == (500, "verifier_error")
    assert json.loads(reply.headers["X-NG-Usage"])["input_tokens"] == 10


async def test_what_was_spent_before_a_failed_model_call_is_reported() -> None:
    reply = await run(Verifier(response(call("look", "{}"), usage=usage(10)), {"nonsense": True}))
    assert json.loads(reply.headers["X-NG-Usage"])["input_tokens"] == 10


class OtherParameters(SimpleAgent):
    """Declares whatever FastAPI can supply."""

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:  # type: ignore[override]
        return NeMoGymResponse.model_validate(response(message(f"echo: {body.input}")))


class Wrapped(SimpleAgent):
    """Passes validated bodies on, and changes what comes back."""

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:  # type: ignore[override]
        body.responses_create_params.temperature = 0.5
        rollout = json.loads((await super().run(request, body)).body)  # type: ignore[arg-type]
        return SimpleAgentVerifyResponse.model_validate({**rollout, "reward": 2 * rollout["reward"]})

    async def responses(  # type: ignore[override]
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        return NeMoGymResponse.model_validate(await super().responses(request, response, body))  # type: ignore[arg-type]


async def test_a_subclass_can_give_responses_other_parameters() -> None:
    row = {"responses_create_params": {"input": "hello"}}
    servers = Verifier()
    await run(servers, OtherParameters, row)
    assert servers.tool_calls[-1][1]["response"]["output"][0]["content"][0]["text"] == "echo: hello"


async def test_a_subclass_can_build_on_both_methods() -> None:
    servers = Verifier(response(call("look", "{}")), response(message("done")))
    servers.verdict = json.dumps(
        {"responses_create_params": {"input": "q"}, "response": response(), "reward": 1}
    ).encode()
    row = {"responses_create_params": {"input": "hello"}, "expected": 1}
    rollout = await (await run(servers, Wrapped, row)).json()
    assert rollout["reward"] == 2.0
    assert servers.tool_calls[0][1]["expected"] == 1
    assert [request["temperature"] for request in servers.model_requests] == [0.5, 0.5]


def test_a_response_can_be_read_by_field_and_by_attribute() -> None:
    content = [{"type": "output_text", "text": "4", "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    fixed = {"id": "r", "created_at": 1, "model": "m", "object": "response", "parallel_tool_calls": True}
    response = ResponseFields(fixed, tool_choice="auto", tools=[], output=[message], newer_field=1)
    assert response["output"] == [message]
    assert response.output_text == "4"
    assert response.model_dump()["newer_field"] == 1
    with pytest.raises(AttributeError):
        _ = response.nothing
