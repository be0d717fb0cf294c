"""The fork server: enters the requested isolation, warms up, and forks a supervisor for every box.

The host starts it as a new process with an empty environment, so its memory holds nothing that a program must not see.
When the host closes its end of the connection, the fork server ends, and every box with it. A caretaker process outside
the isolation waits for that and removes the folder that the host made.
"""

import gc
import importlib
import os
import signal
import site
import socket
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from nemo_gym.sandbox.inside import guarded, namespaces, supervisor
from nemo_gym.sandbox.inside.channel import BrokenMessageError, Message, receive
from nemo_gym.sandbox.inside.limits import SandboxLimits
from nemo_gym.sandbox.inside.trees import TreeError
from nemo_gym.sandbox.inside.world_start import WITH_NETWORK, StartedWorld, WorldStart
from nemo_gym.sandbox.inside.world_supervisor import WorldSupervisor

# Modules that programs are likely to import. Every box is a copy of the server, so it has them loaded already.
_WARM: Final = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "struct", "tarfile",
    "traceback", "typing",
)  # fmt: skip


class Level(Protocol):
    """A level of isolation that the fork server has entered."""

    def fork(self, *, own_network: bool) -> int:
        """Fork the supervisor of a new box; returns 0 in it."""

    def box(self, limits: SandboxLimits) -> supervisor.Box:
        """Make the box of the calling supervisor."""

    def world(self, start: WorldStart, limits: SandboxLimits) -> StartedWorld:
        """Make the world of the calling supervisor."""


def run_fork_server() -> None:
    """Serve on the connection whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path.remove(sys.argv[2])  # programs must not import this project
    settings = receive(control).head
    try:
        level = _enter(settings)
        _warm_up(settings["modules"])
    except OSError as error:
        control.sendall(Message({"failure": str(error)}).encode())
        os._exit(1)
    control.sendall(Message({"ready": True}).encode())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel reaps the supervisors
    # Collecting garbage writes to every object. Frozen ones are left alone, so forked boxes go on sharing their pages.
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            _wait_for_supervisors()
        _start_box(control, descriptors, level, own_network=data == WITH_NETWORK)


def _enter(settings: dict[str, Any]) -> Level:
    apart = settings["level"] == "namespaces"
    ready, go = os.pipe()
    pid = namespaces.fork_server() if apart else os.fork()
    if pid:
        os.close(ready)
        _take_care(pid, go, settings["folder"], apart=apart)
    os.close(go)
    # The caretaker writes the user map, because only from outside can root map two users. If it fails, the pipe closes
    # without a word.
    go_ahead = os.read(ready, 64).decode()
    os.close(ready)
    if not go_ahead:
        raise OSError("the kernel refuses to map users into a namespace")
    return namespaces.NamespaceLevel({**settings, "users": go_ahead[1:]}) if apart else guarded.GuardedLevel(settings)


def _take_care(pid: int, go: int, folder: str, *, apart: bool) -> NoReturn:
    try:
        users = namespaces.map_server_users(pid) if apart else ""
        os.write(go, f"+{users}".encode())
    finally:
        # The caretaker must not hold the host's connection, or nobody would see it close.
        os.closerange(3, 256)
        os.waitpid(pid, 0)
        guarded.remove_folder(folder)
        os._exit(0)


def _start_box(control: socket.socket, descriptors: list[int], level: Level, *, own_network: bool) -> None:
    if level.fork(own_network=own_network) == 0:
        try:
            control.close()  # a box that held it could pose as the host
            supervisor.prepare_supervisor()
            _serve(socket.socket(fileno=descriptors[0]), level, descriptors[1:])
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)


def _serve(connection: socket.socket, level: Level, archives: list[int]) -> None:
    try:
        head = receive(connection).head
        limits = SandboxLimits(**head["limits"])
        serve: Callable[[], None]
        try:
            if "world" in head:
                started = level.world(WorldStart(**head["world"], archives=archives), limits)
                serve = partial(_serve_world, connection, started, limits)
            else:
                serve = partial(supervisor.serve_box, connection, level.box(limits), limits)
        except (OSError, ValueError, TreeError) as error:
            connection.sendall(Message({"failure": f"can't make a box: {error}"}).encode())
            return
        for archive in archives:
            os.close(archive)
        serve()
    except (BrokenMessageError, ConnectionError):
        return


def _serve_world(connection: socket.socket, started: StartedWorld, limits: SandboxLimits) -> None:
    ready = Message({"folder": started.box.folder, "workdir": started.workdir}).encode()
    listeners = [] if started.listener is None else [started.listener.fileno()]
    socket.send_fds(connection, [ready], listeners)
    if started.listener is not None:
        started.listener.close()
    WorldSupervisor(connection, started.box, limits).serve()


def _wait_for_supervisors() -> NoReturn:
    """Wait until all supervisors, which also notice that the host is gone, have removed their boxes."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)


def _warm_up(modules: dict[str, str]) -> None:
    for name in _WARM:
        importlib.import_module(name)
    site.setquit()  # exit() and quit(), which programs expect; they come with ``site``, which was not loaded
    for name, source in modules.items():
        for end in (index for index, character in enumerate(name) if character == "."):
            package = types.ModuleType(name[:end])
            package.__path__ = []
            sys.modules.setdefault(name[:end], package)
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
