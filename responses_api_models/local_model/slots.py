"""Who may use which slot of an engine now.

A slot remembers the conversation that it was last used for, and what it has read it need not read again; reading is
most of the work. So whenever a slot becomes free it goes to the request that it knows best, and a request whose prompt
is just being read in another slot (the repeats of a task come together) is left for that one as long as there are
others. When an answer calls a tool while others wait, its slot is kept for a moment: the same conversation will be back
with the result.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nemo_gym.metrics.continuity import common_prefix
from responses_api_models.local_model.engine import Engine

HOLD_S: Final = 0.05
# Fewer tokens are not worth a busier engine.
WORTHWHILE: Final = 32
# How many of those who wait are compared, and how often one of them can be passed over.
WINDOW: Final = 64
PATIENCE: Final = 64


@dataclass(eq=False, slots=True)
class Slot:
    """Room for one conversation in an engine, and the tokens of the last one."""

    engine: Engine
    number: int
    tokens: Sequence[int] = ()
    busy: bool = False

    def knows(self, prompt: Sequence[int]) -> int:
        """How much of a prompt need not be read again."""
        return common_prefix(prompt, self.tokens)


@dataclass(eq=False, slots=True)
class _Waiting:
    prompt: Sequence[int]
    turn: asyncio.Future[Slot]
    passed_over: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    slot: Slot
    prompt: int  # how many of the slot's tokens were the prompt
    until: float

    def continued_by(self, prompt: Sequence[int]) -> bool:
        """True for the same conversation with more in it; its answer may have become other tokens."""
        return len(prompt) > self.prompt and self.slot.knows(prompt) >= self.prompt


class Slots:
    """The slots of some engines. Not tied to an event loop."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._slots = [Slot(engine, number) for engine in engines for number in range(engine.slots)]
        self._waiting: deque[_Waiting] = deque()
        self._held: list[_Held] = []

    async def take(self, prompt: Sequence[int]) -> Slot:
        """Wait for a slot."""
        self._release_overdue()
        held = next((one for one in self._held if one.continued_by(prompt)), None)
        if held is not None:
            self._held.remove(held)
            return _occupy(held.slot, prompt)
        free = [slot for slot in self._slots if not slot.busy]
        if free and not self._waiting:
            return _occupy(max(free, key=lambda slot: self._worth(slot, prompt)), prompt)
        waiting = _Waiting(prompt, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self._release(waiting.turn.result())  # it came to somebody who no longer wants it
            raise

    def give_back(self, slot: Slot, tokens: Sequence[int], *, returns: bool) -> None:
        """Make room for the next; ``returns``: the conversation, of these tokens, is expected back with more."""
        prompt, slot.tokens = len(slot.tokens), tokens
        if not returns or not self._waiting:
            self._release(slot)
            return
        self._held.append(_Held(slot, prompt, time.monotonic() + HOLD_S))
        asyncio.get_running_loop().call_later(HOLD_S, self._release_overdue)

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
        """The one of those who wait that gains most from this slot, and would gain least from waiting for another."""
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

    def _worth(self, slot: Slot, prompt: Sequence[int]) -> tuple[int, int]:
        idle = sum(not other.busy for other in self._slots if other.engine is slot.engine)
        return slot.knows(prompt) // WORTHWHILE, idle


def _gain(waiting: _Waiting, slot: Slot, others: Sequence[Slot]) -> int:
    return slot.knows(waiting.prompt) - max((other.knows(waiting.prompt) for other in others), default=0)


def _occupy(slot: Slot, prompt: Sequence[int]) -> Slot:
    slot.busy, slot.tokens = True, prompt
    return slot
