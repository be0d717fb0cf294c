"""A program that this process starts: it ends with us, its end is noticed at once, and its last lines are remembered.

``ChildProcess`` is our side. The child leads a session of its own: Ctrl-C in a terminal reaches only us, and a signal
to its group reaches whatever it started. When it ends, the rest of its group is killed, so nothing holds its ports.
``end_with_parent`` is the child's side. The child inherits one end of a pipe to which nothing is ever written; the
kernel closes the other end when this process is gone, however that came about.

Threads wait for the child and read its output, so it can be used without an event loop and from any.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from nemo_gym.io.progress_bars import above_bars

logger = logging.getLogger(__name__)

PARENT_FD_VARIABLE: Final = "NEMO_GYM_PARENT_FD"
STOP_S: Final = 3.0
_LAST_LINES: Final = 30
_SHOWN_LINES: Final = 3  # in messages of one line
_LONGEST_LINE: Final = 1 << 16  # bytes; a longer line is passed on in pieces
_REST_OF_OUTPUT_S: Final = 1.0
_CHECK_INTERVAL_S: Final = 1.0


class ChildProcess:
    """One running program; starting it is creating this object.

    ``name`` is for messages. ``environment`` replaces that of this process; ``descriptors`` are open files that the
    program inherits. ``on_line`` is called with each line of its output, in a thread; without it, the output is
    discarded. ``stop_signal`` is what it gets first when it is to end.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        descriptors: Sequence[int] = (),
        on_line: Callable[[str], None] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.started = time.time()
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._on_line = on_line
        self._stop_signal = stop_signal
        self._owner = os.getpid()
        theirs, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**(os.environ if environment is None else environment), PARENT_FD_VARIABLE: str(theirs)},
                pass_fds=(*descriptors, theirs),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if on_line else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
        self.pid = self._process.pid
        self._ended: Future[int] = Future()
        self._ended.set_running_or_notify_cancel()  # so that a caller who stops waiting does not cancel it for others
        threading.Thread(target=self._watch, name=f"watch {name}", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet. A fork of this process has a copy of this object, but not the child."""
        return os.getpid() == self._owner and not self._ended.done()

    @property
    def exit_reason(self) -> str:
        """How it ended, for people: ``exit code 1``, ``killed by SIGKILL``."""
        return exit_text(self._ended.result()) if self._ended.done() else "still running"

    @property
    def end_text(self) -> str:
        """How it ended and what it wrote last, in one line."""
        lines = list(self.last_lines)[-_SHOWN_LINES:]
        return f"{self.exit_reason}; its last lines: {' | '.join(lines)}" if lines else f"{self.exit_reason}; no output"

    async def ended(self) -> int:
        """Wait until it ends; returns the exit code, negative for a signal."""
        return await asyncio.wrap_future(self._ended)

    def wait(self, limit_s: float | None = None) -> int:
        """Wait like ``ended``, blocking this thread. Raises ``TimeoutError`` after the limit."""
        return self._ended.result(limit_s)

    def interrupt(self) -> None:
        """Ask the program and everything it started to stop."""
        self._signal(self._stop_signal)

    def kill(self) -> None:
        """End the program and everything it started at once."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace_s: float = STOP_S) -> int:
        """Stop the program, by force if it takes too long; returns the exit code."""
        self.interrupt()
        try:
            async with asyncio.timeout(grace_s):
                return await self.ended()
        except TimeoutError:
            logger.warning("%s did not stop within %g s and will be killed", self.name, grace_s)
            self.kill()
        return await self.ended()

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _watch(self) -> None:
        reading = threading.Thread(target=self._read_output, name=f"read {self.name}", daemon=True)
        reading.start()
        code = self._process.wait()
        self._signal_group(signal.SIGKILL)  # what it left behind
        reading.join(_REST_OF_OUTPUT_S)  # a program that left the group may hold the pipe open for ever
        os.close(self._lifeline)
        self._ended.set_result(code)

    def _read_output(self) -> None:
        if self._process.stdout is None or self._on_line is None:
            return
        with self._process.stdout as output:
            while line := output.readline(_LONGEST_LINE):
                text = line.decode(errors="replace").rstrip()
                self.last_lines.append(text)
                self._on_line(text)


def show_on_stderr(line: str) -> None:
    """Pass on a line of output. All of it goes there, because stdout carries data."""
    with above_bars():
        sys.stderr.write(f"{line}\n")


def exit_text(code: int) -> str:
    """An exit code in the convention of ``subprocess``, for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # signals for real-time use have no names
        return f"killed by signal {-code}"


def end_with_parent(on_end: Callable[[], object] | None = None, *, parent: int | None = None) -> None:
    """End this process when its parent is gone, even while it computes; does nothing in a program started by hand.

    ``on_end`` is called first, in a thread, and starts an orderly stop, which may take ``STOP_S``. A process that was
    not started as a ``ChildProcess`` is given the id of its ``parent``, and looks for it every second.
    """
    # Removed, because programs that this one starts do not inherit the pipe.
    number = os.environ.pop(PARENT_FD_VARIABLE, None)
    if number is None and parent is None:
        return

    def watch() -> None:
        if number is not None:
            os.read(int(number), 1)
        while number is None and os.getppid() == parent:
            time.sleep(_CHECK_INTERVAL_S)
        if on_end is not None:
            on_end()
            time.sleep(STOP_S)
        os._exit(1)

    threading.Thread(target=watch, name="end_with_parent", daemon=True).start()
