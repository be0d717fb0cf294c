"""The process that forks boxes and worlds, started on first use, and the connection to it."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Final

from nemo_gym import INSTALL_DIR
from nemo_gym.sandbox.inside import system
from nemo_gym.sandbox.inside.channel import BrokenMessageError, Message, receive
from nemo_gym.sandbox.inside.guarded import remove_folder
from nemo_gym.sandbox.inside.world_start import PLAIN
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError

_START: Final = (
    "import sys; sys.path.append(sys.argv[2]); "
    "from nemo_gym.sandbox.inside.server import run_fork_server; run_fork_server()"
)
_START_TIMEOUT_S: Final = 60.0


class ForkServer:
    """A fork server at one level of isolation. ``roots`` is the folder that holds the roots of worlds."""

    def __init__(
        self,
        level: str,
        *,
        readable: Sequence[str] = (),
        modules: Mapping[str, str] | None = None,
        roots: str | None = None,
    ) -> None:
        self._settings = {"level": level, "modules": dict(modules or {}), "roots": roots}
        self._extra = list(readable)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: str | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._lock:
            if not self.running:
                self._stop()
                self._start()

    def stop(self) -> None:
        with self._lock:
            self._stop()

    def connect(self, kind: bytes = PLAIN, *, archive: int | None = None) -> socket.socket:
        """A connection to a new box, of the kind that is asked for, which may be handed an open archive."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, self._lock:
                if self._control is None:
                    raise SandboxError("the sandbox is closed")
                given = [theirs.fileno(), *([] if archive is None else [archive])]
                socket.send_fds(self._control, [kind], given)
        except OSError as error:
            ours.close()
            raise SandboxError(f"the fork server of the sandbox is gone: {error}") from error
        return ours

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rollout-gym-sandbox-")
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as log, theirs:
            self._process = subprocess.Popen(
                # -I and -S keep the user's settings and installed packages out; the virtual environment's link is
                # resolved, because a box sees only the interpreter that it points to.
                [os.path.realpath(sys.executable), "-I", "-S", "-c", _START, str(theirs.fileno()), str(INSTALL_DIR)],
                pass_fds=[theirs.fileno()],
                env=system.environment("/"),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
            self._control = ours
            problem = self._introduce(ours, log)
        if problem is not None:
            self._stop()
            raise SandboxCreateError(f"isolation by {self._settings['level']} does not work here: {problem}")

    def _introduce(self, control: socket.socket, log: IO[bytes]) -> str | None:
        """Send the server its settings; returns what went wrong, if anything did."""
        paths = {"readable": system.readable(self._extra), "hidden": system.hidden(self._extra)}
        control.settimeout(_START_TIMEOUT_S)
        try:
            control.sendall(Message({**self._settings, **paths, "folder": self._folder}).encode())
            reply = receive(control)
        except (BrokenMessageError, OSError) as error:
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").splitlines()
            return lines[-1] if lines else str(error)
        control.settimeout(None)
        failure = reply.head.get("failure")
        return None if failure is None else str(failure)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):  # normally the caretaker has removed it already
                remove_folder(self._folder)
            self._folder = None
