"""The process between us and a program: it watches the program and ends it with everything that it has started.

``python -m nemo_gym.programs.keeper START``: ``START`` is a JSON file with the fields of ``Start``, which is removed
when it has been read, because it holds keys. The keeper adopts whatever the program leaves behind, so no descendant
escapes, whichever session or group it moved to. It ends them all when the program ends, when a limit is reached, when
it is told to stop (SIGTERM), and when our process is gone; in the last case it removes the folder of the attempt, too.

The program has no standard input. Of its output, the beginning and the end are kept. The memory of all its processes
goes to our stdout while it grows, one number of bytes a line; how it ended goes to a JSON file with the fields of
``Ended``.
"""

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final, Literal

from nemo_gym.io.child_process import end_with_parent
from nemo_gym.sandbox.process_supervisor import adopt_orphans, descendants, end_all

MODULE: Final = "nemo_gym.programs.keeper"
ENDED_FILE: Final = "ended.json"
LOOK_S: Final = 0.2
MOST_PROCESSES: Final = 1024
MOST_OUTPUT: Final = 1 << 20  # bytes of each of the two outputs
LARGEST_FILE: Final = 8 << 30
CLEANUP_S: Final = 20.0
_PDEATHSIG: Final = 1
_OOM_SCORE: Final = "800"  # the kernel ends programs before it ends a collector
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

Limit = Literal["time", "memory", "processes", "stopped"]


@dataclass(frozen=True, slots=True)
class Start:
    """What to run, and within which limits."""

    command: list[str]
    environment: dict[str, str]
    folder: str  # to start in
    timeout_s: float
    grace_s: float  # between the request to stop and the end
    memory_mb: int | None
    attempt_folder: str  # removed if nobody is left who would


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. Without an exit code, it could not be started, for the reason in ``error``."""

    exit_code: int | None = None
    limit: Limit | None = None
    error: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    stdout: str = ""
    stderr: str = ""
    all_ended: bool = True


class BoundedOutput:
    """Reads a pipe to its end and keeps the first and the last half of what is allowed."""

    def __init__(self, pipe: IO[bytes], most: int = MOST_OUTPUT) -> None:
        self._half = most // 2
        self._head, self._tail, self._total = b"", b"", 0
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        while piece := os.read(pipe.fileno(), 1 << 16):
            self._total += len(piece)
            room = self._half - len(self._head)
            self._head += piece[:room]
            self._tail = (self._tail + piece[room:])[-self._half :]

    def text(self) -> str:
        self._thread.join(1.0)
        left_out = self._total - len(self._head) - len(self._tail)
        gap = f"\n[… {left_out} bytes left out …]\n".encode() if left_out else b""
        return (self._head + gap + self._tail).decode(errors="replace")


class Keeper:
    """Runs one program."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._stopped = threading.Event()
        self._abandoned = threading.Event()
        self._peak = 0

    def run(self) -> Ended:
        start, begun = self._start, time.monotonic()
        adopt_orphans()
        signal.signal(signal.SIGTERM, lambda *_: self._stopped.set())
        try:
            process = self._popen()
        except OSError as error:
            return Ended(error=f"{type(error).__name__}: {error}")
        end_with_parent(self._abandon)
        assert process.stdout is not None
        assert process.stderr is not None
        stdout, stderr = BoundedOutput(process.stdout), BoundedOutput(process.stderr)
        limit = self._watch(process, begun + start.timeout_s)
        if limit is not None:
            self._end(process, grace_s=start.grace_s if limit == "time" else 0)
        code = process.wait()
        while self._abandoned.is_set():  # the other thread ends this process
            signal.pause()
        all_ended = end_all(CLEANUP_S)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Ended(
            exit_code=code,
            limit=limit,
            seconds=round(time.monotonic() - begun, 3),
            cpu_s=round(used.ru_utime + used.ru_stime, 3),
            peak_bytes=max(self._peak, used.ru_maxrss * 1024),
            stdout=stdout.text(),
            stderr=stderr.text(),
            all_ended=all_ended,
        )

    def _popen(self) -> subprocess.Popen[bytes]:
        start, library = self._start, ctypes.CDLL(None)

        def prepare() -> None:  # in the child
            library.prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
            with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as little as possible in a fork
                file.write(_OOM_SCORE)

        return subprocess.Popen(
            start.command,
            cwd=start.folder,
            env=start.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - no thread runs yet
        )

    def _watch(self, process: subprocess.Popen[bytes], deadline: float) -> Limit | None:
        """Wait until the program ends or reaches a limit."""
        start, told = self._start, 0
        most = start.memory_mb * (1 << 20) if start.memory_mb else None
        while process.poll() is None:
            if self._stopped.is_set():
                return "stopped"
            if time.monotonic() > deadline:
                return "time"
            looked = time.monotonic()
            running = descendants()
            memory = sum(map(private_memory, running))
            if memory > max(self._peak, told * 1.05):
                told = memory
                with contextlib.suppress(OSError):  # nobody reads it any more
                    os.write(1, b"%d\n" % memory)
            self._peak = max(self._peak, memory)
            if most is not None and memory > most:
                return "memory"
            if len(running) > MOST_PROCESSES:
                return "processes"
            pause = max(LOOK_S, 20 * (time.monotonic() - looked))  # on a busy machine, looking is expensive
            _wait(process, max(0.0, min(pause, deadline - time.monotonic())))
        return None

    def _end(self, process: subprocess.Popen[bytes], *, grace_s: float) -> None:
        if grace_s:
            for pid in descendants():
                _signal(pid, signal.SIGTERM)
            _wait(process, grace_s)
        _signal(process.pid, signal.SIGKILL)

    def _abandon(self) -> None:
        """End everything at once, because nobody waits for the program any more."""
        self._abandoned.set()
        end_all(CLEANUP_S)
        shutil.rmtree(self._start.attempt_folder, ignore_errors=True)
        os._exit(1)


def private_memory(pid: int) -> int:
    """The bytes of memory that a process shares with no file; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - called for every process, five times a second
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def processes_of(variable: str, value: str) -> Iterator[int]:
    """The processes of this machine that were started with an environment variable."""
    wanted = f"{variable}={value}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                environment = Path(entry.path, "environ").read_bytes()
            except OSError:  # it has ended, or belongs to somebody else
                continue
            if wanted in environment.split(b"\0"):
                yield int(entry.name)


def run_keeper(file: Path) -> None:
    """Run the program that a file describes, and write beside it how it ended."""
    start = Start(**json.loads(file.read_bytes()))
    file.unlink()
    ended = Keeper(start).run()
    aside = file.with_name(f"{ENDED_FILE}.new")
    aside.write_text(json.dumps(asdict(ended)))
    aside.replace(file.with_name(ENDED_FILE))


if __name__ == "__main__":
    run_keeper(Path(sys.argv[1]))
