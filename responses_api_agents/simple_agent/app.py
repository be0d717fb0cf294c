"""The simple agent: ask the model, run the tools it calls, repeat until it answers; then have the rollout scored."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputItem,
    NeMoGymResponseUsage,
)
from nemo_gym.server_utils import get_response_json, raise_for_status

Cookies = Mapping[str, Any] | None


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    """Which model and which tools to use, and when to stop."""

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = None


class SimpleAgentRunRequest(BaseRunRequest):
    """A task; every other field of the row is passed on to the resources server."""

    model_config = ConfigDict(extra="allow")


class SimpleAgentVerifyRequest(BaseVerifyRequest):
    """A task with the agent's work."""

    model_config = ConfigDict(extra="allow")


class SimpleAgentVerifyResponse(BaseVerifyResponse):
    """A scored rollout."""

    model_config = ConfigDict(extra="allow")


class SimpleAgent(SimpleResponsesAPIAgent):
    """A tool loop around one model and one resources server."""

    config: SimpleAgentConfig

    async def run(self, request: Request, body: SimpleAgentRunRequest = Body()) -> SimpleAgentVerifyResponse:
        """Run one rollout: seed the session, let the agent respond, verify."""
        seeded = await self._post_resources("/seed_session", body, request.cookies)
        await raise_for_status(seeded)
        answer = await self.server_client.post(
            server_name=self.config.name,
            url_path="/v1/responses",
            json=body.responses_create_params,
            cookies=seeded.cookies,
        )
        await raise_for_status(answer)
        rollout = with_response(body, await answer.read())
        verified = await self._post_resources("/verify", rollout, answer.cookies)
        await raise_for_status(verified)
        return SimpleAgentVerifyResponse.model_validate_json(await verified.read())

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Alternate between model and tools until the model answers, is cut off, or ``max_steps`` is reached."""
        question = body.input
        if isinstance(question, str):
            question = [NeMoGymEasyInputMessage(role="user", content=question)]
        trajectory: list[NeMoGymResponseOutputItem] = []
        usage: NeMoGymResponseUsage | None = None
        model_cookies: Cookies = None
        tool_cookies: Cookies = request.cookies
        step = 0
        while True:
            step += 1
            turn = body.model_copy(update={"input": [*question, *trajectory]})
            answer, model_cookies = await self._ask_model(turn, model_cookies)
            trajectory += answer.output
            usage = add_usage(usage, answer.usage)
            calls = [item for item in answer.output if item.type == "function_call"]
            if answer.incomplete_details or (not calls and has_message(answer)):
                break
            for call in calls:
                result, tool_cookies = await self._call_tool(call, tool_cookies)
                trajectory.append(result)
            if self.config.max_steps and step >= self.config.max_steps:
                break
        for name, cookie in {**(tool_cookies or {}), **(model_cookies or {})}.items():
            response.set_cookie(name, getattr(cookie, "value", cookie))
        answer.output = trajectory
        answer.usage = usage
        return answer

    async def _ask_model(
        self, params: NeMoGymResponseCreateParamsNonStreaming, cookies: Cookies
    ) -> tuple[NeMoGymResponse, Cookies]:
        reply = await self.server_client.post(
            server_name=self.config.model_server.name, url_path="/v1/responses", json=params, cookies=cookies
        )
        await raise_for_status(reply)
        content = await reply.read()
        try:
            return NeMoGymResponse.model_validate_json(content), reply.cookies
        except ValidationError as error:
            raise RuntimeError(f"Received an invalid response from model server: {content!r}") from error

    async def _call_tool(
        self, call: NeMoGymResponseFunctionToolCall, cookies: Cookies
    ) -> tuple[NeMoGymFunctionCallOutput, Cookies]:
        """The tool's answer as text, whatever its status: the model should see what went wrong."""
        try:
            arguments = json.loads(call.arguments)
        except ValueError as error:
            output = json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
        else:
            reply = await self._post_resources(f"/{call.name}", arguments, cookies)
            content = await reply.read()
            output = content if isinstance(content, str) else content.decode(errors="replace")
            cookies = reply.cookies
        return NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=output), cookies

    async def _post_resources(self, path: str, content: BaseModel | dict[str, Any] | bytes, cookies: Cookies) -> Any:
        return await self.server_client.post(
            server_name=self.config.resources_server.name, url_path=path, json=content, cookies=cookies
        )

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """The environment knows what its fields mean: ask it."""
        reply = await self._post_resources("/aggregate_metrics", body, None)
        await raise_for_status(reply)
        return AggregateMetrics.model_validate(await get_response_json(reply))


def with_response(row: BaseModel, response: bytes) -> bytes:
    """The JSON of a row with the response added, which is JSON already and is not taken apart for this."""
    return row.__pydantic_serializer__.to_json(row, exclude_unset=True)[:-1] + b',"response":' + response + b"}"


def has_message(response: NeMoGymResponse) -> bool:
    """True if the model said something to the user."""
    return any(item.type == "message" and item.role == "assistant" for item in response.output)


def add_usage(total: NeMoGymResponseUsage | None, new: NeMoGymResponseUsage | None) -> NeMoGymResponseUsage | None:
    """The sum of two usages. Details of several calls do not add up to anything meaningful and become 0."""
    if total is None or new is None:
        return total or new
    total.input_tokens += new.input_tokens
    total.output_tokens += new.output_tokens
    total.total_tokens += new.total_tokens
    total.input_tokens_details.cached_tokens = 0
    total.output_tokens_details.reasoning_tokens = 0
    return total


if __name__ == "__main__":
    SimpleAgent.run_webserver()
