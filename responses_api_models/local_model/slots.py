"""Who may use an engine now: requests wait for a free slot, in order of arrival.

What an engine has read it need not read again, and reading is most of the work. So a request goes to the engine that
has seen most of its prompt; and when an answer calls a tool while others wait, its slot is kept for a moment, because
the same conversation will be back with the result.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from responses_api_models.local_model.engine import Engine, common_prefix

HOLD_S: Final = 0.05
# Templates add a few tokens to a finished answer, and may write its end differently.
SLACK: Final = 8
# Fewer tokens are not worth a busier engine.
WORTHWHILE: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    prompt: Sequence[int]
    turn: asyncio.Future[Engine]


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    engine: Engine
    tokens: Sequence[int]
    until: float


class Slots:
    """The slots of some engines. Not tied to an event loop."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._waiting: deque[_Waiting] = deque()
        self._held: list[_Held] = []

    async def take(self, prompt: Sequence[int]) -> Engine:
        """Wait for a slot; the engine that has it."""
        self._release_overdue()
        held = next((one for one in self._held if _continues(prompt, one.tokens)), None)
        if held is not None:
            self._held.remove(held)
            return held.engine
        if not self._waiting and any(engine.free for engine in self._engines):
            return self._pick(prompt)
        waiting = _Waiting(prompt, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self._release(waiting.turn.result())  # it came to somebody who no longer wants it
            raise

    def give_back(self, engine: Engine, tokens: Sequence[int], *, returns: bool) -> None:
        """Make room for the next; ``returns``: the conversation is expected back with more."""
        if not returns or not self._waiting:
            self._release(engine)
            return
        self._held.append(_Held(engine, tokens, time.monotonic() + HOLD_S))
        asyncio.get_running_loop().call_later(HOLD_S, self._release_overdue)

    def _release_overdue(self) -> None:
        now = time.monotonic()
        for held in [one for one in self._held if one.until <= now]:
            self._held.remove(held)
            self._release(held.engine)

    def _release(self, engine: Engine) -> None:
        engine.free += 1
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.turn.done():
                waiting.turn.set_result(self._pick(waiting.prompt))
                return

    def _pick(self, prompt: Sequence[int]) -> Engine:
        free = [engine for engine in self._engines if engine.free]
        engine = max(free, key=lambda one: (one.shared(prompt) // WORTHWHILE, one.free))
        engine.free -= 1
        return engine


def _continues(prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    return common_prefix(prompt, tokens) >= len(tokens) - SLACK
