"""Tool use, checked by the calls that were made or by what they did to a world, in one turn or several."""

import asyncio
from itertools import groupby
from typing import Any, Final, Literal, Self

from fastapi import Body, FastAPI, Request
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    SessionStates,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymFunctionCallOutput, NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.reward_profile import compute_subset_metrics
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.function_calls.calls import Call, ExpectedCall, match_calls, read_call
from resources_servers.function_calls.expectation import expected_call, parameters_of, plain_call
from resources_servers.function_calls.world import Simulation, World

MAX_CALLS: Final = 256
MAX_REASONS: Final = 10
# More calls than this are checked in a thread, so that other rollouts do not wait.
MANY_CALLS: Final = 50
LONG: Final = 20_000


class FunctionCallsConfig(BaseResourcesServerConfig):
    """``grading``: reward only a rollout in which ``all`` turns are right, or the ``fraction`` that is."""

    grading: Literal["all", "fraction"] = "all"


class FunctionCallsTask(BaseModel):
    """A row. ``ground_truth`` is a list of calls, or such a list for each turn."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    check: Literal["calls", "some_call", "state"] = "calls"
    ground_truth: list[Any] = Field(default_factory=list)
    expected_call: dict[str, Any] | None = None
    ordered: bool = False
    turns: list[list[dict[str, Any]]] = Field(default_factory=list)
    added_tools: dict[int, list[dict[str, Any]]] = Field(default_factory=dict)
    tool_results: dict[str, Any] = Field(default_factory=dict)
    world: World | None = None
    id: str | None = None
    category: str | None = None
    difficulty: int | None = None

    _expected: list[list[ExpectedCall]] = PrivateAttr()

    @model_validator(mode="after")
    def _can_be_checked(self) -> Self:
        if self.check == "state" and self.world is None:
            raise ValueError("a row that is checked by state needs a world")
        added = [tool for tools in self.added_tools.values() for tool in tools]
        tools = parameters_of([dict(tool) for tool in self.responses_create_params.tools] + added)
        calls = [self.expected_call] if self.expected_call else self.ground_truth
        by_turn = calls if calls and isinstance(calls[0], list) else [calls]
        if len(by_turn) != len(self.turns) + 1:
            raise ValueError(f"{len(by_turn)} lists of expected calls for {len(self.turns) + 1} turns")
        self._expected = [[expected_call(each, tools) for each in turn] for turn in by_turn]
        return self

    @property
    def expected(self) -> list[list[ExpectedCall]]:
        """The expected calls of each turn."""
        return self._expected


class FunctionCallsVerifyRequest(FunctionCallsTask, BaseVerifyRequest):
    """A row with the agent's response."""


class FunctionCallsVerifyResponse(FunctionCallsVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    accuracy: float
    fraction_right: float
    tool_calls: int
    reasons: list[str]


class NextTurn(BaseModel):
    """What the user says next; nothing, if the conversation is over."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    done: bool


class FunctionCallsServer(SimpleResourcesServer):
    """Answers tool calls and checks them."""

    config: FunctionCallsConfig
    _sessions: SessionStates[tuple[FunctionCallsTask, Simulation | None]] = PrivateAttr(default_factory=SessionStates)

    def setup_webserver(self) -> FastAPI:
        """Add the user's next turn, and one route for all tools that rows may bring."""
        app = super().setup_webserver()
        app.post("/next_turn")(self.next_turn)
        app.post("/{tool}")(self.use_tool)
        return app

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: FunctionCallsTask
    ) -> BaseSeedSessionResponse:
        """Start the row's world; a row that can't be checked is refused before it costs a model call."""
        self._sessions[request.session[SESSION_ID_KEY]] = (body, body.world.start() if body.world else None)
        return BaseSeedSessionResponse()

    async def use_tool(self, request: Request, tool: str, body: Any = Body()) -> Any:
        """Carry out a call in the rollout's world, or answer as the row says."""
        session = self._sessions.get(request.session[SESSION_ID_KEY])
        if session is None:
            return {"error": "the rollout has not begun"}
        task, simulation = session
        if simulation is None:
            return task.tool_results.get(tool, {"status": "ok"})
        return simulation.call(Call(tool, body if isinstance(body, dict) else None))

    async def next_turn(self, body: FunctionCallsVerifyRequest) -> NextTurn:
        """The user's next messages, in the order of the row, and the tools that come with them."""
        done = len(turns_of(body.response))
        if done > len(body.turns):
            return NextTurn(messages=[], tools=[], done=True)
        return NextTurn(messages=body.turns[done - 1], tools=body.added_tools.get(done, []), done=False)

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: FunctionCallsVerifyRequest
    ) -> FunctionCallsVerifyResponse:
        """Check every turn; calls are replayed, so that the verdict depends on nothing but the rollout itself."""
        self._sessions.pop(request.session.get(SESSION_ID_KEY, ""), None)
        turns = turns_of(body.response)
        calls = sum(len(turn) for turn in turns)
        if calls > MAX_CALLS:
            problems = [[f"more than {MAX_CALLS} calls"]]
        elif calls > MANY_CALLS or sum(len(call.arguments) for turn in turns for call in turn) > LONG:
            problems = await asyncio.to_thread(check, body, turns)
        else:
            problems = check(body, turns)
        fraction = sum(not turn for turn in problems) / len(problems)
        accuracy = float(fraction == 1)
        return FunctionCallsVerifyResponse(
            **dict(body),
            reward=accuracy if self.config.grading == "all" else fraction,
            accuracy=accuracy,
            fraction_right=fraction,
            tool_calls=calls,
            reasons=[why for turn in problems for why in turn][:MAX_REASONS],
        )

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k by category, where rows have one."""
        return compute_subset_metrics(tasks, "category")


def check(task: FunctionCallsTask, turns: list[list[NeMoGymResponseFunctionToolCall]]) -> list[list[str]]:
    """What is wrong in each turn; a turn that was never reached is wrong."""
    if len(turns) > len(task.expected):
        return [[f"{len(turns)} turns instead of {len(task.expected)}"]]
    made = [[read_call(item) for item in turn] for turn in turns]
    made += [[] for _ in range(len(task.expected) - len(made))]
    if task.check == "some_call":
        return [[] if any(call.arguments is not None for call in made[0]) else ["no tool was called"]]
    if task.check == "state" and task.world is not None:
        return check_state(task.world, made, task.expected)
    return [
        match_calls(calls, expected, ordered=task.ordered) for calls, expected in zip(made, task.expected, strict=True)
    ]


def check_state(world: World, made: list[list[Call]], expected: list[list[ExpectedCall]]) -> list[list[str]]:
    """Replay both sides turn by turn, and compare the worlds after each."""
    actual, wanted = world.start(), world.start()
    problems = []
    for calls, reference in zip(made, expected, strict=True):
        for call in calls:
            actual.call(call)
        for each in reference:
            wanted.call(plain_call(each))
        difference = actual.difference(wanted)
        problems.append([difference] if difference else [])
    return problems


def turns_of(response: NeMoGymResponse) -> list[list[NeMoGymResponseFunctionToolCall]]:
    """The tool calls of each turn; a new turn begins where the user speaks.

    Calls that were not carried out count, too, unless the model was cut off.
    """
    # A model that was cut off may have been in the middle of a call, so then only answered calls count.
    answered = {item.call_id for item in response.output if isinstance(item, NeMoGymFunctionCallOutput)}
    cut_off = response.incomplete_details is not None
    turns = []
    for is_user, items in groupby(response.output, key=lambda item: getattr(item, "role", None) == "user"):
        if not is_user:
            calls = [item for item in items if isinstance(item, NeMoGymResponseFunctionToolCall)]
            turns.append([call for call in calls if not cut_off or call.call_id in answered])
    return turns or [[]]


if __name__ == "__main__":
    FunctionCallsServer.run_webserver()
