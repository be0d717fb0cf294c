"""The limits of a run and what it used, stored beside its output (``<stem>_timing.json``), one entry a session.

For each thread, the kernel reports how long it ran and how long it was ready to run but waiting for a processor. The
sum of both shows whether an event loop had time to spare, even on a machine shared with other programs.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time, time
from typing import Any, Final, TypeAlias

import msgspec

from nemo_gym.io.files import replacing
from nemo_gym.io.process import usable_cores

FORMAT: Final = 1
BEAT_S: Final = 0.02
_NANO: Final = 1e-9


class ProcessFacts(msgspec.Struct, omit_defaults=True, gc=False):
    """The processor time of one process."""

    cpu_s: float = 0.0  # how long its main thread ran
    ready_s: float = 0.0  # how long its main thread was running or ready to run


Usage: TypeAlias = Mapping[int, ProcessFacts]  # by process id, since the start of each process


class RunFacts(msgspec.Struct, omit_defaults=True, gc=False):
    """The measurements of one session of a collection."""

    started_at: float = 0.0
    wall_s: float = 0.0
    limit: int = 0  # on concurrent rollouts; 0: unknown
    adaptive: bool = False  # whether the limit was adjusted during the run
    cores: int = 0
    processes: list[ProcessFacts] = []  # ours first, then its children
    servers: list[ProcessFacts] = []  # those of ng_run, if it hosts the servers and tells
    append_s: float = 0.0  # how long the event loop spent writing results
    blocked_s: float = 0.0  # how long the event loop was too busy to run what was due
    completed: int = 0
    attempts: int = 0

    @property
    def fullest(self) -> float:
        """Share of the time in which the busiest process was running or ready to run."""
        return self.share(self.busiest.ready_s)

    @property
    def busiest(self) -> ProcessFacts:
        """The process, of ours or of ng_run, that had the most to compute."""
        return max([*self.processes, *self.servers], key=lambda process: process.ready_s, default=ProcessFacts())

    @property
    def servers_are_busiest(self) -> bool:
        """Whether the busiest process belongs to ng_run."""
        return any(process is self.busiest for process in self.servers)

    @property
    def cpu(self) -> float:
        """Average number of processors in use by all of our processes."""
        return self.share(sum(process.cpu_s for process in self.processes))

    def share(self, seconds: float) -> float:
        """Seconds as a share of the session; 0 if its length is unknown."""
        return seconds / self.wall_s if self.wall_s else 0.0


class _Timing(msgspec.Struct):
    sessions: list[RunFacts]
    format: int = FORMAT


def usage_of_processes() -> Usage:
    """What this process and its children have used so far."""
    return dict(_usage())


def _usage() -> Iterator[tuple[int, ProcessFacts]]:
    own = os.getpid()
    cpu_s = process_time()
    yield own, _scheduled(own) or ProcessFacts(cpu_s, cpu_s)
    children: list[str] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            children += (task / "children").read_text().split()
    for pid in sorted(map(int, children)):
        found = _scheduled(pid)
        if found is not None:
            yield pid, found


def _scheduled(pid: int) -> ProcessFacts | None:
    """The kernel's figures for the main thread of a process, which is the one that runs the event loop."""
    try:
        ran, waited, *_ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return ProcessFacts(int(ran) * _NANO, (int(ran) + int(waited)) * _NANO)
    except (OSError, ValueError):
        return None


@dataclass(slots=True)
class UsageMeter:
    """Measures what this process and its children use during a session.

    ``servers`` asks the process that hosts the servers, if that is another one. It may take a moment, and returns
    nothing if the reply is unknown.
    """

    servers: Callable[[], Usage] = dict
    started_at: float = field(default_factory=time)
    began: float = field(default_factory=perf_counter)
    append_s: float = 0.0
    blocked_s: float = 0.0
    _before: Usage = field(default_factory=usage_of_processes)
    _servers_before: Usage = field(init=False)

    def __post_init__(self) -> None:
        self._servers_before = self.servers()

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return perf_counter() - self.began

    async def watch(self) -> None:
        """Measure how long the running event loop delays work that is due. Runs until it is cancelled."""
        while True:
            asleep = perf_counter()
            await asyncio.sleep(BEAT_S)
            late = perf_counter() - asleep - BEAT_S
            self.blocked_s += late if late > BEAT_S / 2 else 0.0

    def facts(self, **known: Any) -> RunFacts:
        """The measurements so far; ``known`` adds what the caller knows."""
        seconds = self.seconds
        used = _since(self._before, usage_of_processes())
        return RunFacts(
            started_at=round(self.started_at, 6),
            wall_s=round(seconds, 6),
            cores=usable_cores(),
            processes=used,
            # Without a first reply, what a process used before the session can't be subtracted.
            servers=_since(self._servers_before, self.servers()) if self._servers_before else [],
            append_s=round(self.append_s, 6),
            blocked_s=round(self.blocked_s, 6),
            **known,
        )


def _since(before: Usage, now: Usage) -> list[ProcessFacts]:
    nothing = ProcessFacts()
    pairs = [(before.get(pid, nothing), process) for pid, process in now.items()]
    # Not negative, because another machine may say anything.
    return [
        ProcessFacts(max(0.0, round(new.cpu_s - old.cpu_s, 6)), max(0.0, round(new.ready_s - old.ready_s, 6)))
        for old, new in pairs
    ]


def read_facts(path: Path) -> list[RunFacts]:
    """The sessions of a run; empty if the file is missing or can't be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Timing).sessions
    except (OSError, ValueError, msgspec.MsgspecError):
        return []


def add_facts(path: Path, facts: RunFacts, *, resumed: bool) -> None:
    """Store the facts of a session; a resumed run keeps those of its earlier sessions."""
    earlier = read_facts(path) if resumed else []
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(_Timing([*earlier, facts])), indent=1))


def longest_session(sessions: list[RunFacts]) -> RunFacts | None:
    """The longest session, which is the most representative; None if there are none."""
    return max(sessions, key=lambda facts: facts.wall_s, default=None)
