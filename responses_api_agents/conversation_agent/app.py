"""The conversation agent: work on a request with tools as the simple agent does, then ask the environment what the
user says next, and go on until it says that the conversation is over.

Everything the model wrote goes back to it unchanged, followed by what the user said, so the token ids of one turn are a
prefix of those of the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson
from fastapi import Request, Response
from pydantic import BaseModel, Field

from nemo_gym.base_responses_api_agent import Body
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.servers.faults import AttachUsage
from nemo_gym.servers.verdicts import completed
from responses_api_agents.simple_agent.app import (
    SimpleAgent,
    SimpleAgentConfig,
    add_usage,
    is_answer,
    with_response,
)

Json: TypeAlias = dict[str, Any]
Cookies: TypeAlias = Mapping[str, Any] | None
StoppedBy: TypeAlias = Literal["user", "turns", "steps", "tokens", "model"]


class ConversationAgentConfig(SimpleAgentConfig):
    """When to stop: model calls in one turn, turns of the conversation, tokens that the model writes in all of them."""

    max_steps: int | None = Field(default=10, ge=1)
    max_turns: int = Field(default=20, ge=1)


class UserTurn(BaseModel):
    """What the user says next, and the tools that come with it; ``done`` ends the conversation."""

    messages: list[Json] = Field(default_factory=list)
    tools: list[Json] = Field(default_factory=list)
    done: bool


@dataclass(slots=True)
class Conversation:
    """A rollout so far: what to ask next, what was said, and what it cost."""

    params: Json
    question: list[Json]
    tool_cookies: Cookies
    model_cookies: Cookies = None
    trajectory: list[Json] = field(default_factory=list)
    last: Json = field(default_factory=dict)
    usage: Json | None = None
    turns: int = 0
    stopped_by: StoppedBy | None = None

    @property
    def is_over(self) -> bool:
        """Whether something has ended it."""
        return self.stopped_by is not None

    def request(self) -> Json:
        """The next request to the model."""
        return {**self.params, "input": self.question + self.trajectory}

    def response(self) -> bytes:
        """Everything so far as one response. How the conversation ended is in its metadata."""
        metadata = {**(self.last.get("metadata") or {}), "turns": str(self.turns)}
        if self.stopped_by:
            metadata["stopped_by"] = self.stopped_by
        return orjson.dumps({**self.last, "output": self.trajectory, "usage": self.usage, "metadata": metadata})


class ConversationAgent(SimpleAgent):
    """A tool loop inside a conversation."""

    config: ConversationAgentConfig

    async def _run(self, row: bytes, params: Json, cookies: Cookies) -> bytes:
        """Seed, talk until the environment says it is over, verify."""
        seeded = await self._post_resources("/seed_session", row, cookies)
        await raise_for_status(seeded)
        conversation = new_conversation(params, seeded.cookies)
        with AttachUsage(lambda: conversation.usage):
            while not conversation.is_over:
                await self._take_turn(conversation)
                if not conversation.is_over:
                    conversation.stopped_by = await self._ask_user(conversation, row)
            response = conversation.response()
            verified = await self._post_resources("/verify", with_response(row, response), conversation.tool_cookies)
            await raise_for_status(verified)
        return completed(await verified.read(), params, response)

    async def responses(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """One turn: without a row there is no user to talk with."""
        conversation = new_conversation(body.model_dump(mode="json", exclude_unset=True), request.cookies)
        await self._take_turn(conversation)
        for name, cookie in {**(conversation.tool_cookies or {}), **(conversation.model_cookies or {})}.items():
            response.set_cookie(name, getattr(cookie, "value", cookie))
        return NeMoGymResponse.model_validate_json(conversation.response())

    async def _take_turn(self, conversation: Conversation) -> None:
        """Alternate between model and tools until the model says something to the user."""
        conversation.turns += 1
        step = 0
        while not conversation.is_over:
            step += 1
            conversation.last, conversation.model_cookies = await self._ask_model(
                conversation.request(), conversation.model_cookies
            )
            output = conversation.last["output"]
            conversation.trajectory += output
            conversation.usage = add_usage(conversation.usage, conversation.last.get("usage"))
            calls = [item for item in output if item.get("type") == "function_call"]
            if conversation.last.get("incomplete_details"):
                conversation.stopped_by = "model"
                return
            if not calls and any(map(is_answer, output)):
                return
            results, conversation.tool_cookies = await self._call_tools(calls, conversation.tool_cookies)
            conversation.trajectory += results
            if self.config.max_steps and step >= self.config.max_steps:
                conversation.stopped_by = "steps"
            elif self._spent(conversation):
                conversation.stopped_by = "tokens"

    async def _ask_user(self, conversation: Conversation, row: bytes) -> StoppedBy | None:
        """Let the user speak; the reason to stop if the conversation is over."""
        if self._spent(conversation):
            return "tokens"
        reply = await self._post_resources(
            "/next_turn", with_response(row, conversation.response()), conversation.tool_cookies
        )
        await raise_for_status(reply)
        conversation.tool_cookies = reply.cookies
        turn = UserTurn.model_validate(await get_response_json(reply))
        if turn.done:
            return "user"
        # After the user was asked: a conversation that the user ends in its last turn did not run out of turns.
        if conversation.turns >= self.config.max_turns:
            return "turns"
        conversation.trajectory += turn.messages
        if turn.tools:
            conversation.params = {**conversation.params, "tools": [*conversation.params.get("tools", []), *turn.tools]}
        return None

    def _spent(self, conversation: Conversation) -> bool:
        limit = self.config.max_generated_tokens
        return limit is not None and (conversation.usage or {}).get("output_tokens", 0) >= limit


def new_conversation(params: Json, cookies: Cookies) -> Conversation:
    """A conversation in which nobody has answered yet."""
    question = params.get("input", [])
    if isinstance(question, str):
        question = [{"role": "user", "content": question}]
    return Conversation(params, question, cookies)


if __name__ == "__main__":
    ConversationAgent.run_webserver()
