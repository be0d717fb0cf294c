"""Profiles of what the servers of a process compute: each sample is attributed to a server and a handler.

The kernel sends a signal every few milliseconds of the process's processor time. The signal handler looks at the stack
of the event loop, which shows the whole chain of calls from the rollout to the innermost server. Waiting takes no
processor time and is not sampled; what rollouts wait for is in their steps. Code runs at full speed between samples,
and profiling costs nothing while it is off.

Python runs signal handlers only in the main thread, so the event loop has to run there. Processor time of other threads
is counted, but attributed to whatever the main thread is doing.

    <folder>/index.html                      all servers as a flame graph; a single file that needs no web server
    <folder>/profile.speedscope.json         the same for https://www.speedscope.app and tools that read its format
    <folder>/<Class>___<name>/<name>.log     one server: functions by their own time
    <folder>/<Class>___<name>/<name>.speedscope.json, <name>.html

Times are estimates: the processor time of the process, divided evenly among its samples.
"""

import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeAlias

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing, storage_errors
from nemo_gym.io.json import encode

logger = logging.getLogger(__name__)

Samples: TypeAlias = Counter[tuple[str, ...]]  # stacks, outermost frame first
PAGE: Final = Path(__file__).with_name("flame_graph.html")
_DATA: Final = "/*PROFILE*/null"
_ROWS: Final = 200
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
            frames = (owner.handler or "code around its handlers", *map(code_name, stack))
            samples = found.setdefault(owner.server, Counter())
            samples[frames] += count
        return found


def code_name(code: CodeType) -> str:
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


# ---- the files ------------------------------------------------------------------------------------------------------
def write_profiles(
    folder: Path, servers: Mapping[str, Samples], *, labels: Mapping[str, str], seconds: float, index: bool = True
) -> None:
    """Write the profiles of all servers; ``seconds`` is the processor time that was sampled in total.

    ``labels`` maps the names of servers to those of their folders; ``index`` adds a profile of all servers together.
    """
    total = sum(samples.total() for samples in servers.values())
    each_s = seconds / total if total else 0.0
    together: Samples = Counter()
    with storage_errors(folder, "write a profile to"):
        for server, samples in servers.items():
            together.update({(server, *stack): count for stack, count in samples.items()})
            label = labels.get(server, server).replace(" ", "_")
            stem = folder / label / server.replace(" ", "_")
            _write(stem.with_name(f"{stem.name}.log"), profile_table(samples, each_s).encode())
            _write(stem.with_name(f"{stem.name}.speedscope.json"), encode(speedscope(server, samples, each_s)))
            _write(stem.with_name(f"{stem.name}.html"), profile_page(server, samples, each_s))
        if index:
            _write(folder / "profile.speedscope.json", encode(speedscope("all servers", together, each_s)))
            _write(folder / "index.html", profile_page("all servers", together, each_s))
    logger.info("profile of %.1f s of processor time, %d samples: %s", seconds, total, folder)


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def profile_table(samples: Samples, each_s: float) -> str:
    """Functions with their own time and their total time including calls; largest first."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, count in samples.items():
        own[stack[-1]] += count
        total.update(dict.fromkeys(stack, count))
    rows = sorted(total, key=lambda name: (-own[name], -total[name]))[:_ROWS]
    lines = [f"{'tsub':>10} {'ttot':>10}  name"]
    lines += [f"{own[name] * each_s:>10.4f} {total[name] * each_s:>10.4f}  {name}" for name in rows]
    return "\n".join(lines) + "\n"


def speedscope(name: str, samples: Samples, each_s: float) -> dict[str, Any]:
    """A profile in speedscope's format."""
    frames: dict[str, int] = {}
    stacks = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in samples]
    weights = [round(count * each_s, 6) for count in samples.values()]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": round(sum(weights), 6),
                "samples": stacks,
                "weights": weights,
            }
        ],
        "name": name,
        "exporter": "rollout-gym",
    }


def profile_page(name: str, samples: Samples, each_s: float) -> bytes:
    """A page with a flame graph that loads no other files."""
    root: dict[str, Any] = {"name": name, "value": 0.0, "children": {}}
    for stack, count in samples.items():
        node = root
        node["value"] += count * each_s
        for frame in stack:
            node = node["children"].setdefault(frame, {"name": frame, "value": 0.0, "children": {}})
            node["value"] += count * each_s
    # Escaped, so that no name can close the script element that contains it.
    data = encode(_listed(root)).replace(b"<", b"\\u003c")
    return PAGE.read_bytes().replace(_DATA.encode(), data)


def _listed(root: dict[str, Any]) -> list[Any]:
    """A node as a list of its name, time and children, which is half as long as an object. Stacks may be deep."""
    done: dict[int, list[Any]] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        children = list(node["children"].values())
        missing = [child for child in children if id(child) not in done]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        children.sort(key=lambda child: -child["value"])
        done[id(node)] = [node["name"], round(node["value"], 6), [done[id(child)] for child in children]]
    return done[id(root)]
