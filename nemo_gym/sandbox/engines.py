"""The command lines of Docker and Podman: running their clients, with limits on time and output."""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Final

from nemo_gym.sandbox.inside.limits import KIB, ProgramEnding, Result, SandboxLimits

ENGINES: Final = ("docker", "podman")
# The first process of a container. A shell also reaps processes whose parents have ended.
WAITING: Final = ("/bin/sh", "-c", "while :; do sleep 1000 & wait $!; done")
_CONTROL_TIMEOUT_S: Final = 60.0
CLIENT_LIMITS: Final = SandboxLimits(wall_s=_CONTROL_TIMEOUT_S, output_kib=16 * KIB)


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
