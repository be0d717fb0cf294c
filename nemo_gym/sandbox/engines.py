"""The command lines of Docker and Podman: their clients, run with limits, and containers that end with this process."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Final

from nemo_gym.sandbox.inside.limits import KIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError

ENGINES: Final = ("docker", "podman")
# The first process of a container: it waits for the end of its input, so that a container does not outlive whoever
# started it, and reaps processes whose parents have ended. ``cat`` may be killed from inside, and is then started anew.
_WAITING: Final = (
    "/bin/sh",
    "-c",
    "echo ready; exec 3<&0; while :; do cat <&3 >/dev/null & wait $! && exit; done",
)
_CONTROL_TIMEOUT_S: Final = 60.0
CLIENT_LIMITS: Final = SandboxLimits(wall_s=_CONTROL_TIMEOUT_S, output_kib=16 * KIB)


class HeldContainer:
    """A container that lives until it is removed or this process ends."""

    def __init__(self, engine: str, name: str) -> None:
        self.engine = engine
        self.name = name
        self._client: asyncio.subprocess.Process | None = None

    async def start(self, options: Sequence[str], image: str) -> None:
        """Start it and wait until it runs; raises ``SandboxCreateError``."""
        given = ["run", "--interactive", "--rm", f"--name={self.name}", *options, image, *_WAITING]
        pipe = asyncio.subprocess.PIPE
        self._client = client = await asyncio.create_subprocess_exec(
            self.engine, *given, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert client.stdout is not None
        assert client.stderr is not None
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                said = await client.stdout.readline()
                # Whoever reads no further must not be waited for: nothing more is written there.
                problem = b"" if said else await client.stderr.read()
        except TimeoutError:
            said, problem = b"", b"it took too long"
        if not said:
            await self.remove()
            reason = problem.decode("utf-8", "replace").strip().rpartition("\n")[2] or "no reason given"
            raise SandboxCreateError(f"{self.engine} could not start a container: {reason}")

    async def remove(self) -> None:
        """End it and remove it; does nothing the second time."""
        client, self._client = self._client, None
        if client is None:
            return
        assert client.stdin is not None
        client.stdin.close()
        await run_engine([self.engine, "rm", "--force", "--volumes", self.name])
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                await client.communicate()
        if client.returncode is None:
            client.kill()
            await client.wait()


async def run_engine(command: Sequence[str], *, stdin: bytes = b"", limits: SandboxLimits = CLIENT_LIMITS) -> Result:
    """Run a command of the engine's client; it is killed if it takes too long or writes too much."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    most = limits.output_kib * KIB
    ending = ProgramEnding.EXITED
    # All three at once: a program that waits for its input to be read, or its output, would wait forever.
    streams = [asyncio.ensure_future(_read(stream, most)) for stream in (process.stdout, process.stderr)]
    writer = asyncio.ensure_future(_write(process.stdin, stdin))
    try:
        async with asyncio.timeout(limits.wall_s):
            await asyncio.gather(*streams)
            await process.wait()
    except TimeoutError:
        ending = ProgramEnding.WALL_TIME
    except _TooMuchError:
        ending = ProgramEnding.OUTPUT
    finally:
        if process.returncode is None:
            # The whole group, because any process that holds the pipes open would keep us waiting.
            os.killpg(process.pid, signal.SIGKILL)
        for task in (*streams, writer):
            task.cancel()
        await asyncio.gather(*streams, writer, return_exceptions=True)
        # asyncio reports the end of a process only once its pipes are closed, and a full pipe stays open.
        await asyncio.gather(_drain(process.stdout), _drain(process.stderr))
        code = await process.wait()
    out, err = (stream.result() if _has_result(stream) else b"" for stream in streams)
    return Result(ending, code, out, err, cpu_s=0.0, wall_s=loop.time() - started, peak_memory_mib=0.0)


class _TooMuchError(Exception):
    """The program wrote more output than is allowed."""


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    data = bytearray()
    while piece := await stream.read(1 << 16):
        data += piece
        if len(data) > most:
            raise _TooMuchError
    return bytes(data)


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stream.write(data)
        await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        stream.close()


def _has_result(task: asyncio.Future[bytes]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
