"""The engines of one model server: loaded by the first request, shared by all that follow."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from responses_api_models.local_model.engine import Engine, EnginePlan, start_engine
from responses_api_models.local_model.slots import GrammarTurns, Slots

logger = logging.getLogger(__name__)

# One for the whole process, like the cache inside the engine's library that it guards.
GRAMMAR_TURNS: Final = GrammarTurns()
REMEMBERED_PROMPTS: Final = 512
# Everything else in an answer repeats the request.
FIELDS: Final = ("content", "tokens", "stop_type", "tokens_evaluated", "timings/cache_n", "completion_probabilities")


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine wrote, token by token; ``scores`` has an entry for most tokens, if they were asked for."""

    text: str
    tokens: list[int]
    cut_off: bool  # by the limit
    ended: bool  # by the model itself, rather than by the limit or a stop word
    cached_tokens: int
    scores: list[dict[str, Any]]


class EnginePool:
    """The engines of one model."""

    def __init__(self, find_model: Callable[[], Awaitable[Path]], plan: Callable[[Path], Sequence[EnginePlan]]) -> None:
        self._find_model = find_model
        self._plan = plan
        self._engines: list[Engine] = []
        self._loading = asyncio.Lock()
        self._slots = Slots([])
        self._prompts: OrderedDict[bytes, list[int]] = OrderedDict()
        self._end: list[int] | None = None

    async def load(self) -> None:
        """Load the model, unless it is loaded."""
        async with self._loading:
            if self._engines:
                return
            model = await self._find_model()
            started = time.perf_counter()
            plans = await asyncio.to_thread(self._plan, model)
            engines = await asyncio.to_thread(lambda: [start_engine(model, plan) for plan in plans])
            self._engines, self._slots = engines, Slots(engines)
        logger.info("loaded %s in %.1f s: %s", model.name, time.perf_counter() - started, plans)

    async def close(self) -> None:
        """End all engines. Another request would start them again."""
        ended, self._engines = self._engines, []
        for engine in ended:
            await engine.close()

    async def context(self) -> int:
        """Return how many tokens a conversation may have."""
        return (await self._any()).context

    async def tokenize(self, text: str) -> list[int]:
        """Tokenize a prompt, which may contain special tokens."""
        answer = await (await self._any()).post(
            "/tokenize", {"content": text, "add_special": True, "parse_special": True}
        )
        tokens: list[int] = answer["tokens"]
        return tokens

    async def eos_token(self) -> int | None:
        """Return the token that ends an answer, if the model has one."""
        if self._end is None:
            self._end = await self.tokenize((await self._any()).eos_token)
        return self._end[-1] if self._end else None

    async def prompt(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any], *, answer_follows: bool = True
    ) -> list[int]:
        """Tokenize a conversation in the model's own template; repeats of a task are remembered."""
        body = {"messages": messages, "add_generation_prompt": answer_follows, "chat_template_kwargs": options}
        key = orjson.dumps(body)
        known = self._prompts.get(key)
        if known is None:
            templated = await (await self._any()).post("/apply-template", body)
            known = self._prompts[key] = await self.tokenize(templated["prompt"])
            if len(self._prompts) > REMEMBERED_PROMPTS:
                self._prompts.popitem(last=False)
        return known

    async def generate(self, prompt: list[int], options: Mapping[str, Any], *, returns_after: str = "") -> Generation:
        """Generate. After text that ends in ``returns_after`` the conversation is expected to continue."""
        await self._any()
        slots, tokens, returns = self._slots, prompt, False
        slot = await slots.take(prompt)
        try:
            body = {**options, "prompt": prompt, "return_tokens": True, "response_fields": FIELDS}
            async with GRAMMAR_TURNS.of(slot.engine) if "grammar" in options else contextlib.nullcontext():
                answer = await slot.engine.post("/completion", {**body, "id_slot": slot.number})
            tokens = prompt + answer["tokens"]
            returns = bool(returns_after) and answer["content"].endswith(returns_after)
        finally:
            slots.give_back(slot, tokens, returns=returns)
        return Generation(
            text=answer["content"],
            tokens=answer["tokens"],
            cut_off=answer["stop_type"] == "limit",
            ended=answer["stop_type"] == "eos",
            cached_tokens=answer["timings/cache_n"],
            scores=answer.get("completion_probabilities", []),
        )

    async def _any(self) -> Engine:
        if not self._engines:
            await self.load()
        return self._engines[0]
