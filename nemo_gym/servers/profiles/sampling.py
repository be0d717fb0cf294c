"""Samples what the servers of a process compute, and attributes each sample to a server and a handler.

The kernel sends a signal every few milliseconds of the process's processor time. The signal handler looks at the stack
of the event loop, which shows the whole chain of calls from the rollout to the innermost server. Waiting takes no
processor time and is not sampled; what rollouts wait for is in their steps. Code runs at full speed between samples,
and profiling costs nothing while it is off.

Python runs signal handlers only in the main thread, so the event loop has to run there. Processor time of other threads
is counted, but attributed to whatever the main thread is doing.
"""

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.servers.profiles.flame_graph import Samples, write_profiles

INTERVAL_S: Final = 0.002  # of processor time; the kernel may round it up to its own tick
MOST_FRAMES: Final = 200
OUTSIDE: Final = "outside any server"
DEFAULT_FOLDER: Final = "results/profiling"


class Owner(NamedTuple):
    """The server and handler that a sample belongs to."""

    server: str
    handler: str


class Marker(NamedTuple):
    """A function whose frame shows that a server is at work, and the local variables that identify the server."""

    code: CodeType
    server: str  # the local whose ``name`` is the server's
    path: str  # the local that is the path, or the ASGI scope


class Sampler:
    """Counts stacks by owner."""

    def __init__(self, markers: tuple[Marker, ...], *, only_server: str | None = None) -> None:
        self._markers = {marker.code: marker for marker in markers}
        self._only_server = only_server
        self.counts: Counter[tuple[Owner, tuple[CodeType, ...]]] = Counter()

    def sample(self, _number: int, frame: FrameType | None) -> None:
        """The signal handler: count the current stack of the main thread."""
        stack: list[CodeType] = []
        owner = Owner(self._only_server or OUTSIDE, "")
        while frame is not None and len(stack) < MOST_FRAMES:
            marker = self._markers.get(frame.f_code)
            if marker is not None:
                owner = self._owner(marker, frame.f_locals)
                break
            stack.append(frame.f_code)
            frame = frame.f_back
        self.counts[owner, tuple(reversed(stack))] += 1

    def _owner(self, marker: Marker, names: Mapping[str, Any]) -> Owner:
        path = names.get(marker.path)
        handler = path.get("path", "") if isinstance(path, dict) else str(path or "")
        server = self._only_server or str(getattr(names.get(marker.server), "name", "") or OUTSIDE)
        return Owner(server, handler)

    def by_server(self) -> dict[str, Samples]:
        """Stacks of readable frames, the handler first, for each server."""
        found: dict[str, Samples] = {}
        for (owner, stack), count in self.counts.items():
            frames = (owner.handler or "code around its handlers", *map(describe, stack))
            samples = found.setdefault(owner.server, Counter())
            samples[frames] += count
        return found


def describe(code: CodeType) -> str:
    """A readable frame: the function, the file with its folder, and the line."""
    path = Path(code.co_filename)
    return f"{code.co_qualname} ({'/'.join(path.parts[-2:])}:{code.co_firstlineno})"


def profile_folder(config: Mapping[str, Any]) -> Path:
    """The folder for profiles."""
    return Path(str(config.get("profiling_results_dirpath") or DEFAULT_FOLDER))


@contextmanager
def profiling(
    config: Mapping[str, Any], markers: tuple[Marker, ...], *, labels: Mapping[str, str], only_server: str | None = None
) -> Iterator[None]:
    """Profile this process within the context, if the configuration asks for it, and write the profiles at the end.

    ``labels`` maps the names of servers to the names of their folders. A process of a single server (``only_server``)
    writes only that server's folder.
    """
    if not config.get("profiling_enabled"):
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "profiling_enabled: the event loop does not run in the main thread, where alone it can be profiled",
            hint="profile with ng_run or ng_collect_rollouts, or leave profiling_enabled out",
        )
    folder = profile_folder(config)
    sampler = Sampler(markers, only_server=only_server)
    began = process_time()
    before = signal.signal(signal.SIGPROF, sampler.sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Ignoring it first discards a signal that is still on its way and would end the process by default. It must not
        # stay ignored: child processes inherit that, and verifiers rely on this signal to be ended.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        signal.signal(signal.SIGPROF, before if before is not None else signal.SIG_DFL)
        seconds = process_time() - began
        write_profiles(folder, sampler.by_server(), labels=labels, seconds=seconds, index=only_server is None)
