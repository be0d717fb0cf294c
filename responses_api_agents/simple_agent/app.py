"""The simple agent: call the model, run the tools it calls, repeat until it answers; then have the rollout verified."""

from collections.abc import Awaitable
from typing import Any, Final, Literal, TypeAlias

from fastapi import Request, Response
from orjson import Fragment
from pydantic import ConfigDict, Field

from nemo_gym.base_resources_server import AggregateMetrics, AggregateMetricsRequest, BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    Cookies,
    Json,
    ResponseFields,
    ResponsesRequest,
    SimpleResponsesAPIAgent,
    TaskRow,
    Trajectory,
    fields_of,
)
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.io.json import decode_exactly, encode_json
from nemo_gym.metrics.aggregate import forwards_metrics_to
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.middleware.faults import AttachUsage

DEFAULT_MAX_STEPS: Final = 100  # enough for any task this agent suits; it ends a model that calls tools forever
MAX_SILENT_STEPS: Final = 3  # completions in a row with neither a message nor a tool call


Limit: TypeAlias = Literal["max_generated_tokens", "max_steps", "no_answer"]


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    """The servers that the agent calls, and its limits, which the README explains."""

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=0)
    max_generated_tokens: int | None = Field(default=None, ge=1)
    concurrent_tool_calls: bool = False


class SimpleAgentRunRequest(BaseRunRequest):
    """A task, validated, for subclasses that read it."""

    model_config = ConfigDict(extra="allow")


class SimpleAgentVerifyResponse(BaseVerifyResponse):
    """A scored rollout, validated, for subclasses that read it."""

    model_config = ConfigDict(extra="allow")


class SimpleAgent(SimpleResponsesAPIAgent):
    """A tool loop around one model and one resources server."""

    config: SimpleAgentConfig

    async def run(self, request: Request, body: TaskRow = Body()) -> Response:
        """Run one rollout: seed the session, respond, verify. Every call sends the cookies of the reply before it."""
        row = fields_of(body)
        seeded = await self.post_resources("/seed_session", row, request.cookies)
        await raise_for_status(seeded)
        # Through its route, which supplies whatever parameters a subclass gives to ``responses``.
        responded = await self.server_client.post(
            server_name=self.config.name,
            url_path="/v1/responses",
            json=row["responses_create_params"],
            cookies=seeded.cookies,
        )
        await raise_for_status(responded)
        return await self.verify(row, await responded.read(), responded.cookies)

    async def verify(self, row: Json, response: bytes, cookies: Cookies) -> Response:
        """Have a response scored. It and the verdict are passed on unread: their servers have just written them."""
        rollout = {**row, "response": Fragment(response)}
        if self.config.skip_verification:
            return JsonResponse(encode_json(self.unverified(rollout)))
        with AttachUsage(lambda: decode_exactly(response).get("usage")):
            verified = await self.post_resources("/verify", rollout, cookies)
            await raise_for_status(verified)
        return JsonResponse(await verified.read())

    async def responses(self, request: Request, response: Response, body: ResponsesRequest = Body()) -> ResponseFields:
        """Work on one request; the output is the whole trajectory."""
        trajectory = Trajectory.of(body, request.cookies)
        with AttachUsage(lambda: trajectory.usage):
            limit = await self.extend(trajectory)
        # To stop after the tools of the configured number of steps is as planned; every other limit is not.
        if limit and not (limit == "max_steps" and self.config.max_steps and trajectory.tool_calls):
            trajectory.completion |= {"status": "incomplete", "incomplete_details": {"reason": limit}}
        trajectory.set_cookies(response)
        return trajectory.response()

    async def extend(self, trajectory: Trajectory) -> Limit | None:
        """Alternate between model and tools until the model answers or is cut off, or a limit is reached."""
        config, step, silent_steps = self.config, 0, 0
        limit: Limit | None = None
        while limit is None:
            step += 1
            await self.call_model(config.model_server, self.next_request(trajectory), trajectory)
            calls = trajectory.tool_calls
            # The tool calls of a model that was cut off may be incomplete.
            if trajectory.completion.get("incomplete_details") or (not calls and trajectory.is_answered):
                break
            await self.call_tools(config.resources_server, calls, trajectory, concurrently=config.concurrent_tool_calls)
            silent_steps = 0 if calls else silent_steps + 1
            if config.max_generated_tokens and trajectory.generated_tokens >= config.max_generated_tokens:
                limit = "max_generated_tokens"
            elif step >= (config.max_steps or DEFAULT_MAX_STEPS):
                limit = "max_steps"
            elif silent_steps >= MAX_SILENT_STEPS:
                limit = "no_answer"
        return limit

    def next_request(self, trajectory: Trajectory) -> Json:
        """The next request for the model, which may write what is left of the limits."""
        request, limit = trajectory.request(), self.config.max_generated_tokens
        if limit:
            left = limit - trajectory.generated_tokens
            request["max_output_tokens"] = min(left, request.get("max_output_tokens") or left)
        return request

    def post_resources(self, path: str, content: Any, cookies: Cookies) -> Awaitable[Any]:
        """Call the resources server."""
        return self.server_client.post(
            server_name=self.config.resources_server.name, url_path=path, json=content, cookies=cookies
        )

    @forwards_metrics_to("resources_server")
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Ask the environment, which knows what its fields mean."""
        reply = await self.post_resources("/aggregate_metrics", body, None)
        await raise_for_status(reply)
        return AggregateMetrics.model_validate(await get_response_json(reply))


if __name__ == "__main__":
    SimpleAgent.run_webserver()
