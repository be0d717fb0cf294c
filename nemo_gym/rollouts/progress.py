"""How far a run is, shown in two places.

On a terminal and in a notebook it is a bar, elsewhere a line every half minute (``Progress``). If there are several
agents, it also says at milestones what each of them has left:

    Collecting rollouts:  42%|████▏     | 420/1000 [01:10<01:37,  5.98it/s, reward=0.612, failed=3, running=64/64]
    14:10:57 Collecting rollouts: 42%, 420/1000, 5.98/s, 01:37 left, reward=0.612, failed=3, running=64/64

A narrow terminal gets what matters most and still a bar; a run that is paused says so instead. Until the first rollout
has ended, the number of model calls shows that something happens.

A small file beside the output says which rollouts run, where, and how fast it goes (``Activity``). It is rewritten
every second, so that ``ng_status`` can read it from any machine that sees the file, and is removed at the end. After a
crash it stays behind, but its age shows that the run is gone.
"""

import heapq
import json
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, NoReturn, Protocol, TextIO, TypeAlias

from tqdm import tqdm

from nemo_gym.io.progress_bars import NOTEBOOK_COLUMNS, RoomForLogs, is_notebook, open_bar, shows_bars
from nemo_gym.rollouts.dispatch import Attempt, Dispatch
from nemo_gym.rollouts.store.outcome import Completed, Outcome, PlannedRollout
from nemo_gym.rollouts.store.plan_file import PlanOnDisk
from nemo_gym.rollouts.tally import Tally
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.recording import Trail

SHARES: Final = (20, 40, 60, 80, 90, 95, 98, 99, 100)
SHOWN: Final = 5


class Milestones:
    """Watches the share of a plan that is finished; what an earlier run finished counts, but is not announced."""

    def __init__(self, *, total: int, done: int, left: Counter[str]) -> None:
        self._total = total
        self._finished = done
        self._left = Counter(left)
        self._ahead = [share for share in SHARES if share > self._percent]

    def advance(self, agents: Counter[str]) -> str | None:
        """Note what each agent finished; returns the message for a milestone if one was reached."""
        self._finished += agents.total()
        self._left -= agents  # drops those that have nothing left
        if not self._ahead or self._percent < self._ahead[0]:
            return None
        self._ahead = [share for share in self._ahead if share > self._percent]
        return self._text() if self._left else None

    @property
    def _percent(self) -> float:
        return 100 * self._finished / self._total if self._total else 100

    def _text(self) -> str:
        ranked = self._left.most_common(SHOWN)
        lines = [f"{number}. {agent}: {count}" for number, (agent, count) in enumerate(ranked, start=1)]
        return "\n".join(["Examples left:", *lines])


LABEL = "Collecting rollouts"
LINE_INTERVAL_S = 30.0
SHOW_INTERVAL_S = 0.1  # a thousand rollouts may end in a second
# What a line has besides the note and the two numbers: label, share, a short bar, times and rate.
REST_WIDTH: Final = 66
UNKNOWN_WIDTH: Final = 120
PAUSED_FORMAT: Final = "{desc}: {n_fmt}/{total_fmt}{postfix}"


class Load(Protocol):
    """How busy the run is."""

    @property
    def in_flight(self) -> int: ...

    @property
    def allowed(self) -> int: ...

    @property
    def notice(self) -> str:
        """What people should know while the run waits; empty if it does not."""
        ...


class Progress:
    """Follows a run on a stream."""

    def __init__(
        self,
        plan: PlanOnDisk,
        stream: TextIO,
        *,
        clock: Callable[[], float] = monotonic,
        running: Collection[Trail] = (),  # the steps of the attempts that run, where they are known
    ) -> None:
        self._running = running
        self._total = plan.done + len(plan)
        self._done = self._before = plan.done
        self._milestones = Milestones(total=self._total, done=plan.done, left=plan.agents)
        self._shows_milestones = len(plan.agents) > 1  # for a single agent, the bar or the line shows what is left
        self._stream = stream
        self._clock = clock
        self._started = self._written_at = clock()
        self._next_show = 0.0
        self._ended: list[str] = []  # agents of completed rollouts that have not been counted yet
        self._state: tuple[Tally, Load] | None = None
        self._bar: tqdm[NoReturn] | None = None
        self._room: RoomForLogs | None = None
        if shows_bars(stream):
            self._bar = open_bar(stream, total=self._total, initial=plan.done, desc=LABEL)
            self._room = RoomForLogs(self._bar)
            logging.getLogger("nemo_gym").addHandler(self._room)

    def advance(self, outcomes: Iterable[Outcome], tally: Tally, load: Load) -> None:
        """Show what has completed. A rollout that failed is not done: it is counted beside the bar."""
        self._ended += [outcome.planned.agent for outcome in outcomes if isinstance(outcome, Completed)]
        self._state = tally, load
        if self._clock() >= self._next_show:
            self._show()

    def tick(self, tally: Tally, load: Load) -> None:
        """Show that time passes even when nothing ends."""
        self._state = tally, load
        self._show()
        if self._bar is not None:
            self._bar.refresh()
        elif self._clock() - self._written_at >= LINE_INTERVAL_S:
            self._write(self._line())

    def close(self) -> None:
        """Show the last state and leave it on the screen."""
        self._show()
        if self._bar is not None:
            self._bar.close()
            if self._room is not None:
                logging.getLogger("nemo_gym").removeHandler(self._room)
        else:
            self._write(self._line())

    def _show(self) -> None:
        """Count what has ended since the last time."""
        self._next_show = self._clock() + SHOW_INTERVAL_S
        ended, self._ended = Counter(self._ended), []
        self._done += ended.total()
        if self._bar is not None:
            self._bar.bar_format = PAUSED_FORMAT if self._state and self._state[1].notice else None
            self._bar.set_postfix_str(self._note(), refresh=False)
            self._bar.update(ended.total())
        if ended and (news := self._milestones.advance(ended)) and self._shows_milestones:
            self._write(news)

    def _note(self) -> str:
        if self._state is None:
            return ""
        tally, load = self._state
        parts = _parts(tally, load, 0 if tally.ended else sum(trail.model_calls for trail in self._running))
        if self._bar is None:
            return ", ".join(filter(None, [*parts, load.notice]))
        if load.notice:
            return load.notice
        room = _columns(self._stream) - REST_WIDTH - 2 * (len(str(self._total)) - 2)
        while len(parts) > 1 and len(", ".join(parts)) > room:
            parts.pop()
        return ", ".join(parts)

    def _line(self) -> str:
        self._written_at = self._clock()
        rate = (self._done - self._before) / max(self._written_at - self._started, 1e-9)
        share = 100 * self._done // self._total if self._total else 100
        parts = [f"{LABEL}: {share}%", f"{self._done}/{self._total}"]
        if rate:
            parts.append(f"{rate:.3g}/s")
        if rate and self._done < self._total:
            parts.append(f"{tqdm.format_interval((self._total - self._done) / rate)} left")
        now = datetime.now().astimezone().strftime("%H:%M:%S")
        return f"{now} " + ", ".join([*parts, *filter(None, [self._note()])])

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()


def _columns(stream: TextIO) -> int:
    if is_notebook(stream):
        return NOTEBOOK_COLUMNS
    try:
        return os.get_terminal_size(stream.fileno()).columns or UNKNOWN_WIDTH
    except (OSError, ValueError):  # not a real terminal
        return UNKNOWN_WIDTH


def _parts(tally: Tally, load: Load, model_calls: int) -> list[str]:
    """What to say about a run, the most important first."""
    parts = []
    if model_calls:
        parts.append(f"model calls={model_calls}")
    if tally.mean_reward is not None:
        parts.append(f"reward={tally.mean_reward:.3f}")
    if tally.masked:
        parts.append(f"masked={tally.masked}")
    if tally.spending.prices:
        parts.append(f"usd={tally.spending.usd:.3g}")
    if tally.failed:
        parts.append(f"failed={tally.failed}")
    if tally.retried:
        parts.append(f"retried={tally.retried}")
    parts.append(f"running={load.in_flight}/{load.allowed}")
    return parts


# ---- the file beside the output --------------------------------------------------------------------------------------
SLOWEST: Final = 5
RATE_OVER_S: Final = 30.0
STALE_S: Final = 15.0  # a file older than this belongs to a run that is gone

Describe: TypeAlias = Callable[[], dict[str, Any]]


class Activity:
    """Wraps the function that runs an attempt, and remembers what is running."""

    def __init__(self, attempt: Attempt, path: Path, describe: Describe | None = None) -> None:
        self._attempt = attempt
        self._path = path
        self._describe = describe
        self._running: dict[RolloutKey, tuple[float, str]] = {}
        self._started = monotonic()
        self._ended: deque[tuple[float, int]] = deque([(self._started, 0)])

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        self._running[planned.key] = (monotonic(), planned.agent)
        try:
            return await self._attempt(planned)
        finally:
            self._running.pop(planned.key, None)

    def write(self, tally: Tally, dispatch: Dispatch, owed: int) -> None:
        """Write the current state. The run continues if the file can't be written."""
        text = json.dumps(self.state(tally, dispatch, owed), indent=1)
        # Not forced to the disk, unlike what ``replacing`` writes: the file is worthless after a crash of the machine.
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        with suppress(OSError):
            draft.write_text(text, "utf-8")
            draft.replace(self._path)

    def remove(self) -> None:
        """Remove the file at the end of the run."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def state(self, tally: Tally, dispatch: Dispatch, owed: int) -> dict[str, Any]:
        """The content of the file."""
        now = monotonic()
        self._ended.append((now, tally.ended))
        while now - self._ended[0][0] > RATE_OVER_S and len(self._ended) > 2:
            self._ended.popleft()
        then, before = self._ended[0]
        slowest = heapq.nsmallest(SLOWEST, self._running.items(), key=lambda each: each[1][0])
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "written_at": time(),
            "seconds": round(now - self._started, 1),
            "owed": owed,
            "completed": tally.completed,
            "failed": tally.failed,
            "ended": tally.ended,
            "running": len(self._running),
            "allowed": dispatch.allowed,
            "per_second": round((tally.ended - before) / max(now - then, 1e-9), 2),
            "outage": dispatch.outage.reason,
            "slowest": [
                {"task": key.task, "rollout": key.rollout, "agent": agent, "seconds": round(now - began, 1)}
                for key, (began, agent) in slowest
            ],
            **(self._describe() if self._describe is not None else {}),
        }


def read_activity(path: Path) -> dict[str, Any] | None:
    """The state that a running collection reports; None if there is none, or it is out of date."""
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
        return state if time() - float(state["written_at"]) < STALE_S else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
