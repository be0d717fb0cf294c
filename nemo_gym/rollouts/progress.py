"""Shows how far a run is: a bar on a terminal, otherwise a line every half a minute.

Collecting rollouts:  42%|████▏     | 420/1000 [01:10<01:37,  5.98it/s, reward=0.612, failed=3, running=64/64]
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol, TextIO

from tqdm import tqdm

from nemo_gym.rollouts.milestones import Milestones
from nemo_gym.rollouts.outcome import Failed, Outcome
from nemo_gym.rollouts.store.agenda import Agenda
from nemo_gym.rollouts.tally import Tally

LABEL = "Collecting rollouts"
LINE_INTERVAL_S = 30.0
SHOW_INTERVAL_S = 0.1  # rollouts may end a thousand times a second


class Load(Protocol):
    """How busy the run is."""

    @property
    def in_flight(self) -> int:
        """Rollouts that are running."""
        ...

    @property
    def allowed(self) -> int:
        """Rollouts that may run."""
        ...


class Progress:
    """Follows a run on a stream."""

    def __init__(self, agenda: Agenda, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = agenda.done + len(agenda)
        self._done = self._before = agenda.done
        self._milestones = Milestones(total=self._total, done=agenda.done, left=agenda.agents)
        self._stream = stream
        self._clock = clock
        self._started = self._told = clock()
        self._next_show = 0.0
        self._ended: list[str] = []  # agents of rollouts that have not been counted yet
        self._state: tuple[Tally, Load] | None = None
        self._bar: tqdm[NoReturn] | None = None
        if stream.isatty():
            self._bar = tqdm(total=self._total, initial=agenda.done, desc=LABEL, file=stream, dynamic_ncols=True)

    def advance(self, outcomes: Iterable[Outcome], tally: Tally, load: Load) -> None:
        """Show what has ended. An attempt that will be repeated is no end."""
        self._ended += [o.planned.agent for o in outcomes if not (isinstance(o, Failed) and o.will_retry)]
        self._state = tally, load
        if self._clock() >= self._next_show:
            self._show()

    def tick(self, tally: Tally, load: Load) -> None:
        """Show that time passes, also when nothing ends."""
        self._state = tally, load
        self._show()
        if self._bar is not None:
            self._bar.refresh()
        elif self._clock() - self._told >= LINE_INTERVAL_S:
            self._tell(self._line())

    def close(self) -> None:
        """Show the last state and leave it standing."""
        self._show()
        if self._bar is not None:
            self._bar.close()
        else:
            self._tell(self._line())

    def _show(self) -> None:
        """Count what has ended since the last time."""
        self._next_show = self._clock() + SHOW_INTERVAL_S
        ended, self._ended = Counter(self._ended), []
        self._done += ended.total()
        if self._bar is not None:
            self._bar.set_postfix_str(self._note(), refresh=False)
            self._bar.update(ended.total())
        if ended and (news := self._milestones.advance(ended)):
            self._tell(news)

    def _note(self) -> str:
        return _note(*self._state) if self._state else ""

    def _line(self) -> str:
        self._told = self._clock()
        return tqdm.format_meter(
            self._done,
            self._total,
            self._told - self._started,
            prefix=LABEL,
            postfix=self._note(),
            initial=self._before,
        )

    def _tell(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()


def _note(tally: Tally, load: Load) -> str:
    parts = []
    if tally.mean_reward is not None:
        parts.append(f"reward={tally.mean_reward:.3f}")
    if tally.spending.prices:
        parts.append(f"usd={tally.spending.usd:.3g}")
    if tally.failed:
        parts.append(f"failed={tally.failed}")
    if tally.retried:
        parts.append(f"retried={tally.retried}")
    parts.append(f"running={load.in_flight}/{load.allowed}")
    return ", ".join(parts)
