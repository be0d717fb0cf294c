"""The processes that run queries: started when needed, asked one at a time, ended when they do not answer in time."""

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = Path(__file__).with_name("database_process.py")
MAX_ANSWER: Final = 4 * 2**20


class NoAnswer(Exception):  # noqa: N818 - named for what happened
    """A process took too long (``late``) or died."""

    def __init__(self, reason: str, *, late: bool) -> None:
        super().__init__(reason)
        self.late = late


class DatabaseProcess:
    """One process. Whoever asks has it for itself until it has answered."""

    def __init__(self) -> None:
        # -I: neither the environment nor the current folder decides what is imported.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "")},
            cwd="/",
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    @property
    def _output(self) -> Any:
        assert self._process.stdout is not None, "it was asked for"
        return self._process.stdout

    def ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """The answer to one request. After ``NoAnswer`` the process is of no use any more."""
        assert self._process.stdin is not None, "it was asked for"
        deadline = time.monotonic() + seconds
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NoAnswer(f"the database process has died ({error})", late=False) from error
        received = b""
        while not received.endswith(b"\n"):
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise NoAnswer(f"no answer in {seconds:g} seconds", late=True)
            block = os.read(self._output.fileno(), 1 << 16)
            received += block
            if not block or len(received) > MAX_ANSWER:
                raise self._death()
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _death(self) -> NoAnswer:
        self._process.kill()  # no effect on one that is dead, but not yet waited for
        if self._process.wait() == -signal.SIGPROF:
            return NoAnswer("the query computes for too long", late=True)
        return NoAnswer("the database process has died", late=False)

    def close(self) -> None:
        """End the process and wait for its end."""
        self._selector.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was not sent yet is of no interest now


class ProcessPool:
    """At most so many processes; ``ask`` blocks, so call it from a thread."""

    def __init__(self, size: int) -> None:
        self._places: queue.LifoQueue[DatabaseProcess | None] = queue.LifoQueue()
        for _ in range(size):
            self._places.put(None)
        self._alive: set[DatabaseProcess] = set()
        self._lock = threading.Lock()
        # At the end of the program as well, where nobody calls close.
        self.close = weakref.finalize(self, _close_all, self._alive)

    def ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Ask a process that has nothing to do; one that failed is replaced."""
        process = self._places.get()
        try:
            process = process or self._start()
            return process.ask(request, seconds=seconds)
        except NoAnswer:
            if process is not None:
                self._discard(process)
            process = None
            raise
        finally:
            self._places.put(process)

    def _start(self) -> DatabaseProcess:
        process = DatabaseProcess()
        with self._lock:
            self._alive.add(process)
        return process

    def _discard(self, process: DatabaseProcess) -> None:
        with self._lock:
            self._alive.discard(process)
        process.close()


def _close_all(processes: set[DatabaseProcess]) -> None:
    for process in processes:
        process.close()
    processes.clear()
