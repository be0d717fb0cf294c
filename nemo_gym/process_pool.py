"""Front door: runs a verifier's function in processes that can be killed.

This is for work on model output that may take forever, use all memory or crash the interpreter: symbolic mathematics,
regular expressions, scorers written by others. Each call has a hard limit on CPU time and memory; exceeding it ends
that process and nothing else. Waiting is limited too, but a timeout there is a failure of the machine, not a verdict.

The event loop is never blocked. The first call starts a process that imports the function; the workers are forks of it,
so a new worker is ready at once, however long the import took. Workers see only a few of the caller's environment
variables, can't write files, and end with the caller, even if that was killed.

This guards against accidents. It is not a sandbox for malicious code.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn, Self

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.io.child_process import ChildProcess, exit_text

__all__ = ["CallLimitError", "ProcessPool", "WorkerError", "serve"]

START_LIMIT_S: Final = 300.0
# On a busy machine a call may wait a long time for the CPU. After this it counts as stuck.
WAIT_LIMIT_S: Final = 60.0
PASSED_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")


class CallLimitError(Exception):
    """A call exceeded its limit of time or memory; the message says which."""


class WorkerError(Exception):
    """The function raised an exception, or its process died: a bug or a broken installation, never a verdict."""


class ProcessPool:
    """Runs ``function`` ("package.module:name", JSON in, JSON out) in at most ``size`` processes.

    A call may take ``time_limit_s``, and its process ``memory_mb``. ``warm_up`` are arguments of calls made once before
    the first fork, to fill caches. ``install`` is the hint for a missing package.
    """

    def __init__(
        self,
        function: str,
        *,
        size: int = 2,
        time_limit_s: float = 5.0,
        memory_mb: int = 1024,
        warm_up: Sequence[Sequence[Any]] = (),
        install: str | None = None,
    ) -> None:
        self.time_limit_s = time_limit_s
        self._memory_mb = memory_mb
        limits = str(memory_mb), str(time_limit_s)
        self._forks = _ForkServer((function, *limits, orjson.dumps(warm_up).decode()), install)
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="process-pool")
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        # Also runs when the program ends without close; it must not refer to self, which it would keep alive.
        self._end = weakref.finalize(self, _end_all, self._forks, self._idle)

    async def call(self, *arguments: Any) -> Any:
        """The value of the function. Raises CallLimitError or WorkerError."""
        request = orjson.dumps(arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, request)

    async def close(self) -> None:
        """End all processes, after running calls have finished."""
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _take(self) -> "_Worker":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._forks.fork()

    def _call(self, request: bytes) -> Any:
        worker = self._take()
        try:
            reply = worker.request(request, WAIT_LIMIT_S + self.time_limit_s)
        except (EOFError, OSError) as error:
            # The connection only shows that the process has died. Its exit status says why.
            status = self._forks.end(worker)
            if status == -signal.SIGPROF:
                raise CallLimitError(f"took longer than {self.time_limit_s:g} s") from error
            raise WorkerError(f"the verifier's process died ({exit_text(status)})") from error
        except BaseException:
            self._forks.end(worker)  # it may reply late, and the next caller would take that for its own reply
            raise
        if "memory" in reply:
            self._forks.end(worker)  # it may still hold most of that memory
            raise CallLimitError(f"needed more than {self._memory_mb} MB of memory")
        with self._lock:
            self._idle.append(worker)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply["value"]


@dataclass(frozen=True, slots=True)
class _Worker:
    """One worker process, and the connection to it."""

    pid: int
    connection: Connection

    def request(self, arguments: bytes, limit_s: float) -> dict[str, Any]:
        self.connection.send_bytes(arguments)
        if not self.connection.poll(limit_s):
            raise WorkerError(f"no verdict after {limit_s:g} s: the machine is overloaded, or the verifier is stuck")
        reply: dict[str, Any] = orjson.loads(self.connection.recv_bytes())
        return reply


class _ForkServer:
    """The process that has imported the function; only it forks, kills and reaps workers."""

    def __init__(self, command: tuple[str, ...], install: str | None) -> None:
        self._command = command
        self._install = install
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._socket = socket.socket()

    def fork(self) -> _Worker:
        """A fresh worker."""
        ours, theirs = socket.socketpair()
        with self._lock, ours, theirs:
            if self._process is None or not self._process.running:
                self._start()
            pid = self._request(b"fork", theirs.fileno())
            return _Worker(pid, Connection(ours.detach()))

    def end(self, worker: _Worker) -> int:
        """Kill a worker and return its exit code in the convention of ``subprocess``."""
        worker.connection.close()
        with self._lock:
            return self._request(b"end %d" % worker.pid)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._socket.close()
            if self._process is not None and self._process.running:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _request(self, request: bytes, *descriptors: int) -> int:
        try:
            socket.send_fds(self._socket, [request], descriptors)
            return int(self._socket.recv(64))
        except (OSError, ValueError) as error:
            raise WorkerError(f"the process that starts verifiers is gone: {error}") from error

    def _start(self) -> None:
        self._socket.close()
        self._socket, theirs = socket.socketpair()
        code = "import sys; from nemo_gym.process_pool import serve; serve(*sys.argv[1:])"
        with theirs:
            self._process = ChildProcess(
                f"the process that starts {self._command[0]}",
                [sys.executable, "-c", code, str(theirs.fileno()), *self._command],
                environment=_environment(),
                descriptors=[theirs.fileno()],
            )
        self._socket.settimeout(START_LIMIT_S)
        started = self._socket.recv(4096).decode()
        if started == "ready":
            return
        self._process.wait()
        kind, _, reason = started.partition(" ")
        if kind == "missing":
            raise ConfigError(f"the package {reason!r} is not installed", hint=self._install)
        raise WorkerError(
            f"the verifier can't be started: {reason or f'its process died ({self._process.exit_reason})'}"
        )


def _end_all(forks: _ForkServer, workers: list[_Worker]) -> None:
    while workers:
        workers.pop().connection.close()
    forks.close()


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - sys.path holds strings
    return {**passed, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def serve(descriptor: str, function: str, memory_mb: str, cpu_s: str, warm_up: str) -> None:
    """The main function of the fork server: import, warm up, then fork and kill workers until the caller is gone."""
    control = socket.socket(fileno=int(descriptor))
    module, _, name = function.partition(":")
    try:
        target: Callable[..., Any] = getattr(importlib.import_module(module), name)
        for arguments in orjson.loads(warm_up):
            target(*arguments)
    except ModuleNotFoundError as error:
        control.sendall(f"missing {error.name}".encode())
        return
    except Exception as error:  # noqa: BLE001 - a boundary: the error is sent to the caller
        control.sendall(f"broken {type(error).__name__}: {error}"[:4000].encode())
        return
    # Workers share the memory of what was imported as long as the collector does not touch it.
    gc.freeze()
    control.sendall(b"ready")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            return
        if request == b"fork":
            _fork(control, descriptors[0], target, int(memory_mb), float(cpu_s))
        else:
            pid = int(request.split()[1])
            os.kill(pid, signal.SIGKILL)  # safe for a worker that has died: only we reap it, so its id is not reused
            control.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _fork(control: socket.socket, descriptor: int, target: Callable[..., Any], memory_mb: int, cpu_s: float) -> None:
    pid = os.fork()
    if pid:
        os.close(descriptor)
        control.sendall(b"%d" % pid)
        return
    control.close()  # the caller notices by this socket that its fork server is gone, so no worker may hold it open
    # The process that started us may ignore this signal, and that is inherited. Then nothing would end a call.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _set_limits(memory_mb << 20)
    with contextlib.suppress(EOFError, OSError):
        _serve_calls(Connection(descriptor), target, cpu_s)
    # Without the interpreter's usual end: it would run exit handlers that the parent registered for itself.
    os._exit(0)


def _serve_calls(connection: Connection, target: Callable[..., Any], cpu_s: float) -> NoReturn:
    while True:
        arguments = orjson.loads(connection.recv_bytes())
        # Its signal ends the process, even if the caller is gone. Libraries use SIGALRM, but none uses SIGPROF.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = _reply_to(target, arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(reply)


def _reply_to(target: Callable[..., Any], arguments: list[Any]) -> bytes:
    try:
        return orjson.dumps({"value": target(*arguments)})
    except MemoryError:
        return b'{"memory": true}'
    except BaseException as error:  # noqa: BLE001 - a boundary: the error is sent to the caller
        return orjson.dumps({"error": f"{type(error).__name__}: {error}"})


def _set_limits(extra_memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return  # other kernels do not enforce RLIMIT_AS
    # The limit is on address space, of which a fork has its parent's already.
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_memory, used + extra_memory))
