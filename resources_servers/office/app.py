"""An office with mail, a calendar, files and contacts: 25 tools, and errands that are checked by the final state."""

import asyncio
from typing import Any, Final, Self

import orjson
from fastapi import Body, FastAPI, Request
from pydantic import BaseModel, PrivateAttr, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionStates,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymFunctionCallOutput, NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_subset_metrics
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.office.toolkit import TOOLS, State, call_tool
from resources_servers.office.world import Office, OfficeCall, difference, replay

MAX_CALLS: Final = 200
# More calls than this are replayed in a thread, so that other rollouts do not wait.
MANY_CALLS: Final = 20
MAX_ARGUMENTS: Final = 100_000


class OfficeConfig(BaseResourcesServerConfig):
    """This environment adds no settings."""


class ExpectedOfficeCall(BaseModel):
    """A call of the scripted solution; its arguments may be JSON text."""

    name: str
    arguments: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("arguments"), str):
            return {**data, "arguments": orjson.loads(data["arguments"])}
        return data


class OfficeTask(BaseModel):
    """The office at the start, and the calls that solve the task."""

    office: Office
    ground_truth: list[ExpectedOfficeCall]

    _expected: State = PrivateAttr()

    @model_validator(mode="after")
    def _can_be_solved(self) -> Self:
        state = self.office.start()
        for call in self.ground_truth:
            answer = call_tool(state, call.name, call.arguments)
            if "error" in answer:
                raise ValueError(f"ground_truth: {call.name}: {answer['error']}")
        if difference(state, self.office.start()) is None:
            raise ValueError("ground_truth changes nothing: an agent that does nothing would be right")
        self._expected = state
        return self

    @property
    def expected(self) -> State:
        """The state that the scripted solution leads to."""
        return self._expected


class OfficeVerifyRequest(OfficeTask, BaseVerifyRequest):
    """A row with the agent's response."""

    id: str | int | None = None
    category: str | None = None
    question: str | None = None
    difficulty: int | None = None


class OfficeVerifyResponse(OfficeVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reason for it."""

    accuracy: float
    tool_calls: int
    failed_calls: int
    changed: bool
    reason: str | None


class OfficeServer(SimpleResourcesServer):
    """An office for each rollout."""

    config: OfficeConfig
    _sessions: SessionStates[State] = PrivateAttr(default_factory=SessionStates)

    def setup_webserver(self) -> FastAPI:
        """Add one route for all tools."""
        app = super().setup_webserver()
        app.post("/{tool}")(self.use_tool)
        return app

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: OfficeTask
    ) -> BaseSeedSessionResponse:
        """Open the office; a row that its own solution does not solve is refused before it costs a model call."""
        self._sessions[request.session[SESSION_ID_KEY]] = body.office.start()
        return BaseSeedSessionResponse()

    async def use_tool(self, request: Request, tool: str, body: Any = Body()) -> dict[str, Any]:
        """Carry out a call in the rollout's office."""
        state = self._sessions.get(request.session[SESSION_ID_KEY])
        return {"error": "the rollout has not begun"} if state is None else call_tool(state, tool, body)

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: OfficeVerifyRequest
    ) -> OfficeVerifyResponse:
        """Replay the calls that were carried out, and compare the office with the one that was wanted."""
        self._sessions.pop(request.session.get(SESSION_ID_KEY, ""), None)
        calls = calls_in(body.response)
        if len(calls) > MANY_CALLS:
            state, reason = await asyncio.to_thread(outcome, body, calls)
        else:
            state, reason = outcome(body, calls)
        return OfficeVerifyResponse(
            **dict(body),
            reward=float(reason is None),
            accuracy=float(reason is None),
            tool_calls=len(calls),
            failed_calls=sum(call.name not in TOOLS or call.arguments is None for call in calls),
            changed=state != body.office.start(),
            reason=reason,
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k by difficulty."""
        return compute_subset_metrics(tasks, "difficulty")


def outcome(task: OfficeTask, calls: list[OfficeCall]) -> tuple[State, str | None]:
    """The office after these calls, and where it is not as it should be."""
    state = replay(task.office, calls[:MAX_CALLS])
    if len(calls) > MAX_CALLS:
        return state, f"more than {MAX_CALLS} calls"
    return state, difference(state, task.expected)


def calls_in(response: NeMoGymResponse) -> list[OfficeCall]:
    """The calls that were answered, in their order; the others were never carried out."""
    answered = {item.call_id for item in response.output if isinstance(item, NeMoGymFunctionCallOutput)}
    return [
        OfficeCall(item.name, _arguments(item.arguments))
        for item in response.output
        if isinstance(item, NeMoGymResponseFunctionToolCall) and item.call_id in answered
    ]


def _arguments(text: str) -> Any:
    if len(text) > MAX_ARGUMENTS:
        return None
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None


if __name__ == "__main__":
    OfficeServer.run_webserver()
