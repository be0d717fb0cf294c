"""Front door: the base of every agent server, which takes a task, calls the model and tools, and has it scored.

An agent passes on what it need not understand. A body of type ``TaskRow`` or ``ResponsesRequest`` is a plain
dictionary of which only the outline was checked, and a ``Trajectory`` holds items as they came, so that token ids and
fields of newer endpoints are not lost. The servers that use a field validate it.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from fastapi import Body, FastAPI, Request, Response
from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, with_config
from typing_extensions import TypedDict

from nemo_gym.config.addresses import base_url, server_settings
from nemo_gym.config.keys import OBSERVABILITY_ENABLED, TOKEN_ID_CAPTURE
from nemo_gym.io.json import decode_exactly
from nemo_gym.metrics.aggregate import computes_standard_metrics
from nemo_gym.openai_utils import NeMoGymResponse, add_usages
from nemo_gym.reward_profile import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.rollout_correlation import current_rollout_id, maybe_rollout_id_from_run_body
from nemo_gym.schemas.episodes import (
    AgentCloseSessionRequest,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
    ToolAccesses,
)
from nemo_gym.schemas.record import REWARD
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig, ModelServerRef, ResourcesServerRef
from nemo_gym.schemas.rows import (
    FAILURE_REASON_KEY_NAME,
    MASK_KEY_NAME,
    AggregateMetrics,
    AggregateMetricsRequest,
)
from nemo_gym.server_utils import (
    BaseServer,
    SimpleServer,
    apply_rollout_prefix,
    get_server_url,
    raise_for_status,
    rollout_path_prefix,
)
from nemo_gym.servers.agent_sessions import (
    AgentCloseSessionResponse,
    AgentSessions,
    AgentSessionSetupError,
    AgentSessionState,
    mark_session,
    session_marker,
)
from nemo_gym.servers.direct.routes import JsonObject

__all__ = [
    "AgentCloseSessionRequest",
    "AgentCloseSessionResponse",
    "AgentSeedSessionRequest",
    "AgentSeedSessionResponse",
    "AgentSessionSetupError",
    "AgentSessionState",
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "Body",
    "Cookies",
    "Json",
    "ResponseFields",
    "ResponsesRequest",
    "SimpleResponsesAPIAgent",
    "TaskRow",
    "Trajectory",
    "fields_of",
]

Json: TypeAlias = dict[str, Any]
Cookies: TypeAlias = Mapping[str, Any] | None


@with_config(ConfigDict(extra="allow"))
class TaskRow(TypedDict):
    """The body of ``/run``: the row of a task."""

    responses_create_params: Json


@with_config(ConfigDict(extra="allow"))
class ResponsesRequest(TypedDict):
    """The body of ``/v1/responses``: the conversation, and options for the model."""

    input: str | list[Json]


class ResponseFields(JsonObject):
    """The fields of a response, unread. Code written for a typed response can still read ``.output`` and its kind."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(NeMoGymResponse.model_validate(self), name)


@dataclass(slots=True)
class Trajectory:
    """The work on one request: what model and tools have produced so far, what it cost, and the cookies of both."""

    params: Json
    tool_cookies: Cookies
    model_cookies: Cookies = None
    completion: Json = field(default_factory=dict)  # the latest one
    output: list[Json] = field(default_factory=list)
    usage: Json | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any] | BaseModel, cookies: Cookies) -> Self:
        """A trajectory that begins with this request; the cookies are those of the tools."""
        params = fields_of(request)
        if isinstance(params["input"], str):
            params["input"] = [{"role": "user", "content": params["input"]}]
        return cls(params, cookies)

    @property
    def generated_tokens(self) -> int:
        """The number of tokens that the model has written."""
        return self.usage["output_tokens"] if self.usage else 0

    @property
    def tool_calls(self) -> list[Json]:
        """The tool calls of the latest completion."""
        return [item for item in self.completion["output"] if item.get("type") == "function_call"]

    @property
    def is_answered(self) -> bool:
        """Whether the latest completion has a message for the user. One without any items is an empty answer."""
        output = self.completion["output"]
        return not output or any(map(_is_answer, output))

    def request(self) -> Json:
        """The next request for the model."""
        return {**self.params, "input": self.params["input"] + self.output}

    def add_completion(self, completion: Json) -> None:
        self.completion = completion
        self.output += completion["output"]
        self.usage = add_usages(self.usage, completion.get("usage"))

    def response(self) -> ResponseFields:
        """The whole trajectory in the form of one response."""
        return ResponseFields(self.completion, output=self.output, usage=self.usage)

    def set_cookies(self, response: Response) -> None:
        """Give the caller the cookies of both servers."""
        for name, cookie in {**(self.tool_cookies or {}), **(self.model_cookies or {})}.items():
            response.set_cookie(name, getattr(cookie, "value", cookie))


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """Settings of an agent server; subclass it to add fields."""

    # How long the reply to a closed session is kept for those who ask again.
    session_close_retry_window_seconds: float = Field(default=300, gt=0)
    token_id_capture: bool = False
    tool_accesses: ToolAccesses = Field(default_factory=list)
    skip_verification: bool = False
    skip_verification_reward: float = 0.0


class BaseResponsesAPIAgent(BaseServer):
    """A server that runs rollouts."""

    config: BaseResponsesAPIAgentConfig


class SimpleResponsesAPIAgent(BaseResponsesAPIAgent, AggregateMetricsMixin, SimpleServer):
    """An agent with the standard routes."""

    _sessions: AgentSessions[Any] | None = PrivateAttr(default=None)

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/v1/responses``, ``/run``, ``/aggregate_metrics`` and the routes of sessions."""
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.responses)
        app.post("/run")(self.run)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.post("/v1/agent_sessions")(self.seed_agent_session)
        app.post("/v1/agent_sessions/close")(self.close_agent_session)
        return app

    # ---- sessions, which environment servers open and close ---------------------------------------------------------
    async def seed_agent_session(self, request: Request, body: AgentSeedSessionRequest) -> AgentSeedSessionResponse:
        """Open a session, which further requests with the same cookie belong to."""
        if (self.config.num_workers or 1) > 1:
            raise ValueError("agent sessions need num_workers: 1, because each worker would have sessions of its own")
        mark_session(request.session, body.agent_session_id)
        await self._agent_sessions.seed(body, self._seed_agent_session_state)
        return AgentSeedSessionResponse(agent_session_id=body.agent_session_id)

    async def close_agent_session(self, request: Request, body: AgentCloseSessionRequest) -> AgentCloseSessionResponse:
        """Close a session, and report what the agent observed in it."""
        del request  # any caller that knows the id and the episode may close it
        return await self._agent_sessions.close(body, self._close_agent_session_state)

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> AgentSessionState:
        """Make the state of a session; for agents that have sessions."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions")

    async def _close_agent_session_state(self, state: Any) -> AgentCloseSessionResponse:
        """Release the state of a session."""
        raise NotImplementedError(f"{type(self).__name__} has no sessions")

    def _agent_session_id_from_request(self, request: Request) -> str | None:
        return session_marker(request.session)

    def _require_agent_session(self, agent_session_id: str) -> Any:
        return self._agent_sessions.require(agent_session_id)

    def effective_tool_accesses(self, seed: AgentSeedSessionRequest) -> list[Any]:
        """The tools of a session: those of the configuration, and those of the request, which win over them."""
        return [*{access.name: access for access in (*self.config.tool_accesses, *seed.tool_accesses)}.values()]

    @property
    def _agent_sessions(self) -> AgentSessions[Any]:
        if self._sessions is None:
            self._sessions = AgentSessions(window_s=self.config.session_close_retry_window_seconds)
        return self._sessions

    @property
    def _session_records(self) -> dict[str, Any]:
        return self._agent_sessions.open

    @property
    def _closed_session_records(self) -> dict[str, Any]:
        return self._agent_sessions.closed

    # A route takes its parameters from the signature of its handler, so agents may declare whatever FastAPI can supply.
    @abstractmethod
    async def responses(self, *parameters: Any, **named: Any) -> Any:
        """Work on one request until there is an answer: ``body: NeMoGymResponseCreateParamsNonStreaming``.

        Returns a ``NeMoGymResponse``, or its fields; ``output`` is the whole trajectory.
        """

    @abstractmethod
    async def run(self, *parameters: Any, **named: Any) -> Any:
        """Run one rollout, ``body: BaseRunRequest``: seed, respond, verify. Returns a ``BaseVerifyResponse``."""

    async def call_model(self, server: ModelServerRef, request: Json, trajectory: Trajectory) -> None:
        """Send a request to a model server, and add its completion to the trajectory."""
        reply = await self.server_client.post(
            server_name=server.name, url_path="/v1/responses", json=request, cookies=trajectory.model_cookies
        )
        await raise_for_status(reply)
        trajectory.model_cookies = reply.cookies
        trajectory.add_completion(read_completion(await reply.read()))

    async def call_tools(
        self, server: ResourcesServerRef, calls: Iterable[Json], trajectory: Trajectory, *, concurrently: bool = False
    ) -> None:
        """Run tool calls, and add their results to the trajectory in the order of the calls."""
        if not concurrently:
            for call in calls:
                result, trajectory.tool_cookies = await self.call_tool(server, call, trajectory.tool_cookies)
                trajectory.output.append(result)
            return
        try:
            async with asyncio.TaskGroup() as group:  # which ends the other calls if one of them fails the rollout
                tasks = [group.create_task(self.call_tool(server, call, trajectory.tool_cookies)) for call in calls]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        for result, cookies in map(asyncio.Task.result, tasks):
            trajectory.tool_cookies = {**(trajectory.tool_cookies or {}), **(cookies or {})}
            trajectory.output.append(result)

    async def call_tool(self, server: ResourcesServerRef, call: Json, cookies: Cookies) -> tuple[Json, Cookies]:
        """Run one tool call. The model gets the reply whatever its status is, to see what went wrong."""
        try:
            arguments = decode_exactly(call["arguments"])
        except (ValueError, RecursionError) as error:
            output = json.dumps({"error": f"Invalid tool call arguments: {error!r}"})
        else:
            reply = await self.server_client.post(
                server_name=server.name, url_path=f"/{call['name']}", json=arguments, cookies=cookies
            )
            output, cookies = (await reply.read()).decode(errors="replace"), reply.cookies
        return {"type": "function_call_output", "call_id": call["call_id"], "output": output}, cookies

    def unverified(self, rollout: Json) -> Json:
        """A rollout that is not to be scored: its reward is the one that is set for all, and not a measurement."""
        reason = {MASK_KEY_NAME: True, FAILURE_REASON_KEY_NAME: "skip_verification is set"}
        return {**rollout, REWARD: self.config.skip_verification_reward, **reason}

    def rollout_id_from_run(self, body: Any) -> str | None:
        """The id of the rollout that a body of ``/run`` asks for."""
        return maybe_rollout_id_from_run_body(body) or current_rollout_id()

    # The prefix is only for those who record calls by their path: everyone else would see an address that changes
    # with every rollout, and could not cache it.
    def url_path_for_run(self, url_path: str, body: Any) -> str:
        """A path of another server that marks the call as part of the rollout in ``body``, if calls are recorded."""
        return self._rollout_prefix(self.rollout_id_from_run(body)) + url_path

    def url_path_for_request(self, url_path: str, request: Any = None) -> str:
        """A path of another server that marks the call as part of the rollout that is being served."""
        del request  # the rollout of the current call is known without it
        return self._rollout_prefix(current_rollout_id()) + url_path

    def base_url_for_run(self, base_url: str, body: Any) -> str:
        """An address under which every call is part of the rollout in ``body``. Accepts a server's name too."""
        if "://" not in base_url:
            base_url = get_server_url(base_url)
        return self._with_prefix(base_url, self.rollout_id_from_run(body))

    def _rollout_prefix(self, rollout_id: str | None) -> str:
        tokens = self._token_id_capture_enabled()
        return rollout_path_prefix(rollout_id, token_capture=tokens) if self._capture_correlation_enabled() else ""

    def _with_prefix(self, address: str, rollout_id: str | None) -> str:
        if not self._capture_correlation_enabled():
            return address
        return apply_rollout_prefix(address, rollout_id, token_capture=self._token_id_capture_enabled())

    def _global_setting(self, key: str) -> Any:
        config = getattr(self.server_client, "global_config_dict", None)
        return config.get(key) if isinstance(config, DictConfig | Mapping) else None

    def _model_call_capture_enabled(self) -> bool:
        """Whether model calls are recorded by their rollout."""
        return bool(self._global_setting(OBSERVABILITY_ENABLED))

    def _token_id_capture_enabled(self) -> bool:
        """Whether the tokens of this agent's model calls are recorded by their rollout."""
        block = self._global_setting(TOKEN_ID_CAPTURE)
        if not isinstance(block, DictConfig | Mapping) or not block.get("enabled"):
            return False
        return bool(block.get("all_agents") or self.config.token_id_capture)

    def _capture_correlation_enabled(self) -> bool:
        return self._model_call_capture_enabled() or self._token_id_capture_enabled()

    def resolve_model_base_url(self, model_server: ModelServerRef | str, body: Any = None) -> str:
        """The OpenAI base URL of a model server, for programs that bring their own client."""
        name = model_server if isinstance(model_server, str) else model_server.name
        address = base_url(server_settings(self.server_client.global_config_dict, name))
        return self._with_prefix(address, self.rollout_id_from_run(body)) + "/v1"

    @computes_standard_metrics
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Turn all results of this agent into metrics."""
        hooks = (self.compute_metrics, self.get_key_metrics, self.compute_repeat_metrics)
        return compute_aggregate_metrics(body.verify_responses, *hooks)


def fields_of(body: Mapping[str, Any] | BaseModel) -> Json:
    """The fields of a body in a new dictionary. Subclasses that validate their bodies have models; others have none."""
    return body.model_dump(mode="json", exclude_unset=True) if isinstance(body, BaseModel) else dict(body)


def read_completion(content: bytes) -> Json:
    """Read the reply of a model server. The server has validated it, so only its outline is checked here."""
    try:
        completion = decode_exactly(content)
    except ValueError:
        completion = None
    if not isinstance(completion, dict) or not isinstance(completion.get("output"), list):
        raise RuntimeError(f"Received an invalid response from model server: {content!r}")  # noqa: TRY004 - of data
    return completion


def _is_answer(item: Json) -> bool:
    return item.get("type", "message") == "message" and item.get("role") == "assistant"
