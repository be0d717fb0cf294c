"""Functions as servers: ``async def agent(task, model, tools)``, and ``async def model(request)`` for tests.

    async def agent(task, model, tools):
        first = await model(task["prompt"])
        letters = await tools.spell(word="strawberry")
        return (await model(f"The letters are {letters}. How many r?")).text

``model`` takes text, messages or items, and sampling parameters by their names. ``tools`` has a method for each tool of
the environment, and ``tools.call`` runs a tool call of the model. Whatever passes through them is recorded in the
rollout, in order. The function may return its final answer as text; without it, the last message of the model counts.

A function as a model gets the request and returns text, output items, or the fields of a response.
"""

import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from fastapi import Request, Response

from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    Json,
    ResponsesRequest,
    SimpleResponsesAPIAgent,
    TaskRow,
    Trajectory,
    fields_of,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.conversion.work import AgentResponse, ToolCall
from nemo_gym.metrics.aggregate import forwards_metrics_to
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.schemas.refs import ModelServerRef, ResourcesServerRef
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.middleware.faults import AttachUsage
from nemo_gym.servers.scoring import task_of

AgentFunction = Callable[..., Awaitable[Any]]
ModelFunction = Callable[[Mapping[str, Any]], Any]


class FunctionAgentConfig(BaseResponsesAPIAgentConfig):
    """The servers that the function may call."""

    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class AgentModel:
    """The model that a function calls: ``await model("…", temperature=0.7)``."""

    def __init__(self, agent: "FunctionAgent", trajectory: Trajectory) -> None:
        self._agent = agent
        self._trajectory = trajectory

    async def __call__(
        self, conversation: str | Iterable[Mapping[str, Any]] | None = None, **options: Any
    ) -> AgentResponse:
        """Ask the model; without a conversation, about the task itself and everything that happened since."""
        request = {**self._trajectory.request(), **options}
        if conversation is not None:
            is_text = isinstance(conversation, str)
            request["input"] = [{"role": "user", "content": conversation}] if is_text else list(conversation)
        await self._agent.call_model(self._agent.config.model_server, request, self._trajectory)
        return AgentResponse(self._trajectory.completion)


class AgentTools:
    """The tools of the environment: ``await tools.spell(word="…")``."""

    def __init__(self, agent: "FunctionAgent", trajectory: Trajectory) -> None:
        self._agent = agent
        self._trajectory = trajectory

    @property
    def definitions(self) -> list[Json]:
        """The tools as the request lists them."""
        return list(self._trajectory.params.get("tools") or ())

    async def call(self, call: ToolCall) -> str:
        """Run a tool call of the model, and return its result as text."""
        return await self._run({"name": call.name, "call_id": call.call_id, "arguments": json.dumps(call.arguments)})

    def __getattr__(self, name: str) -> Callable[..., Awaitable[str]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def run(**arguments: Any) -> str:
            call = {"name": name, "call_id": f"call_{uuid4().hex[:12]}", "arguments": json.dumps(arguments)}
            self._trajectory.output.append({"type": "function_call", **call})
            return await self._run(call)

        return run

    async def _run(self, call: Json) -> str:
        await self._agent.call_tools(self._agent.config.resources_server, [call], self._trajectory)
        return str(self._trajectory.output[-1]["output"])


class FunctionAgent(SimpleResponsesAPIAgent):
    """An agent whose work is done by a function."""

    config: FunctionAgentConfig

    async def work(self, task: Json, model: AgentModel, tools: AgentTools) -> Any:
        """Call the function."""
        raise NotImplementedError

    async def run(self, request: Request, body: TaskRow = Body()) -> Response:
        """Run one rollout: seed the session, let the function work, verify."""
        row, server = fields_of(body), self.config.resources_server.name
        seeded = await self.server_client.post(
            server_name=server, url_path="/seed_session", json=row, cookies=request.cookies
        )
        await raise_for_status(seeded)
        trajectory = Trajectory.of(row["responses_create_params"], seeded.cookies)
        with AttachUsage(lambda: trajectory.usage):
            answer = await self.work(task_of(row), AgentModel(self, trajectory), AgentTools(self, trajectory))
            rollout = {**row, "response": response_of(trajectory, answer)}
            verified = await self.server_client.post(
                server_name=server, url_path="/verify", json=rollout, cookies=trajectory.tool_cookies
            )
            await raise_for_status(verified)
        return Response(await verified.read(), media_type="application/json")

    async def responses(self, body: ResponsesRequest = Body()) -> Json:
        """Refuse requests without a task."""
        del body
        raise NotImplementedError("a function as an agent works on whole tasks: call /run")

    @forwards_metrics_to("resources_server")
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Ask the environment, which knows what its fields mean."""
        reply = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body, cookies=None
        )
        await raise_for_status(reply)
        return AggregateMetrics.model_validate(await get_response_json(reply))


def function_agent(function: AgentFunction) -> type[FunctionAgent]:
    """The agent server of a function."""

    async def work(self: FunctionAgent, task: Json, model: AgentModel, tools: AgentTools) -> Any:
        del self
        return await function(task, model, tools)

    return type("FunctionAgent", (FunctionAgent,), {"work": work, "__module__": __name__})


def response_of(trajectory: Trajectory, answer: Any) -> Json:
    """The response of a rollout; an answer that the model did not give itself is added as a message."""
    if isinstance(answer, str) and answer != AgentResponse({"output": trajectory.output}).text:
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        message = {"type": "message", "id": f"msg_{uuid4().hex[:12]}", "role": "assistant", "status": "completed"}
        trajectory.output.append({**message, "content": content})
    if not trajectory.completion:
        fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        trajectory.completion = {"id": f"resp_{uuid4().hex}", "created_at": 0.0, "model": "none", **fixed}
    return trajectory.response()


# ---- a function as a model -------------------------------------------------------------------------------------------
def function_model(function: ModelFunction) -> type[SimpleResponsesAPIModel]:
    """A model server that calls a function; what it returns may be text, output items, or a whole response."""

    class FunctionModel(SimpleResponsesAPIModel):
        config: BaseResponsesAPIModelConfig

        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
            returned = function(body.model_dump(mode="json", exclude_unset=True))
            return as_response(await returned if inspect.isawaitable(returned) else returned)

        async def chat_completions(self, body: Any = Body()) -> Any:
            raise NotImplementedError("a function as a model takes requests of the Responses API only")

    return FunctionModel


def as_response(returned: Any) -> NeMoGymResponse:
    """A response, given text, an output item, a list of them, or the fields of a response."""
    if isinstance(returned, NeMoGymResponse):
        return returned
    if isinstance(returned, str):
        content = [{"type": "output_text", "text": returned, "annotations": []}]
        returned = [{"type": "message", "role": "assistant", "status": "completed", "content": content}]
    if isinstance(returned, Mapping) and "output" not in returned:
        returned = [returned]
    fields = dict(returned) if isinstance(returned, Mapping) else {"output": list(returned)}
    fields["output"] = [{"id": uuid4().hex, **item} for item in fields["output"]]
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return NeMoGymResponse.model_validate(
        {"id": uuid4().hex, "created_at": time.time(), "model": "function", **fixed, **fields}
    )
