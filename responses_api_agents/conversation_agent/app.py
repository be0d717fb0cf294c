"""The conversation agent: work on a request with tools as the simple agent does, then ask the environment what the
user says next, and go on until the environment ends the conversation.

Everything the model wrote goes back to it unchanged, followed by the messages of the user, so the token ids of one turn
are a prefix of those of the next.
"""

from typing import Final, Literal, TypeAlias

from fastapi import Request, Response
from pydantic import BaseModel, Field

from nemo_gym.base_responses_api_agent import (
    Body,
    Json,
    ResponseFields,
    ResponsesRequest,
    TaskRow,
    Trajectory,
    fields_of,
)
from nemo_gym.io.json import encode_json
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.middleware.faults import AttachUsage
from responses_api_agents.simple_agent.app import (
    Limit,
    SimpleAgent,
    SimpleAgentConfig,
)

StoppedBy: TypeAlias = Literal["user", "turns", "steps", "tokens", "model"]
_STOPPED_BY: Final[dict[Limit, StoppedBy]] = {
    "max_generated_tokens": "tokens",
    "max_steps": "steps",
    "no_answer": "model",
}


class ConversationAgentConfig(SimpleAgentConfig):
    """When to stop: model calls in one turn, turns of the conversation, tokens that the model writes in all of them."""

    max_steps: int | None = Field(default=10, ge=1)
    max_turns: int = Field(default=20, ge=1)


class UserTurn(BaseModel):
    """The next messages of the user, and the tools that come with them; ``done`` ends the conversation."""

    messages: list[Json] = Field(default_factory=list)
    tools: list[Json] = Field(default_factory=list)
    done: bool


class ConversationAgent(SimpleAgent):
    """A tool loop inside a conversation."""

    config: ConversationAgentConfig

    async def run(self, request: Request, body: TaskRow = Body()) -> Response:
        """Seed the session, talk until the conversation is over, verify."""
        row = fields_of(body)
        seeded = await self.post_resources("/seed_session", row, request.cookies)
        await raise_for_status(seeded)
        trajectory = Trajectory.of(row["responses_create_params"], seeded.cookies)
        with AttachUsage(lambda: trajectory.usage):
            turns, stopped_by = 0, None
            while stopped_by is None:
                turns += 1
                stopped_by = await self.take_turn(trajectory) or await self.ask_user(trajectory, row, turns)
        response = conversation_so_far(trajectory, turns, stopped_by)
        return await self.verify(row, encode_json(response), trajectory.tool_cookies)

    async def responses(self, request: Request, response: Response, body: ResponsesRequest = Body()) -> ResponseFields:
        """One turn: without a row there is no user to talk with."""
        trajectory = Trajectory.of(body, request.cookies)
        with AttachUsage(lambda: trajectory.usage):
            stopped_by = await self.take_turn(trajectory)
        trajectory.set_cookies(response)
        return conversation_so_far(trajectory, 1, stopped_by)

    async def take_turn(self, trajectory: Trajectory) -> StoppedBy | None:
        """Let the model work until it has a message for the user; the reason if that ended the conversation."""
        limit = await self.extend(trajectory)
        if limit:
            return _STOPPED_BY[limit]
        if self.config.max_generated_tokens and trajectory.generated_tokens >= self.config.max_generated_tokens:
            return "tokens"
        return "model" if trajectory.completion.get("incomplete_details") else None

    async def ask_user(self, trajectory: Trajectory, row: Json, turns: int) -> StoppedBy | None:
        """Add the next messages of the user; the reason if the conversation is over."""
        rollout = {**row, "response": conversation_so_far(trajectory, turns, None)}
        reply = await self.post_resources("/next_turn", rollout, trajectory.tool_cookies)
        await raise_for_status(reply)
        trajectory.tool_cookies = reply.cookies
        turn = UserTurn.model_validate(await get_response_json(reply))
        if turn.done:
            return "user"
        # After the request: a conversation that the user ends in its last turn did not run out of turns.
        if turns >= self.config.max_turns:
            return "turns"
        trajectory.output += turn.messages
        if turn.tools:
            trajectory.params["tools"] = [*trajectory.params.get("tools", []), *turn.tools]
        return None


def conversation_so_far(trajectory: Trajectory, turns: int, stopped_by: StoppedBy | None) -> ResponseFields:
    """All turns as one response. How the conversation ended is in its metadata."""
    response = trajectory.response()
    response["metadata"] = {**(response.get("metadata") or {}), "turns": str(turns)}
    if stopped_by:
        response["metadata"]["stopped_by"] = stopped_by
    return response


if __name__ == "__main__":
    ConversationAgent.run_webserver()
