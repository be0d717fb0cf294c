"""Clients that other people wrote, against a model server over real HTTP: a call of a tool and the answer after it.

Each runs whole and as a stream, with an endpoint whose protocol is the client's and with one that speaks another. Those
of the extra ``clients`` are skipped where they are not installed; ``make clients`` installs and runs them.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest

from nemo_gym.conversion.chat_history import assistant_to_items
from nemo_gym.conversion.chat_streams import completion_stream
from nemo_gym.conversion.new_responses import response_to, response_usage
from nemo_gym.conversion.response_streams import response_stream
from responses_api_models.openai_model.tests.scripted_endpoint import Endpoint, reply, serving
from tests.servers.models.hosted_model import ASKS, SAYS, hosted

MODES = pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
ENDPOINTS = pytest.mark.parametrize("endpoint", ["responses", "chat_completions"])
QUESTION = "What is 40 + 2?"


def response(completed: dict[str, Any], number: int) -> dict[str, Any]:
    """The same as a response."""
    items = assistant_to_items(completed["choices"][0]["message"], lambda: f"id{number}")
    usage = response_usage(3, 4)
    return response_to({}, items, id=f"resp_{number}", created_at=1.0, model="real-name", reason=None, usage=usage)


def answers(endpoint: str, *, streams: bool) -> dict[str, list[bytes]]:
    """What an endpoint of this kind answers to the two turns."""
    both = (ASKS, SAYS)
    if not streams:
        return {
            "/v1/chat/completions": [reply(one) for one in both],
            "/v1/responses": [reply(response(one, number)) for number, one in enumerate(both)],
        }
    head = "Content-Type: text/event-stream\r\n"
    chats = [completion_stream(one, usage=True) for one in both]
    responses = [response_stream(response(one, number)) for number, one in enumerate(both)]
    # By way of another protocol a stream is made from the whole answer.
    told = [reply(one) for one in both] if endpoint == "chat_completions" else []
    routes = {"/v1/responses": [reply(body, headers=head) for body in responses]}
    return routes | {"/v1/chat/completions": told or [reply(body, headers=head) for body in chats]}


@asynccontextmanager
async def model_server(endpoint: str, *, streams: bool) -> AsyncIterator[tuple[Endpoint, str]]:
    routes = answers(endpoint, streams=streams)
    async with serving(routes=routes) as upstream, hosted(upstream, endpoint=endpoint) as (_, url):
        yield upstream, url


def results(upstream: Endpoint) -> list[str]:
    """The outputs of tools that reached the endpoint."""
    found = []
    for body in upstream.bodies:
        found += [message["content"] for message in body.get("messages", ()) if message["role"] == "tool"]
        items = body["input"] if isinstance(body.get("input"), list) else ()
        found += [item["output"] for item in items if item.get("type") == "function_call_output"]
    return found


@ENDPOINTS
@MODES
async def test_openai_by_both_of_its_protocols(endpoint: str, *, streams: bool) -> None:
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    async with (
        model_server(endpoint, streams=streams) as (upstream, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        tools: Any = [{"type": "function", **function, "strict": False}]
        history: list[Any] = [{"role": "user", "content": QUESTION}]
        answer: Any = None
        for _ in range(2):
            if streams:
                async with client.responses.stream(model="m", input=history, tools=tools) as events:
                    answer = await events.get_final_response()
            else:
                answer = await client.responses.create(model="m", input=history, tools=tools)
            history += [item.to_dict() for item in answer.output]
            history.append({"type": "function_call_output", "call_id": "call_1", "output": "42"})
        assert answer.output_text == "It is 42."
        assert results(upstream) == ["42"]
        listed = [model.id async for model in client.models.list()]
        assert listed == ["real-name"]


@MODES
async def test_openai_chat(*, streams: bool) -> None:
    function = {"name": "add", "parameters": {"type": "object"}, "strict": True}  # which older clients insist on
    tools: Any = [{"type": "function", "function": function}]
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    answer: Any = None
    async with (
        model_server("responses", streams=streams) as (upstream, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        for _ in range(2):
            if streams:
                async with client.chat.completions.stream(model="m", messages=history, tools=tools) as events:
                    answer = await events.get_final_completion()
            else:
                answer = await client.chat.completions.create(model="m", messages=history, tools=tools)
            message = answer.choices[0].message
            history.append(message.to_dict())
            history += [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in message.tool_calls or ()]
        assert answer.choices[0].message.content == "It is 42."
        assert results(upstream) == ["42"]


@MODES
async def test_anthropic(*, streams: bool) -> None:
    anthropic = pytest.importorskip("anthropic")
    tools = [{"name": "add", "input_schema": {"type": "object", "properties": {}}}]
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    answer: Any = None
    async with (
        model_server("chat_completions", streams=streams) as (upstream, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        for _ in range(2):
            asked = {"model": "m", "max_tokens": 99, "messages": history, "tools": tools, "stop_sequences": ["END"]}
            if streams:
                async with client.messages.stream(**asked) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            history.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            result = {"type": "tool_result", "tool_use_id": "call_1", "content": "42"}
            history.append({"role": "user", "content": [result]})
        assert answer.content[0].text == "It is 42."
        assert results(upstream) == ["42"]
        assert upstream.bodies[0]["stop"] == ["END"]


@ENDPOINTS
@MODES
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")  # theirs
async def test_google(endpoint: str, *, streams: bool) -> None:
    genai = pytest.importorskip("google.genai", reason="install the extra clients, or run make clients")
    types = pytest.importorskip("google.genai.types")

    schema = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER", "nullable": True}}}
    declared = {"name": "add", "description": "Adds.", "parameters": schema}
    system = {"system_instruction": "Be brief.", "temperature": 0.5, "max_output_tokens": 99}
    config = types.GenerateContentConfig(tools=[{"function_declarations": [declared]}], **system)
    history: list[Any] = [types.Content(role="user", parts=[types.Part(text=QUESTION)])]
    image = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    history[0].parts.append(image)
    async with model_server(endpoint, streams=False) as (upstream, url):
        client = genai.Client(api_key="none", http_options={"base_url": url})
        for _ in range(2):
            asked = {"model": "m", "contents": history, "config": config}
            parts: list[Any] = []
            if streams:
                async for chunk in await client.aio.models.generate_content_stream(**asked):
                    parts += chunk.candidates[0].content.parts
                    answer = chunk
            else:
                answer = await client.aio.models.generate_content(**asked)
                parts = answer.candidates[0].content.parts
            history.append(types.Content(role="model", parts=parts))
            for call in filter(None, (part.function_call for part in parts)):
                result = types.FunctionResponse(id=call.id, name=call.name, response={"output": "42"})
                history.append(types.Content(role="user", parts=[types.Part(function_response=result)]))
        assert "".join(part.text for part in parts) == "It is 42."
        assert answer.usage_metadata.total_token_count == 7
        assert results(upstream) == ["42"]
        with pytest.raises(genai.errors.ClientError) as refused:
            await client.aio.models.generate_content(model="m", contents="hi", config={"cached_content": "c"})
        assert refused.value.status == "INVALID_ARGUMENT"
        await client.aio.aclose()


@ENDPOINTS
@MODES
@pytest.mark.parametrize("by_responses", [False, True], ids=["chat", "responses"])
async def test_langchain(endpoint: str, *, streams: bool, by_responses: bool) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="install the extra clients, or run make clients")
    messages = pytest.importorskip("langchain_core.messages")

    async with (
        model_server(endpoint if by_responses else "responses", streams=streams) as (upstream, url),
        httpx2.AsyncClient() as http,
    ):
        client = langchain.ChatOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            model="m",
            max_retries=0,
            use_responses_api=by_responses,
            http_async_client=http,
        )
        bound = client.bind_tools([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])
        history: list[Any] = [messages.HumanMessage(QUESTION)]
        answer: Any = None
        for _ in range(2):
            if streams:
                answer = None
                async for chunk in bound.astream(history):
                    answer = chunk if answer is None else answer + chunk
            else:
                answer = await bound.ainvoke(history)
            history.append(answer)
            history += [messages.ToolMessage("42", tool_call_id=call["id"]) for call in answer.tool_calls]
        assert answer.text == "It is 42."
        assert results(upstream) == ["42"]


@ENDPOINTS
@MODES
async def test_pydantic_ai(endpoint: str, *, streams: bool) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="install the extra clients, or run make clients")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")

    async with (
        model_server(endpoint, streams=streams) as (upstream, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        provider = providers.OpenAIProvider(openai_client=client)
        agent = pydantic_ai.Agent(models.OpenAIResponsesModel("m", provider=provider))

        @agent.tool_plain  # type: ignore[untyped-decorator]
        def add(a: int, b: int) -> int:
            return a + b

        if streams:
            async with agent.run_stream(QUESTION) as run:
                said = await run.get_output()
        else:
            said = (await agent.run(QUESTION)).output
        assert said == "It is 42."
        assert results(upstream) == ["42"]


@ENDPOINTS
@MODES
@pytest.mark.parametrize("by_responses", [False, True], ids=["chat", "responses"])
async def test_openai_agents(endpoint: str, *, streams: bool, by_responses: bool) -> None:
    agents = pytest.importorskip("agents", reason="install the extra clients, or run make clients")
    agents.set_tracing_disabled(disabled=True)

    @agents.function_tool  # type: ignore[untyped-decorator]
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with (
        model_server(endpoint if by_responses else "responses", streams=streams) as (upstream, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        kind = agents.OpenAIResponsesModel if by_responses else agents.OpenAIChatCompletionsModel
        agent = agents.Agent(name="a", tools=[add], model=kind(model="m", openai_client=client))
        if streams:
            run = agents.Runner.run_streamed(agent, QUESTION)
            kinds = [event.type async for event in run.stream_events()]
            assert "raw_response_event" in kinds
        else:
            run = await agents.Runner.run(agent, QUESTION)
        assert run.final_output == "It is 42."
        assert [json.loads(output) for output in results(upstream)] == [42]
