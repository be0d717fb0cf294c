"""Which request may use which slot of an engine, and when.

A slot remembers the conversation it was last used for and need not read that again; reading is most of the work. So a
slot that becomes free goes to the request it knows best. A request whose prompt is being read in another slot (the
repeats of a task arrive together) is left for that slot as long as others are waiting. When a completion calls a tool
while others wait, its slot is reserved for a moment: the same conversation will be back with the result.

Waiting for a slot is recorded as waiting, and not counted against the limit on an attempt: it is not the model's time.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from nemo_gym.schemas.call_tokens import common_prefix
from nemo_gym.servers.http.deadlines import not_counted
from nemo_gym.steps.recording import note_wait
from responses_api_models.local_model.engine import Engine

HOLD_S: Final = 0.05
# Saving fewer tokens than this does not justify choosing a busier engine.
WORTHWHILE: Final = 32
# How many waiting requests are compared, and how often one of them can be passed over.
WINDOW: Final = 64
PATIENCE: Final = 64


@dataclass(eq=False, slots=True)
class Slot:
    """Room for one conversation in an engine, and the tokens of the last one."""

    engine: Engine
    number: int
    tokens: Sequence[int] = ()
    busy: bool = False
    used: float = 0.0  # when it was last used; 0 if never

    def knows(self, prompt: Sequence[int]) -> int:
        """Count the tokens of a prompt that need not be read again."""
        return common_prefix(prompt, self.tokens)


class RetiredError(Exception):
    """The engines are being replaced; use the new ones."""


@dataclass(eq=False, slots=True)
class _Waiting:
    prompt: Sequence[int]
    turn: asyncio.Future[Slot]
    passed_over: int = 0
    movable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    slot: Slot
    prompt: int  # how many of the slot's tokens were the prompt
    until: float

    def continued_by(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt continues the same conversation; its completion may have become other tokens."""
        return len(prompt) > self.prompt and self.slot.knows(prompt) >= self.prompt


class Slots:
    """The slots of some engines. Not tied to an event loop."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._slots = [Slot(engine, number) for engine in engines for number in range(engine.slots)]
        self._waiting: deque[_Waiting] = deque()
        self._held: list[_Held] = []

    async def take(self, prompt: Sequence[int], *, movable: bool = False) -> Slot:
        """Wait for a slot; a ``movable`` request gets a ``RetiredError`` if the engines are replaced meanwhile."""
        self._release_overdue()
        held = next((one for one in self._held if one.continued_by(prompt)), None)
        if held is not None:
            self._held.remove(held)
            return _occupy(held.slot, prompt)
        free = [slot for slot in self._slots if not slot.busy]
        if free and not self._waiting:
            return _occupy(max(free, key=lambda slot: self._worth(slot, prompt)), prompt)
        waiting = _Waiting(prompt, asyncio.get_running_loop().create_future(), movable=movable)
        self._waiting.append(waiting)
        since = time.perf_counter()
        try:
            with not_counted():
                return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled() and waiting.turn.exception() is None:
                self._release(waiting.turn.result())  # the slot was granted to a request that was just cancelled
            raise
        finally:
            note_wait(since, "slot")

    def give_back(self, slot: Slot, tokens: Sequence[int], *, returns: bool) -> None:
        """Free a slot. With ``returns`` the conversation, which has these tokens, is expected back."""
        prompt, slot.tokens, slot.used = len(slot.tokens), tokens, time.monotonic()
        if not returns or not self._waiting:
            self._release(slot)
            return
        self._held.append(_Held(slot, prompt, time.monotonic() + HOLD_S))
        asyncio.get_running_loop().call_later(HOLD_S, self._release_overdue)

    def retire(self) -> None:
        """Send waiting requests to other engines. Turns that have begun need these and may still ask for slots."""
        for waiting in self._waiting:
            if waiting.movable and not waiting.turn.done():
                waiting.turn.set_exception(RetiredError())
        self._waiting = deque(one for one in self._waiting if not one.turn.done())

    def _release_overdue(self) -> None:
        now = time.monotonic()
        for held in [one for one in self._held if one.until <= now]:
            self._held.remove(held)
            self._release(held.slot)

    def _release(self, slot: Slot) -> None:
        slot.busy = False
        waiting = self._next(slot)
        if waiting is not None:
            self._waiting.remove(waiting)
            waiting.turn.set_result(_occupy(slot, waiting.prompt))

    def _next(self, slot: Slot) -> _Waiting | None:
        """Choose the waiting request that gains most from this slot, compared with waiting for another one."""
        self._waiting = deque(one for one in self._waiting if not one.turn.done())
        if not self._waiting:
            return None
        first = self._waiting[0]
        others = [one for one in self._slots if one.busy]
        chosen = (
            first if first.passed_over >= PATIENCE else max(self._first(), key=lambda one: _gain(one, slot, others))
        )
        for waiting in itertools.takewhile(lambda one: one is not chosen, self._first()):
            waiting.passed_over += 1
        return chosen

    def _first(self) -> Iterator[_Waiting]:
        return itertools.islice(self._waiting, WINDOW)

    def _worth(self, slot: Slot, prompt: Sequence[int]) -> tuple[int, int, float]:
        idle = sum(not other.busy for other in self._slots if other.engine is slot.engine)
        # Between equals, the slot that was not used for the longest time: its conversation is the likeliest to be over.
        return slot.knows(prompt) // WORTHWHILE, idle, -slot.used


class GrammarTurns:
    """Keeps two engines of this process from starting grammars at the same time.

    The engine's library caches the vocabulary of one engine for its grammars, for the whole process and without a lock:
    two engines that start grammars together may free it twice. Requests of one engine share a turn, because it starts
    them one after the other.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._active = 0
        self._waiting: deque[tuple[Engine, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, engine: Engine) -> AsyncIterator[None]:
        """Hold a turn of this engine."""
        await self._take(engine)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, engine: Engine) -> None:
        if not self._active or (self._engine is engine and not self._waiting):
            self._engine, self._active = engine, self._active + 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((engine, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_back()  # the turn was granted to a request that was just cancelled
            raise

    def _give_back(self) -> None:
        self._active -= 1
        waiting = [one for one in self._waiting if not one[1].done()]
        self._waiting.clear()
        if self._active or not waiting:
            self._waiting.extend(waiting)
            return
        self._engine = waiting[0][0]
        for engine, turn in waiting:
            if engine is self._engine:
                self._active += 1
                turn.set_result(None)
            else:
                self._waiting.append((engine, turn))


def _gain(waiting: _Waiting, slot: Slot, others: Sequence[Slot]) -> int:
    return slot.knows(waiting.prompt) - max((other.knows(waiting.prompt) for other in others), default=0)


def _occupy(slot: Slot, prompt: Sequence[int]) -> Slot:
    slot.busy, slot.tokens = True, prompt
    return slot
