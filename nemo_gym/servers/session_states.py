"""Stores the state of each rollout for an environment, and drops states that were abandoned.

A rollout that fails never reaches ``/verify``, so the environment does not learn that its state can be released. States
that have not been used for a long time are therefore dropped, and there are never more than ``max_states``. States are
kept in the order of their last use, so enforcing both limits costs nothing until they are reached.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

# Longer than any model takes for one step; a rollout that is still running asks for its state again before that.
MAX_IDLE_S: Final = 4 * 60 * 60.0
MAX_STATES: Final = 100_000

State = TypeVar("State")


class SessionStates(MutableMapping[str, State], Generic[State]):
    """A dictionary from session ids to states that forgets what was abandoned.

    ``on_drop`` is called with each state that is dropped without having been removed by its owner.
    """

    def __init__(
        self,
        *,
        max_idle_s: float = MAX_IDLE_S,
        max_states: int = MAX_STATES,
        on_drop: Callable[[State], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states: OrderedDict[str, tuple[float, State]] = OrderedDict()
        self._max_idle_s = max_idle_s
        self._max_states = max_states
        self._on_drop = on_drop
        self._clock = clock
        self._warned = False

    def __setitem__(self, session: str, state: State) -> None:
        now = self._clock()
        self._states[session] = (now, state)
        self._states.move_to_end(session)
        self._drop_idle(now)
        if len(self._states) > self._max_states:
            self._drop_oldest()
            if not self._warned:
                self._warned = True
                logger.warning("more than %d sessions are open; the longest unused is dropped", self._max_states)

    def __getitem__(self, session: str) -> State:
        _, state = self._states[session]
        self._states[session] = (self._clock(), state)
        self._states.move_to_end(session)
        return state

    def __delitem__(self, session: str) -> None:
        del self._states[session]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._states))

    def __len__(self) -> int:
        return len(self._states)

    def _drop_idle(self, now: float) -> None:
        # The first is the one that was used least recently.
        while self._states and now - next(iter(self._states.values()))[0] > self._max_idle_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, state) = self._states.popitem(last=False)
        if self._on_drop is not None:
            self._on_drop(state)
