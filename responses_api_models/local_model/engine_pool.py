"""The engines of one model server: loaded by the first request, shared by all that follow.

The engines of one version of the weights are a fleet. Weights are swapped by loading a second fleet beside the first:
turns that have begun finish in their fleet, those that wait for a slot move to the new one, and the old fleet ends with
its last turn.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from nemo_gym.errors import ConfigError
from responses_api_models.local_model.engine import Engine, EnginePlan, start_engine
from responses_api_models.local_model.slots import GrammarTurns, Slots
from responses_api_models.local_model.tool_calls import explains_tools

logger = logging.getLogger(__name__)

# One for the whole process, like the cache inside the engine's library that it guards.
GRAMMAR_TURNS: Final = GrammarTurns()
REMEMBERED_PROMPTS: Final = 512
# Two models that split this into the same tokens are assumed to have the same tokenizer.
PROBE: Final = "The 1,234 quick foxes' naïve café: <|im_start|>user\n\treturn {'x': [1.5e-3, null]} 你好 🦊"
MARK: Final = "🦊"
# Everything else in a completion repeats the request.
FIELDS: Final = ("content", "tokens", "stop_type", "tokens_evaluated", "timings/cache_n", "completion_probabilities")


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine wrote, token by token; ``scores`` has an entry for most tokens, if they were requested."""

    text: str
    tokens: list[int]
    cut_off: bool  # by the limit
    ended: bool  # by the model itself, rather than by the limit or a stop word
    cached_tokens: int
    scores: list[dict[str, Any]]


@dataclass(eq=False)
class Fleet:
    """The engines of one version of the weights, and how many turns are in progress with them."""

    engines: list[Engine]
    version: int
    slots: Slots = field(init=False)
    turns: int = 0
    retired: bool = False

    def __post_init__(self) -> None:
        self.slots = Slots(self.engines)

    async def generate(
        self, prompt: list[int], options: Mapping[str, Any], *, returns_after: str = "", movable: bool = False
    ) -> Generation:
        """Generate. After text that ends in ``returns_after`` the conversation is expected to continue."""
        tokens, returns = prompt, False
        slot = await self.slots.take(prompt, movable=movable)
        try:
            body = {**options, "prompt": prompt, "return_tokens": True, "response_fields": FIELDS}
            async with GRAMMAR_TURNS.of(slot.engine) if "grammar" in options else contextlib.nullcontext():
                completion = await slot.engine.post("/completion", {**body, "id_slot": slot.number})
            tokens = prompt + completion["tokens"]
            returns = bool(returns_after) and completion["content"].endswith(returns_after)
        finally:
            self.slots.give_back(slot, tokens, returns=returns)
        return Generation(
            text=completion["content"],
            tokens=completion["tokens"],
            cut_off=completion["stop_type"] == "limit",
            ended=completion["stop_type"] == "eos",
            cached_tokens=completion["timings/cache_n"],
            scores=completion.get("completion_probabilities", []),
        )

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Tokenize a text, which may contain special tokens."""
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        tokens: list[int] = (await self.engines[0].post("/tokenize", body))["tokens"]
        return tokens

    async def close(self) -> None:
        """End all engines."""
        ended, self.engines = self.engines, []
        for engine in ended:
            await engine.close()


async def _vocabulary(fleet: Fleet) -> tuple[str, list[int]]:
    return fleet.engines[0].eos_token, await fleet.tokenize(PROBE)


class EnginePool:
    """The engines of one model."""

    def __init__(self, find_model: Callable[[], Awaitable[Path]], plan: Callable[[Path], Sequence[EnginePlan]]) -> None:
        self._find_model = find_model
        self._plan = plan
        self._fleet: Fleet | None = None
        self._old: list[Fleet] = []
        self._loading = asyncio.Lock()
        self._prompts: OrderedDict[bytes, list[int]] = OrderedDict()
        self._end: list[int] | None = None
        self._turn_end: list[int] | None = None

    async def load(self) -> None:
        """Load the model, unless it is loaded."""
        async with self._loading:
            if self._fleet is None:
                self._fleet = Fleet(await self._start(await self._find_model()), version=0)

    async def swap(self, model: Path, *, version: int) -> None:
        """Load other weights of the same model. From then on, turns begin with these."""
        async with self._loading:
            old, new = self._fleet, Fleet(await self._start(model), version)
            if old is not None and await _vocabulary(old) != await _vocabulary(new):
                await new.close()
                raise ConfigError(
                    f"{model} has another tokenizer than the model that is running",
                    hint="start a server of its own for another model",
                )
            self._fleet = new
            self._prompts.clear()
            self._turn_end = None
        if old is not None:
            old.retired = True
            old.slots.retire()
            self._old.append(old)
            await self._close_if_unused(old)

    async def close(self) -> None:
        """End all engines. Another request would start them again."""
        ended, self._fleet, self._old = [*self._old, *([self._fleet] if self._fleet else [])], None, []
        for fleet in ended:
            await fleet.close()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Fleet]:
        """Provide the newest engines, which keep running at least until this turn has ended."""
        fleet = await self._current()
        fleet.turns += 1
        try:
            yield fleet
        finally:
            fleet.turns -= 1
            await self._close_if_unused(fleet)

    async def context(self) -> int:
        """Return how many tokens a conversation may have."""
        return (await self._current()).engines[0].context

    async def tokenize(self, text: str) -> list[int]:
        """Tokenize a prompt, which may contain special tokens."""
        async with self.turn() as fleet:
            return await fleet.tokenize(text)

    async def eos_token(self) -> int | None:
        """Return the token that ends a completion, if the model has one."""
        if self._end is None:
            async with self.turn() as fleet:
                self._end = await fleet.tokenize(fleet.engines[0].eos_token)
        return self._end[-1] if self._end else None

    async def end_of_turn(self) -> int | None:
        """Return the token with which the template ends a completion, which may differ; None if it is plain text."""
        if self._turn_end is None:
            conversation = [{"role": "user", "content": "."}, {"role": "assistant", "content": f"A fox: {MARK}"}]
            body = {"messages": [*conversation, conversation[0]], "add_generation_prompt": False}
            async with self.turn() as fleet:
                templated = await fleet.engines[0].post("/apply-template", body)
                _, found, after = templated["prompt"].rpartition(MARK)
                special = await fleet.tokenize(after, add_special=False)
                plain = await fleet.tokenize(after, add_special=False, parse_special=False)
            self._turn_end = special[:1] if found and special[:1] != plain[:1] else []
        return self._turn_end[0] if self._turn_end else None

    async def explains_tools(self) -> bool:
        """Whether the model's template has a place for tools, with calls as they are read here."""
        return explains_tools((await self._current()).engines[0].template)

    async def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        async with self.turn() as fleet:
            text: str = (await fleet.engines[0].post("/detokenize", {"tokens": list(tokens)}))["content"]
        return text

    async def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        *,
        completion_follows: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Tokenize a conversation in the model's own template; repeats of a task are remembered."""
        body = {"messages": messages, "add_generation_prompt": completion_follows, "chat_template_kwargs": options}
        if tools:
            body["tools"] = tools
        key = orjson.dumps(body)
        known = self._prompts.get(key)
        if known is None:
            async with self.turn() as fleet:
                templated = await fleet.engines[0].post("/apply-template", body)
                known = self._prompts[key] = await fleet.tokenize(templated["prompt"])
            if len(self._prompts) > REMEMBERED_PROMPTS:
                self._prompts.popitem(last=False)
        return known

    async def generate(self, prompt: list[int], options: Mapping[str, Any], *, returns_after: str = "") -> Generation:
        """Generate with the newest weights."""
        async with self.turn() as fleet:
            return await fleet.generate(prompt, options, returns_after=returns_after)

    async def _start(self, model: Path) -> list[Engine]:
        started = time.perf_counter()
        plans = await asyncio.to_thread(self._plan, model)
        engines = await asyncio.to_thread(lambda: [start_engine(model, plan) for plan in plans])
        logger.info("loaded %s in %.1f s: %s", model.name, time.perf_counter() - started, plans)
        return engines

    async def _close_if_unused(self, fleet: Fleet) -> None:
        if fleet.retired and not fleet.turns and fleet in self._old:
            self._old.remove(fleet)
            await fleet.close()

    async def _current(self) -> Fleet:
        if self._fleet is None:
            await self.load()
        assert self._fleet is not None
        return self._fleet
