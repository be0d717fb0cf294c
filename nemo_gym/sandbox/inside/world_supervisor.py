"""The first process of a world: runs several commands at once for the host, and keeps what they leave running.

Unlike a box, a world lives on between commands. A command ends when its first process does; what it left running goes
on until the world is frozen or its connection closes. Time limits are per command, memory and disk per world.
"""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from nemo_gym.sandbox.inside.channel import BrokenMessageError, Message, receive
from nemo_gym.sandbox.inside.limits import MIB, ProgramEnding, SandboxLimits
from nemo_gym.sandbox.inside.programs import (
    Pipes,
    ProgramPlace,
    UnconfinedError,
    fork_program,
    report_ready,
    start_command,
)
from nemo_gym.sandbox.inside.supervisor import own_memory, usage_of
from nemo_gym.sandbox.inside.trees import handle_file

_LOOK_EVERY_S: Final = 0.1  # while a command runs; a look reads /proc
_GLANCE_EVERY_S: Final = 0.5  # while there are only background processes
_MANY: Final = 8  # ended commands that were not cleared away yet; they count as processes
_PIECE: Final = 1 << 16
_FLOOD: Final = 64 * MIB  # beyond the limit on output: who writes that much is ended instead of being read further
_ENDINGS: Final = {name: ProgramEnding(name) for name in ProgramEnding}


class WorldBox(Protocol):
    """A place in which the commands of a world are confined."""

    folder: str
    top: int | None  # a descriptor of the folder with everything that was changed; None if it is ``folder``

    def confine(self, limits: SandboxLimits) -> None:
        """Restrict the calling process to the world."""

    def end_processes(self, leader: int) -> None:
        """End all processes of the world, or at least those of the group of ``leader``, in one step."""

    def over_disk(self, limits: SandboxLimits) -> bool:
        """Whether the world's files exceed their limit, if nothing else prevents that."""

    def remove(self) -> None:
        """Remove everything that belongs to the world."""


class WorldCommand:
    """A command that was started, or what it has left running."""

    def __init__(self, number: int, head: Mapping[str, Any], pid: int, pipes: Pipes) -> None:
        self.number = number
        self.pid = pid
        self.process = os.pidfd_open(pid)
        self.put = pipes.stdin
        self.outputs = {pipes.stdout: 1, pipes.stderr: 2}
        self.pending = bytearray()
        self.input_ended = False
        self.ended = False
        self.ending = ProgramEnding.EXITED
        self.started = time.monotonic()
        self.until = self.started + head["wall_s"]
        self.cpu_s = head["cpu_s"]
        self.room = {1: head["output"], 2: head["output"]}
        self.flood = head["output"] + _FLOOD
        self.cut = False
        self.peak_memory = 0
        os.set_blocking(self.put, False)

    def feed(self) -> None:
        """Write what there is of the input, and close it after the last of it."""
        try:
            while self.pending and (written := os.write(self.put, memoryview(self.pending)[:_PIECE].tobytes())):
                del self.pending[:written]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.pending.clear()
            self.input_ended = True
        if self.input_ended and not self.pending:
            os.close(self.put)
            self.put = -1

    def take(self, stream: int, data: bytes) -> bytes:
        """The part of its output that is passed on."""
        taken = data[: self.room[stream]]
        self.room[stream] -= len(taken)
        self.flood -= len(data)
        self.cut = self.cut or len(taken) < len(data)
        return taken


class WorldSupervisor:
    """Serves one world until the host closes the connection."""

    def __init__(self, connection: socket.socket, box: WorldBox, limits: SandboxLimits) -> None:
        self._connection = connection
        self._box = box
        self._limits = limits
        self._commands: dict[int, WorldCommand] = {}
        self._frozen = False
        self._looked = 0.0

    def serve(self) -> None:
        try:
            while True:
                self._wait()
                if self._is_time_to_look():
                    self._look()
        except (BrokenMessageError, ConnectionError):
            return
        finally:
            self._end_all()
            self._box.remove()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._connection.fileno(), select.POLLIN)
        for command in self._commands.values():
            for descriptor in command.outputs:
                poller.register(descriptor, select.POLLIN)
            if not command.ended:
                poller.register(command.process, select.POLLIN)
            if command.put >= 0 and (command.pending or command.input_ended):
                poller.register(command.put, select.POLLOUT)
        pause = None if not self._commands else self._pause() * 1000
        ready = {descriptor for descriptor, _ in poller.poll(pause)}
        for command in list(self._commands.values()):
            self._serve_command(command, ready)
        if self._connection.fileno() in ready:
            self._handle(receive(self._connection))

    def _serve_command(self, command: WorldCommand, ready: set[int]) -> None:
        if command.put in ready:
            command.feed()
        for descriptor in [each for each in command.outputs if each in ready]:
            self._pass_on(command, descriptor)
        if not command.ended and command.process in ready:
            for descriptor in list(command.outputs):  # what it wrote just before it ended
                os.set_blocking(descriptor, False)
                while self._pass_on(command, descriptor):
                    pass
            self._report(command)

    def _pass_on(self, command: WorldCommand, descriptor: int) -> bool:
        """Send the host a piece of output; returns whether there may be more."""
        try:
            data = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return False
        stream = command.outputs[descriptor]
        if not data:
            del command.outputs[descriptor]
            os.close(descriptor)
        elif not command.ended:
            if taken := command.take(stream, data):
                self._send({"id": command.number, "stream": stream}, taken)
            if command.flood < 0:
                self._stop(command, ProgramEnding.OUTPUT)
                return False
        return bool(data)

    def _report(self, command: WorldCommand) -> None:
        """Tell the host that a command has ended. Its process is kept as a zombie, which reserves its number."""
        found = os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        cpu, _ = usage_of(str(command.pid))
        if command.ending is ProgramEnding.EXITED and code == -signal.SIGXCPU:
            command.ending = ProgramEnding.CPU_TIME
        command.ended = True
        self._send(
            {
                "id": command.number,
                "ending": command.ending,
                "exit_code": code,
                "cpu_s": cpu,
                "wall_s": time.monotonic() - command.started,
                "peak_memory_mib": command.peak_memory / MIB,
                "cut": command.cut,
            }
        )

    def _handle(self, request: Message) -> None:
        head = request.head
        command = self._commands.get(head["id"])
        if head["do"] == "start":
            self._start(head, request.blobs[0])
        elif head["do"] == "freeze":
            self._frozen = True
            self._end_all()
            self._send({"id": head["id"], "frozen": True})
        elif head["do"] == "end" and command is not None and not command.ended:
            self._stop(command, _ENDINGS[head["ending"]])
        elif head["do"] == "input" and command is not None and command.put >= 0:
            command.pending += request.blobs[0]
            command.input_ended = command.input_ended or head["last"]
            command.feed()

    def _start(self, head: Mapping[str, Any], stdin: bytes) -> None:
        is_command = head["call"] == "command"
        if is_command and self._frozen:
            self._send({"id": head["id"], "failure": "the world is frozen"})
            return
        limits = SandboxLimits(**{**self._limits.to_json(), "cpu_s": head["cpu_s"]})
        top = self._box.top if head["call"] == "pack" and head["path"] is None else None
        start = partial(_become, {**head, "path": head["path"] or self._box.folder, "top": top})
        try:
            # A folder that is missing is the command's own affair, and is told on its standard error.
            pid, pipes = fork_program(ProgramPlace(self._box, limits, self._box.folder, keep=top), start)
        except UnconfinedError as error:
            self._send({"id": head["id"], "failure": str(error)})
            return
        command = self._commands[head["id"]] = WorldCommand(head["id"], head, pid, pipes)
        command.pending += stdin
        command.input_ended = head["last"]
        command.feed()

    def _pause(self) -> float:
        running = [command.until - time.monotonic() for command in self._commands.values() if not command.ended]
        return max(0.0, min(_LOOK_EVERY_S, *running)) if running else _GLANCE_EVERY_S

    def _is_time_to_look(self) -> bool:
        # The limits are checked now and then; output arrives more often than that.
        ended = sum(command.ended for command in self._commands.values())
        return ended > _MANY or (bool(self._commands) and time.monotonic() - self._looked >= self._pause())

    def _look(self) -> None:
        """Enforce the limits, and forget commands of which nothing is left."""
        now = self._looked = time.monotonic()
        processes = processes_below(os.getpid())
        for command in [each for each in self._commands.values() if not each.ended]:
            if now >= command.until:
                self._stop(command, ProgramEnding.WALL_TIME)
            elif sum(each.cpu_s for each in processes.values() if each.session == command.pid) > command.cpu_s:
                self._stop(command, ProgramEnding.CPU_TIME)
        self._check_totals(processes)
        alive = {process.session for process in processes.values() if process.pid not in self._leaders()}
        self._reap(processes)
        for command in list(self._commands.values()):
            if command.ended and command.pid not in alive:
                self._forget(command)

    def _check_totals(self, processes: Mapping[int, "Process"]) -> None:
        ending = None
        total = sum(process.memory for process in processes.values())
        for command in self._commands.values():
            command.peak_memory = max(command.peak_memory, total)
        if total > self._limits.memory_mib * MIB and (
            sum(own_memory(str(pid)) for pid in processes) > self._limits.memory_mib * MIB
        ):
            ending = ProgramEnding.MEMORY
        elif self._box.over_disk(self._limits):
            ending = ProgramEnding.DISK
        if ending is not None:
            for command in self._commands.values():
                command.ending = command.ending if command.ended else ending
            self._kill_everything()

    def _stop(self, command: WorldCommand, ending: ProgramEnding) -> None:
        """End a command with its descendants, but not what earlier ones have left running."""
        command.ending = ending
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)  # in one step, so that no fork slips through
        for _ in range(100):  # for those that have left the group
            found = family_of(command.pid, processes_below(os.getpid()))
            for pid in found:
                _kill(pid)
            if found <= {command.pid}:
                return

    def _kill_everything(self) -> None:
        while left := [pid for pid, process in processes_below(os.getpid()).items() if not process.ended]:
            for leader in self._leaders():
                self._box.end_processes(leader)
            for pid in left:
                _kill(pid)
            self._reap({})
            time.sleep(0.001)

    def _end_all(self) -> None:
        self._kill_everything()
        for command in list(self._commands.values()):
            os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
            if not command.ended and not self._is_gone():
                self._report(command)
            self._forget(command)
        self._reap({})

    def _is_gone(self) -> bool:
        poller = select.poll()
        poller.register(self._connection.fileno(), select.POLLRDHUP)
        return bool(poller.poll(0))

    def _forget(self, command: WorldCommand) -> None:
        os.waitpid(command.pid, 0)
        for descriptor in (command.process, *command.outputs, *([command.put] if command.put >= 0 else [])):
            os.close(descriptor)
        del self._commands[command.number]

    def _leaders(self) -> set[int]:
        return {command.pid for command in self._commands.values()}

    def _reap(self, processes: Mapping[int, "Process"]) -> None:
        """Clear away orphans that have ended; leaders are kept until nothing of their session is left."""
        own = os.getpid()
        known = processes or processes_below(own)
        for process in known.values():
            if process.parent == own and process.ended and process.pid not in self._leaders():
                os.waitpid(process.pid, os.WNOHANG)

    def _send(self, head: dict[str, Any], data: bytes = b"") -> None:
        self._connection.sendall(Message(head, [data] if data else []).encode())


class Process:
    """What ``/proc`` says about a process."""

    __slots__ = ("cpu_s", "ended", "memory", "parent", "pid", "session")

    def __init__(self, pid: int, fields: Sequence[bytes]) -> None:
        self.pid = pid
        self.ended = fields[0] in (b"Z", b"X")
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.cpu_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        self.memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def processes_below(top: int) -> dict[int, Process]:
    """All descendants of a process that is the reaper of its orphans, ended ones included."""
    everything = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        everything[int(name)] = Process(int(name), fields)
    return {pid: everything[pid] for pid in _below(top, everything)}


def family_of(leader: int, processes: Mapping[int, Process]) -> set[int]:
    """A process, its descendants, and whoever is still in its session; not those that have ended."""
    members = {pid for pid, process in processes.items() if process.session == leader} | _below(leader, processes)
    return {pid for pid in members | {leader} if pid in processes and not processes[pid].ended}


def _below(top: int, processes: Mapping[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(children.get(top, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _become(head: Mapping[str, Any]) -> NoReturn:
    """Do in a confined process what a request asks for."""
    report_ready()
    if head["call"] != "command":
        os._exit(handle_file(head))
    try:
        os.chdir(head["folder"])
    except OSError as error:
        os.write(2, f"{head['folder']}: {error.strerror}\n".encode())
        os._exit(1)
    start_command(head["arguments"], head["environment"])
