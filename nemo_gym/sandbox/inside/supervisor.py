"""The first process of a box: runs programs for the host, watches their use of resources, and ends them.

It replies to one message after the other until the host closes the connection; then the box and everything in it is
removed. A program that could not be confined is never run: the reply is a failure, and the host raises an error.
"""

import gc
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from nemo_gym.sandbox.inside import system
from nemo_gym.sandbox.inside.channel import BrokenMessageError, Message, receive
from nemo_gym.sandbox.inside.limits import KIB, MIB, ProgramEnding, SandboxLimits
from nemo_gym.sandbox.inside.programs import (
    CANNOT_START,
    ProgramPlace,
    UnconfinedError,
    fork_program,
    report_ready,
    start_command,
    start_python,
    write_files,
)

_LOOK_EVERY_S: Final = 0.1  # quick enough for limits in seconds; each look reads /proc for every process of the box
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PIECE: Final = 1 << 16


class Box(Protocol):
    """A place in which programs are confined."""

    folder: str

    def confine(self, limits: SandboxLimits) -> None:
        """Restrict the calling process to the box."""

    def processes(self) -> Sequence[str]:
        """The ids of all processes in the box."""

    def end_processes(self, leader: int) -> None:
        """End the program whose first process is ``leader``, with all its descendants."""

    def over_disk(self, limits: SandboxLimits) -> bool:
        """Whether the folder exceeds its limit, if nothing else prevents that."""

    def reset(self, limits: SandboxLimits) -> None:
        """Replace the folder with an empty one."""

    def remove(self) -> None:
        """Remove everything that belongs to the box."""


def serve_box(connection: socket.socket, box: Box, limits: SandboxLimits) -> None:
    """Run what the host asks for until it closes the connection."""
    try:
        while True:
            request = receive(connection)
            execution = Execution(box, request, connection)
            size = (execution.limits.disk_mib, execution.limits.disk_files)
            if request.head["fresh"] and size != (limits.disk_mib, limits.disk_files):
                limits = execution.limits
                box.reset(limits)
            connection.sendall(execution.run().encode())
            # After the reply, so that the host does not wait for it.
            if request.head["fresh"]:
                box.reset(limits)
    except (BrokenMessageError, ConnectionError):
        return
    finally:
        box.remove()


class Execution:
    """One program, from start to end."""

    def __init__(self, box: Box, request: Message, connection: socket.socket) -> None:
        self.box = box
        self.head: Mapping[str, Any] = request.head
        self.limits = SandboxLimits(**request.head["limits"])
        self.stdin = memoryview(request.blobs[0])
        self.files = dict(zip(request.head["files"], request.blobs[1:], strict=True))
        self.connection = connection
        self.written = {1: bytearray(), 2: bytearray()}
        self.ending = ProgramEnding.EXITED
        self.started = time.monotonic()
        self.used_before = _cpu_of_children()
        self.peak_memory = 0

    def run(self) -> Message:
        """Run the program to its end and describe how it ended."""
        folder = os.path.join(self.box.folder, self.head["folder"])
        try:
            pid, pipes = fork_program(ProgramPlace(self.box, self.limits, folder), self._start)
        except UnconfinedError as error:
            return Message({"failure": str(error)})
        try:
            code = self._watch(pid, pipes.stdin, {pipes.stdout: 1, pipes.stderr: 2})
        finally:
            self.box.end_processes(pid)
            _reap_all(self.box, pid)
            for descriptor in (pipes.stdout, pipes.stderr):
                os.close(descriptor)
        return self._describe(code)

    def _start(self) -> NoReturn:
        try:
            # Inside the box, so that a path in a request reaches no further than the program itself could.
            write_files(self.box.folder, self.files)
        except OSError as error:
            os.write(3, f"can't lock the program in: {error}".encode())
            os._exit(CANNOT_START)
        report_ready()
        environment = {**system.environment(self.box.folder), **self.head["environment"]}
        if self.head["arguments"] is not None:
            start_command(self.head["arguments"], environment)
        start_python(self.head["source"], self.box.folder, environment)

    def _watch(self, pid: int, put: int, outputs: dict[int, int]) -> int:
        """Copy input and output and enforce the limits until the program's first process ends."""
        process = os.pidfd_open(pid)
        poller = select.poll()
        for descriptor in (process, self.connection.fileno(), *outputs):
            poller.register(descriptor, select.POLLIN | select.POLLRDHUP)
        os.set_blocking(put, False)
        poller.register(put, select.POLLOUT)
        try:
            while self.ending is ProgramEnding.EXITED:
                ready = dict(poller.poll(self._next_look() * 1000))
                # The host sends nothing while a program runs, so this is the end of its connection.
                if self.connection.fileno() in ready:
                    raise BrokenMessageError("the host hung up")
                if put in ready and self._feed(put):
                    poller.unregister(put)
                    os.close(put)
                    put = -1
                for descriptor in outputs.keys() & ready.keys():
                    self._collect(descriptor, outputs[descriptor], poller)
                if process in ready:
                    break
                # The limits are checked only when nothing else happens; output has its own limit.
                if not ready:
                    self._look()
            return self._finish(pid, outputs)
        finally:
            os.close(process)
            if put >= 0:
                os.close(put)

    def _next_look(self) -> float:
        return max(0.0, min(_LOOK_EVERY_S, self.started + self.limits.wall_s - time.monotonic()))

    def _feed(self, put: int) -> bool:
        """Send the program more of its input; returns whether all of it has been sent."""
        try:
            self.stdin = self.stdin[os.write(put, self.stdin[:_PIECE]) :] if self.stdin else self.stdin
        except BrokenPipeError:
            return True
        return not self.stdin

    def _collect(self, descriptor: int, stream: int, poller: select.poll) -> None:
        data = os.read(descriptor, _PIECE)
        if not data:
            poller.unregister(descriptor)
        room = self.limits.output_kib * KIB - len(self.written[stream])
        self.written[stream] += data[:room]
        if len(data) > room:
            self.ending = ProgramEnding.OUTPUT

    def _look(self) -> None:
        """End the program if it exceeds a limit."""
        if time.monotonic() - self.started >= self.limits.wall_s:
            self.ending = ProgramEnding.WALL_TIME
            return
        usage = [usage_of(pid) for pid in self.box.processes()]
        if sum(cpu for cpu, _ in usage) + _cpu_of_children() - self.used_before > self.limits.cpu_s:
            self.ending = ProgramEnding.CPU_TIME
        elif sum(memory for _, memory in usage) > self.limits.memory_mib * MIB:
            # Forked processes share memory, which the quick sum counts several times. The exact sum costs more.
            if sum(map(own_memory, self.box.processes())) > self.limits.memory_mib * MIB:
                self.ending = ProgramEnding.MEMORY
        elif self.box.over_disk(self.limits):
            self.ending = ProgramEnding.DISK

    def _finish(self, pid: int, outputs: Mapping[int, int]) -> int:
        """End the program if it is still running, and read the rest of its output."""
        self.box.end_processes(pid)
        _, status, usage = os.wait4(pid, 0)
        self.peak_memory = usage.ru_maxrss * KIB
        for descriptor, stream in outputs.items():
            os.set_blocking(descriptor, False)
            room = self.limits.output_kib * KIB - len(self.written[stream])
            rest = _read_ready(descriptor, room + 1)
            self.written[stream] += rest[:room]
            if len(rest) > room and self.ending is ProgramEnding.EXITED:
                self.ending = ProgramEnding.OUTPUT
        return os.waitstatus_to_exitcode(status)

    def _describe(self, code: int) -> Message:
        cpu = _cpu_of_children() - self.used_before
        # The kernel's own limit can end a program between two looks.
        if (
            self.ending is ProgramEnding.EXITED
            and code in {-signal.SIGXCPU, -signal.SIGKILL}
            and cpu >= self.limits.cpu_s
        ):
            self.ending = ProgramEnding.CPU_TIME
        head = {
            "ending": self.ending,
            "exit_code": code,
            "cpu_s": cpu,
            "wall_s": time.monotonic() - self.started,
            "peak_memory_mib": self.peak_memory / MIB,
        }
        return Message(head, [bytes(self.written[1]), bytes(self.written[2])])


def prepare_supervisor() -> None:
    """Prepare a new copy of the fork server for serving a box."""
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def usage_of(pid: str) -> tuple[float, int]:
    """CPU seconds, including those of children that have ended, and bytes of memory."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0
    return sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE


def own_memory(pid: str) -> int:
    """Bytes of memory, of which shared ones count by the number of processes that share them."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            line = next(line for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return 0
    return int(line.split()[1]) * KIB


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _read_ready(descriptor: int, most: int) -> bytes:
    data = bytearray()
    try:
        while len(data) < most and (piece := os.read(descriptor, min(_PIECE, most - len(data)))):
            data += piece
    except BlockingIOError:
        pass
    return bytes(data)


def _reap_all(box: Box, pid: int) -> None:
    """Wait for all ended processes to disappear."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
        box.end_processes(pid)
