"""Commands in processes of their own that start at once; see ``fork_server.py``, which forks them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

PATIENCE_S = 120


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


class Written:
    """What a command writes to stdout or stderr: straight to a file, or through a pipe if its files are limited."""

    def __init__(self, path: Path, *, by_pipe: bool) -> None:
        self._path = path
        path.touch()
        self.target = path.with_suffix(f"{path.suffix}.pipe") if by_pipe else path
        self._copier: threading.Thread | None = None
        if by_pipe:
            os.mkfifo(self.target)
            self._copier = threading.Thread(target=self._copy)
            self._copier.start()

    def text(self) -> str:
        return self._path.read_text("utf-8")

    def complete(self) -> None:
        """Wait until everything that was written is in the file."""
        if self._copier is not None:
            self._copier.join()

    def _copy(self) -> None:
        with self.target.open("rb") as source, self._path.open("wb") as file:
            shutil.copyfileobj(source, file)


class ForkedCommand:
    """A command that runs; used like ``subprocess.Popen``."""

    def __init__(self, commands: "ForkedCommands", pid: int, written: "list[Written]") -> None:
        self.pid = pid
        self.code: int | None = None
        self._commands = commands
        self._out, self._err = written

    @property
    def out(self) -> str:
        return self._out.text()

    @property
    def err(self) -> str:
        return self._err.text()

    @property
    def is_running(self) -> bool:
        if self.code is None:
            self.code = self._commands.ask({"poll": self.pid})
        return self.code is None

    def wait(self, patience_s: float = PATIENCE_S) -> Ran:
        """Wait for its end. What takes too long is killed, and nothing that the command started outlives it."""
        if self.code is None:
            alarm = threading.Timer(patience_s, self._kill_group)
            alarm.start()
            try:
                self.code = self._commands.ask({"wait": self.pid})
            finally:
                alarm.cancel()
                self._kill_group()
            for written in (self._out, self._err):
                written.complete()
        return Ran(self.code, self.out, self.err)

    def read_until(self, text: str, patience_s: float = PATIENCE_S) -> str:
        """Wait until it has written this, to stdout or stderr; return all that it wrote there."""
        deadline = time.monotonic() + patience_s
        while True:
            is_running = self.is_running  # asked before reading: what it wrote at its end counts
            for written in (self.out, self.err):
                if text in written:
                    return written
            assert is_running, f"no {text!r} in {self.out!r} or {self.err!r}"
            assert time.monotonic() < deadline, f"still no {text!r} in {self.out!r} or {self.err!r}"
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        if self.is_running:
            os.kill(self.pid, number)

    def interrupt(self) -> Ran:
        """What Ctrl-C does."""
        self.signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            self._kill_group()
            self.wait()


class ForkedCommands:
    """Starts commands: those of ours, ``python FILE``, ``python -m MODULE`` or ``bash``."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._started = 0

    def start(
        self,
        *words: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        file_bytes: int | None = None,
    ) -> ForkedCommand:
        """Start a command in a folder; no file may grow beyond ``file_bytes``."""
        self._started += 1
        names = (f"{self._started}.{stream}" for stream in ("out", "err"))
        written = [Written(self._folder / name, by_pipe=file_bytes is not None) for name in names]
        request = {
            "start": words,
            "folder": str(folder or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "stdout": str(written[0].target),
            "stderr": str(written[1].target),
            "file_bytes": file_bytes,
        }
        return ForkedCommand(self, self.ask(request), written)

    def run(self, *words: str, **options: Any) -> Ran:
        """Run a command to its end."""
        with self.start(*words, **options) as command:
            return command.wait()

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Send one request to the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@contextlib.contextmanager
def fork_server() -> Iterator[ForkedCommands]:
    """A process that forks commands, for as long as it is needed."""
    script = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        yield ForkedCommands(server, Path(folder))
