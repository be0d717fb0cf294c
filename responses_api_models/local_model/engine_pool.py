"""All engines of one model server: loaded with the first request, shared by all.

A request waits for a free slot, in order of arrival, and goes to the engine that has read most of its prompt before.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from responses_api_models.local_model.engine import Engine, EnginePlan, start_engine

logger = logging.getLogger(__name__)

REMEMBERED_PROMPTS: Final = 512
# Everything else in an answer repeats the request.
FIELDS: Final = ("content", "tokens", "stop_type", "tokens_evaluated", "timings/cache_n", "completion_probabilities")


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine wrote, token by token; ``scores`` has an entry for most tokens, if they were asked for."""

    text: str
    tokens: list[int]
    cut_off: bool
    cached_tokens: int
    scores: list[dict[str, Any]]


class Places:
    """A number of places, given out in order of arrival. Not tied to an event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a place."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was just given to somebody who no longer wants it
            raise

    def give_back(self) -> None:
        """Make room for the next."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class EnginePool:
    """The engines of one model."""

    def __init__(self, find_model: Callable[[], Awaitable[Path]], plan: Callable[[Path], Sequence[EnginePlan]]) -> None:
        self._find_model = find_model
        self._plan = plan
        self._engines: list[Engine] = []
        self._loading = asyncio.Lock()
        self._places = Places(0)
        self._prompts: OrderedDict[bytes, list[int]] = OrderedDict()

    async def load(self) -> None:
        """Load the model, unless that has happened."""
        async with self._loading:
            if self._engines:
                return
            model = await self._find_model()
            started = time.perf_counter()
            plans = await asyncio.to_thread(self._plan, model)
            engines = await asyncio.to_thread(lambda: [start_engine(model, plan) for plan in plans])
            self._places = Places(sum(plan.slots for plan in plans))
            self._engines = engines
        logger.info("loaded %s in %.1f s: %s", model.name, time.perf_counter() - started, plans)

    def close(self) -> None:
        """End all engines; another request would start them anew."""
        self._engines = []

    async def context(self) -> int:
        """How many tokens a conversation may have."""
        return (await self._any()).context

    async def tokenize(self, text: str) -> list[int]:
        """The tokens of a prompt, which may contain special ones."""
        answer = await (await self._any()).post(
            "/tokenize", {"content": text, "add_special": True, "parse_special": True}
        )
        tokens: list[int] = answer["tokens"]
        return tokens

    async def eos_token(self) -> int | None:
        """The token that ends an answer, if the model has one."""
        tokens = await self.tokenize((await self._any()).eos_token)
        return tokens[-1] if tokens else None

    async def prompt(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any], *, answer_follows: bool = True
    ) -> list[int]:
        """The tokens of a conversation in the model's own template; repeats of a task have the same ones."""
        body = {"messages": messages, "add_generation_prompt": answer_follows, "chat_template_kwargs": options}
        key = orjson.dumps(body)
        known = self._prompts.get(key)
        if known is None:
            templated = await (await self._any()).post("/apply-template", body)
            known = self._prompts[key] = await self.tokenize(templated["prompt"])
            if len(self._prompts) > REMEMBERED_PROMPTS:
                self._prompts.popitem(last=False)
        return known

    async def generate(self, prompt: list[int], options: Mapping[str, Any]) -> Generation:
        """Let the model write."""
        async with self._engine_for(prompt) as engine:
            body = {**options, "prompt": prompt, "return_tokens": True, "response_fields": FIELDS}
            answer = await engine.post("/completion", body)
            engine.recent.append(prompt + answer["tokens"])
        return Generation(
            text=answer["content"],
            tokens=answer["tokens"],
            cut_off=answer["stop_type"] == "limit",
            cached_tokens=answer["timings/cache_n"],
            scores=answer.get("completion_probabilities", []),
        )

    async def _any(self) -> Engine:
        if not self._engines:
            await self.load()
        return self._engines[0]

    @asynccontextmanager
    async def _engine_for(self, prompt: list[int]) -> AsyncIterator[Engine]:
        await self._any()
        places = self._places
        await places.take()
        # A few tokens more or less are not worth a busier engine.
        engine = max((one for one in self._engines if one.free), key=lambda one: (one.shared(prompt) // 32, one.free))
        engine.free -= 1
        try:
            yield engine
        finally:
            engine.free += 1
            places.give_back()
