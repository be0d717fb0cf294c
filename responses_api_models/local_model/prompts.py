"""The prompt of a request in tokens: rendered by the model's template, with the true tokens of earlier turns in place.

A template that explains tools in the call format that is used here also describes the tools. For all other models,
tools are described in the conversation, with examples.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from nemo_gym.conversion.completion_tokens import PastTurn, Prompt, end_of_turn, says, true_prompt, turns_within
from responses_api_models.local_model.engine_pool import EnginePool
from responses_api_models.local_model.prompting import plain_messages, shows_calls, text_of
from responses_api_models.local_model.request import ChatRequest
from responses_api_models.local_model.tool_calls import Tool

logger = logging.getLogger(__name__)

ENDLESS: Final = "the template ends a turn with plain text"


class Prompts:
    """Makes the prompts of one model."""

    def __init__(self, pool: EnginePool, *, carries_tokens: bool) -> None:
        self._pool = pool
        self._carries_tokens = carries_tokens

    async def of(self, request: ChatRequest) -> list[int]:
        """Render a request. Earlier completions that carry tokens keep them, as long as their text is unchanged."""
        messages = request.messages
        carrying = [number for number, message in enumerate(messages) if _carries(message)]
        if not self._carries_tokens or not carrying:
            return await self._render(request, len(messages), examples=not shows_calls(messages))
        end = await self._pool.end_of_turn()
        # A conversation that began with examples keeps them, and one that began without does not get any.
        examples = not shows_calls(messages[: carrying[0]])
        prompt = await self._continued(request, carrying, end, examples=examples)
        if prompt.reason and not examples and _completions(messages[: carrying[0]]):
            # The calls before the first tokens may be the model's own.
            prompt = min(prompt, await self._continued(request, carrying, end, examples=True), key=_is_anew)
        if prompt.reason:
            logger.warning("earlier turns are tokenized anew: %s", prompt.reason)
        return prompt.ids

    async def _continued(
        self, request: ChatRequest, carrying: Sequence[int], end: int | None, *, examples: bool
    ) -> Prompt:
        whole = await self._render(request, len(request.messages), examples=examples)
        turns = await asyncio.gather(*(self._turn(request, number, examples=examples) for number in carrying))
        if end is None or end_of_turn(turns[-1].through, [end]) is None:
            return Prompt(whole, 0, ENDLESS)
        earlier: list[PastTurn] = []
        if list(turns[0].prompt) != turns[0].before:
            earlier = await self._earlier(request, carrying[0], turns[0].prompt, end, examples=examples)
        return true_prompt([*earlier, *turns], whole, end)

    async def _turn(self, request: ChatRequest, number: int, *, examples: bool) -> PastTurn:
        message = request.messages[number]
        generation = message["generation_token_ids"]
        before, through = await self._around(request, number, examples=examples)
        edited = not says(await self._pool.text(generation), message, stops=request.stops)
        return PastTurn(message["prompt_token_ids"], generation, before, through, edited=edited)

    async def _earlier(
        self, request: ChatRequest, count: int, prompt: Sequence[int], end: int, *, examples: bool
    ) -> list[PastTurn]:
        """Find the completions that carry no tokens in the prompt of the first that does."""
        completions = _completions(request.messages[:count])
        rendered = await asyncio.gather(*(self._around(request, number, examples=examples) for number in completions))
        return [
            replace(
                turn,
                edited=not says(await self._pool.text(turn.generation), request.messages[number], stops=request.stops),
            )
            for number, turn in zip(completions, turns_within(prompt, rendered, end), strict=False)
        ]

    async def _around(self, request: ChatRequest, number: int, *, examples: bool) -> tuple[list[int], list[int]]:
        """What the template makes of a conversation before and through a completion."""
        before = await self._render(request, number, examples=examples)
        return before, await self._render(request, number + 1, examples=examples, completion_follows=False)

    async def _render(
        self, request: ChatRequest, count: int, *, examples: bool, completion_follows: bool = True
    ) -> list[int]:
        # Tools that may not be called this time are still described, because the earlier tokens contain them.
        tools = request.all_tools if self._carries_tokens else request.tools
        messages, options = request.messages[:count], request.template_options
        if tools and await self._pool.explains_tools():
            offered = [_offered(tool) for tool in tools]
            given = [_as_sent(message) for message in messages]
            return await self._pool.prompt(given, options, completion_follows=completion_follows, tools=offered)
        plain = plain_messages(messages, tools, examples=examples)
        return await self._pool.prompt(plain, options, completion_follows=completion_follows)


def _is_anew(prompt: Prompt) -> bool:
    return bool(prompt.reason)


def _completions(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [number for number, message in enumerate(messages) if message["role"] == "assistant"]


def _carries(message: Mapping[str, Any]) -> bool:
    return message.get("generation_token_ids") is not None


def _offered(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _as_sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for a template that knows tools: text, calls with arguments as objects, and results."""
    sent: dict[str, Any] = {"role": message["role"], "content": text_of(message)}
    if message["role"] == "developer":
        sent["role"] = "system"
    if message.get("tool_calls"):
        sent["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if message["role"] == "tool":
        sent["tool_call_id"] = message.get("tool_call_id") or ""
    return sent


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function["name"], "arguments": _json(function["arguments"])},
    }


def _json(arguments: str) -> str:
    """Arguments that the engine can read; it refuses text that is not JSON."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return json.dumps({"text": arguments})
    return arguments
