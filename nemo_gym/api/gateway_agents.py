"""Agents that reach the model through an attempt of the gateway: programs, and functions with clients of their own.

A rollout is: seed, open an attempt, work, close the attempt, judge what was seen, verify. The response is the main
chain of the model calls that the gateway captured, so nothing that the agent says about itself is believed. The
attempt is closed before anything is verified.
"""

import asyncio
import json
import time
from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from fastapi import Request, Response
from pydantic import Field

from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    Cookies,
    Json,
    ResponsesRequest,
    SimpleResponsesAPIAgent,
    TaskRow,
    fields_of,
)
from nemo_gym.capture.gateway import AttemptReport
from nemo_gym.config.addresses import base_url, server_settings
from nemo_gym.config.keys import POLICY_MODEL
from nemo_gym.conversion.work import final_text_of
from nemo_gym.io.json import decode_exactly, encode_json
from nemo_gym.metrics.aggregate import forwards_metrics_to
from nemo_gym.programs.attempt_folder import workspace_files
from nemo_gym.programs.endings import Unscored
from nemo_gym.schemas.refs import ModelServerRef, ResourcesServerRef
from nemo_gym.schemas.rows import (
    FAILURE_CLASS_HEADER,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    USAGE_HEADER,
    AggregateMetrics,
    AggregateMetricsRequest,
)
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.attempts import OpenedAttempt, open_attempt
from nemo_gym.servers.mcp_tools import NEMO_GYM_MCP_METADATA_KEY, NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.servers.middleware.faults import AttachUsage

PROGRAM: Final = "program"  # in a row: which program ran, and how it ended
WORKSPACE: Final = "workspace"  # in a row: what it changed
WORKSPACE_FILES: Final = "workspace_files"  # in a task: what it is given
_ONLY_VERIFIED: Final = "files"  # of a workspace: not kept in the row
_STATUS: Final = 500


@dataclass(slots=True)
class GatewayTask:
    """A task whose session is open."""

    row: Json
    cookies: Cookies
    seeded: Json

    @property
    def prompt(self) -> str:
        """The task as one text: instructions and messages, in their order."""
        return prompt_of(self.row[RESPONSES_CREATE_PARAMS_KEY_NAME])

    @property
    def workspace_files(self) -> Mapping[str, str]:
        """The files that the environment or the task puts into the workspace."""
        return workspace_files(self.seeded.get(WORKSPACE_FILES) or self.row.get(WORKSPACE_FILES) or {})

    def mcp_path(self) -> str | None:
        """The path of the rollout's own MCP endpoint; None if the environment offers no tools that way."""
        offered = self.seeded.get(NEMO_GYM_MCP_METADATA_KEY)
        if not isinstance(offered, Mapping):
            return None
        token = (offered.get("headers") or {}).get(NEMO_GYM_MCP_SESSION_TOKEN_HEADER)
        return f"{offered['url_path']}/{token}" if token else str(offered["url_path"])


@dataclass(slots=True)
class Work:
    """What an agent has done, beside the calls that the gateway saw."""

    answer: str | None = None  # if it is not the last text of the main chain
    facts: Json = field(default_factory=dict)  # for the row
    workspace: Json | None = None


class GatewayAgentConfig(BaseResponsesAPIAgentConfig):
    """The servers that an agent uses, and the name of the model that it is told."""

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    model: str | None = None  # by default what the model server says
    patience_s: float = Field(default=600.0, ge=0)  # how long calls are held while the endpoint is down


class GatewayAgent(SimpleResponsesAPIAgent):
    """An agent whose model calls are captured on their way."""

    config: GatewayAgentConfig

    @abstractmethod
    async def work(self, task: GatewayTask, attempt: OpenedAttempt) -> Work:
        """Work on a task with the address and the key of an attempt."""

    @abstractmethod
    def judge(self, work: Work, report: AttemptReport) -> Unscored | None:
        """Why the work is not scored; None if it is."""

    async def run(self, request: Request, body: TaskRow = Body()) -> Response:
        """Run one rollout."""
        row = fields_of(body)
        seeded = await self.post_resources("/seed_session", row, request.cookies)
        await raise_for_status(seeded)
        task = GatewayTask(row, seeded.cookies, _object(await seeded.read()))
        attempt = await open_attempt(
            self.server_client, self.config.model_server.name, patience_s=self.config.patience_s
        )
        try:
            work = await self.work(task, attempt)
        finally:
            # Also if the rollout is cancelled: what still runs must get no more answers.
            report = await asyncio.shield(attempt.close())
        ending = self.judge(work, report)
        if ending is not None:
            return failed_reply(ending, work, report)
        return await self._verified(task, work, report)

    async def _verified(self, task: GatewayTask, work: Work, report: AttemptReport) -> Response:
        rollout = {**task.row, RESPONSE_KEY_NAME: response_with(report, work.answer)}
        if work.workspace is not None:
            rollout[WORKSPACE] = work.workspace
        with AttachUsage(lambda: rollout[RESPONSE_KEY_NAME].get("usage")):
            verified = await self.post_resources("/verify", rollout, task.cookies)
            await raise_for_status(verified)
        verdict = {**_object(await verified.read()), PROGRAM: {**work.facts, **seen(report)}}
        if work.workspace is not None:
            kept = {name: value for name, value in work.workspace.items() if name != _ONLY_VERIFIED}
            verdict[WORKSPACE] = kept
        return Response(encode_json(verdict), media_type="application/json")

    async def responses(self, body: ResponsesRequest = Body()) -> Json:
        """Refuse requests without a task."""
        del body
        raise NotImplementedError(f"{self.config.name} works on whole tasks: call /run")

    def post_resources(self, path: str, content: Any, cookies: Cookies) -> Awaitable[Any]:
        """Call the resources server."""
        return self.server_client.post(
            server_name=self.config.resources_server.name, url_path=path, json=content, cookies=cookies
        )

    @property
    def model_name(self) -> str:
        """The name of the model for clients; the model server asks for its own in any case."""
        settings = server_settings(self.server_client.global_config_dict, self.config.model_server.name)
        return str(self.config.model or settings.get("openai_model") or settings.get("model") or POLICY_MODEL)

    def address_of(self, server: str) -> str:
        """Where a server of the Gym listens."""
        return base_url(server_settings(self.server_client.global_config_dict, server))

    @forwards_metrics_to("resources_server")
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Ask the environment, which knows what its fields mean."""
        reply = await self.post_resources("/aggregate_metrics", body, None)
        await raise_for_status(reply)
        return AggregateMetrics.model_validate(await get_response_json(reply))


def failed_reply(ending: Unscored, work: Work, report: AttemptReport) -> Response:
    """The reply for an attempt that is not scored. Its class decides whether the rollout is tried again."""
    headers = {FAILURE_CLASS_HEADER: ending.kind}
    if report.response is not None and report.response.get("usage"):
        headers[USAGE_HEADER] = json.dumps(report.response["usage"])
    error = {"message": ending.message, PROGRAM: {**work.facts, **seen(report)}}
    return Response(encode_json({"error": error}), _STATUS, headers, media_type="application/json")


def seen(report: AttemptReport) -> Json:
    """What the gateway saw of an agent, without what is usual."""
    facts: Json = {"calls": report.calls, "protocols": report.protocols}
    unusual = {
        "cancelled_calls": report.cancelled,
        "late_calls": report.late,
        "refused": [refusal.model_dump() for refusal in report.refused],
        "left_out": report.left_out,
        "waited_s": round(report.waited_s, 1),
    }
    return facts | {name: value for name, value in unusual.items() if value}


def response_with(report: AttemptReport, answer: str | None) -> Json:
    """The main chain as a response; an answer that is not its last text is added as a message."""
    response = dict(report.response or {})
    output = list(response.get("output") or ())
    if answer is not None and answer.strip() != final_text_of(output).strip():
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        message = {"type": "message", "id": f"msg_{uuid4().hex[:12]}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": content})
    if not response:  # nothing was asked, but the answer is there
        fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        response = {"id": f"resp_{uuid4().hex}", "created_at": time.time(), "model": "none", **fixed}
    return {**response, "output": output}


def prompt_of(params: Mapping[str, Any]) -> str:
    """The request of a task as one text."""
    asked = params.get("input")
    texts = [str(params["instructions"])] if params.get("instructions") else []
    if isinstance(asked, str):
        texts.append(asked)
    else:
        texts += [_text_of(item.get("content")) for item in asked or () if isinstance(item, Mapping)]
    return "\n\n".join(text for text in texts if text)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)


def _object(content: bytes) -> Json:
    value = decode_exactly(content)
    return value if isinstance(value, dict) else {}
