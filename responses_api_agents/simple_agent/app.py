"""The simple agent: ask the model, run the tools it calls, repeat until it answers; then have the rollout verified."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.io.json import decode_exactly, encode_json
from nemo_gym.metrics.aggregate import forwards_metrics_to
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, add_spent
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.direct.routes import UnreadBody
from nemo_gym.servers.faults import AttachUsage
from nemo_gym.servers.verdicts import completed

Json = dict[str, Any]
Cookies = Mapping[str, Any] | None

# Enough for any task this agent suits; it ends a model that only reasons, or calls tools forever.
DEFAULT_MAX_STEPS: Final = 100


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    """``max_steps`` limits how often the model is asked; without it the limit is ``DEFAULT_MAX_STEPS``.

    ``max_generated_tokens`` limits what it writes in all its answers. ``concurrent_tool_calls`` runs the calls of one
    answer at the same time, for environments in which their order does not matter.
    """

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=0)
    max_generated_tokens: int | None = Field(default=None, ge=1)
    concurrent_tool_calls: bool = False


class SimpleAgentRunRequest(BaseRunRequest):
    """A task; every other field of the row is passed on to the resources server."""

    model_config = ConfigDict(extra="allow")


class _Row(BaseModel):
    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any]


class _RowOutline(msgspec.Struct):
    responses_create_params: dict[str, Any]


class ForwardedRow(UnreadBody):
    """A task that is forwarded unread: the servers that use its fields validate them."""

    __slots__ = ()

    model = _Row
    decoder = msgspec.json.Decoder(_RowOutline)

    @property
    def params(self) -> Json:
        """The request for the model, the only part that is read here."""
        outline: _RowOutline | None = self.outline
        params: Json = self.fields["responses_create_params"] if outline is None else outline.responses_create_params
        return params


class SimpleAgentVerifyRequest(BaseVerifyRequest):
    """A task with the agent's work."""

    model_config = ConfigDict(extra="allow")


class SimpleAgentVerifyResponse(BaseVerifyResponse):
    """A scored rollout."""

    model_config = ConfigDict(extra="allow")


class SimpleAgent(SimpleResponsesAPIAgent):
    """A tool loop around one model and one resources server."""

    config: SimpleAgentConfig

    def run_handler(self) -> Callable[..., Any]:
        """Relay the verifier's bytes, unless a subclass overrides ``run``."""
        return self.relay_run if type(self).run is SimpleAgent.run else self.run

    async def relay_run(self, request: Request, body: ForwardedRow = Body()) -> Response:
        """Run one rollout and return the verifier's bytes, which its server has just validated."""
        return JsonResponse(await self._run(body.text, body.params, request.cookies))

    async def run(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: SimpleAgentRunRequest = Body()
    ) -> SimpleAgentVerifyResponse:
        """Run one rollout: seed the session, let the agent respond, verify."""
        params = body.responses_create_params.model_dump(mode="json", exclude_unset=True)
        rollout = await self._run(encode_json(body), params, request.cookies)
        return SimpleAgentVerifyResponse.model_validate_json(rollout)

    async def responses(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Alternate between model and tools until the model answers, is cut off, or a limit is reached."""
        answer, cookies = await self._work(body.model_dump(exclude_unset=True), request.cookies)
        for name, cookie in cookies.items():
            response.set_cookie(name, getattr(cookie, "value", cookie))
        return NeMoGymResponse.model_validate(answer)

    async def _run(self, row: bytes, params: Json, cookies: Cookies) -> bytes:
        seeded = await self._post_resources("/seed_session", row, cookies)
        if not seeded.ok:  # asked first, because a coroutine costs more than the question
            await raise_for_status(seeded)
        response, cookies = await self._respond(params, seeded.cookies)
        with AttachUsage(lambda: orjson.loads(response).get("usage")):
            verified = await self._post_resources("/verify", with_response(row, response), cookies)
            if not verified.ok:
                await raise_for_status(verified)
        return completed(await verified.read(), params, response)

    async def _respond(self, params: Json, cookies: Cookies) -> tuple[bytes, Cookies]:
        if type(self).responses is SimpleAgent.responses:
            answer, cookies = await self._work(params, cookies)
            return encode_json(answer), cookies
        # The handler of a subclass may take other parameters, which only its route can supply.
        reply = await self.server_client.post(
            server_name=self.config.name, url_path="/v1/responses", json=params, cookies=cookies
        )
        await raise_for_status(reply)
        return await reply.read(), reply.cookies

    async def _work(self, params: Json, tool_cookies: Cookies) -> tuple[Json, Mapping[str, Any]]:
        """Alternate between model and tools. Items are forwarded unread, so that nothing they hold is lost."""
        question = params.get("input", [])
        if isinstance(question, str):
            question = [{"role": "user", "content": question}]
        trajectory: list[Json] = []
        usage: Json | None = None
        model_cookies: Cookies = None
        step = 0
        with AttachUsage(lambda: usage):
            while True:
                step += 1
                request = {**params, "input": question + trajectory}
                if self.config.max_generated_tokens:
                    request["max_output_tokens"] = tokens_left(params, usage, self.config.max_generated_tokens)
                answer, model_cookies = await self._ask_model(request, model_cookies)
                trajectory += answer["output"]
                usage = add_usage(usage, answer.get("usage"))
                calls = [item for item in answer["output"] if item.get("type") == "function_call"]
                # A model that only reasons has not answered yet, and is asked again. One that was cut off is not: its
                # calls may be incomplete.
                if answer.get("incomplete_details") or (not calls and any(map(is_answer, answer["output"]))):
                    break
                results, tool_cookies = await self._call_tools(calls, tool_cookies)
                trajectory += results
                ended = self._reached_limit(step, usage, planned=bool(calls))
                if ended is not None:
                    answer |= ended
                    break
        answer |= {"output": trajectory, "usage": usage}
        return answer, {**(tool_cookies or {}), **(model_cookies or {})}

    def _reached_limit(self, step: int, usage: Json | None, *, planned: bool) -> Json | None:
        """What the answer reports about the limit that ends the loop; None if the loop continues."""
        limit = self.config.max_generated_tokens
        if limit and usage and usage["output_tokens"] >= limit:
            return {"status": "incomplete", "incomplete_details": {"reason": "max_generated_tokens"}}
        if step < (self.config.max_steps or DEFAULT_MAX_STEPS):
            return None
        # Stopping after the tools of a configured number of steps is a planned end; every other one is not.
        if planned and self.config.max_steps:
            return {}
        return {"status": "incomplete", "incomplete_details": {"reason": "max_steps"}}

    async def _ask_model(self, params: Json, cookies: Cookies) -> tuple[Json, Cookies]:
        reply = await self.server_client.post(
            server_name=self.config.model_server.name, url_path="/v1/responses", json=params, cookies=cookies
        )
        if not reply.ok:
            await raise_for_status(reply)
        return read_response(await reply.read()), reply.cookies

    async def _call_tool(self, call: Json, cookies: Cookies) -> tuple[Json, Cookies]:
        """Return the tool's answer as text whatever its status, because the model should see what went wrong."""
        try:
            arguments = decode_exactly(call["arguments"])
        except (ValueError, RecursionError) as error:
            output = json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
        else:
            reply = await self._post_resources(f"/{call['name']}", arguments, cookies)
            content = await reply.read()
            output = content if isinstance(content, str) else content.decode(errors="replace")
            cookies = reply.cookies
        return {"type": "function_call_output", "call_id": call["call_id"], "output": output}, cookies

    async def _call_tools(self, calls: Sequence[Json], cookies: Cookies) -> tuple[list[Json], Cookies]:
        if len(calls) > 1 and self.config.concurrent_tool_calls:
            return await self._call_together(calls, cookies)
        results = []
        for call in calls:
            result, cookies = await self._call_tool(call, cookies)
            results.append(result)
        return results, cookies

    async def _call_together(self, calls: Sequence[Json], cookies: Cookies) -> tuple[list[Json], Cookies]:
        """Run calls at the same time. Their results stay in the order of the calls; of two cookies, the later one wins.

        If one of them fails the rollout, the others are ended with it.
        """
        tasks = [asyncio.create_task(self._call_tool(call, cookies)) for call in calls]
        try:
            answered = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        merged = dict(cookies or {})
        for _, received in answered:
            merged.update(received or {})
        return [result for result, _ in answered], merged

    def _post_resources(self, path: str, content: Any, cookies: Cookies) -> Awaitable[Any]:
        return self.server_client.post(
            server_name=self.config.resources_server.name, url_path=path, json=content, cookies=cookies
        )

    @forwards_metrics_to("resources_server")
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Ask the environment, which knows what its fields mean."""
        reply = await self._post_resources("/aggregate_metrics", body, None)
        await raise_for_status(reply)
        return AggregateMetrics.model_validate(await get_response_json(reply))


def with_response(row: bytes, response: bytes) -> bytes:
    """Add the response to the JSON of a row without parsing either."""
    # At the end: if the row has such a field already, parsers take the last one.
    return row.rstrip()[:-1] + b',"response":' + response + b"}"


def read_response(content: bytes) -> Json:
    """Read a model server's answer. The server has validated it, so only its outline is checked here."""
    try:
        answer = orjson.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
        raise RuntimeError(f"Received an invalid response from model server: {content!r}")  # noqa: TRY004 - of data
    return answer


def is_answer(item: Json) -> bool:
    """Whether an item is a message to the user."""
    return item.get("type", "message") == "message" and item.get("role") == "assistant"


def tokens_left(params: Json, usage: Json | None, limit: int) -> int:
    """How many tokens the model may write in its next answer: the rest of the limit, or what the task allows."""
    left = limit - (usage["output_tokens"] if usage else 0)
    allowed = params.get("max_output_tokens")
    return min(left, allowed) if allowed else left


def add_usage(total: Json | None, new: Json | None) -> Json | None:
    """Add two usages. The details of several calls do not add up to anything meaningful and become 0."""
    if total is None or new is None:
        return total or new
    return {
        "input_tokens": total["input_tokens"] + new["input_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": total["output_tokens"] + new["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total["total_tokens"] + new["total_tokens"],
        **add_spent(total, new),
    }


if __name__ == "__main__":
    SimpleAgent.run_webserver()
