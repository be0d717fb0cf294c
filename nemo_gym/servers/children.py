"""Servers in processes of their own: started, listened to, waited for, stopped; never orphaned."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.keys import CONFIG_DICT_ENV_VAR, CONFIG_PATH_ENV_VAR
from nemo_gym.servers.lazy_aiohttp import aiohttp
from nemo_gym.servers.standalone import PARENT_FD_VARIABLE

logger = logging.getLogger(__name__)

LAST_LINES = 30
STOP_S = 3.0
POLL_S = 0.05
PROBE_S = 2.0


class ServerCrashedError(Exception):
    """A server process ended although nobody asked it to."""

    def __init__(self, server: str, code: int, last_lines: Iterable[str]) -> None:
        output = "\n".join(f"    {line}" for line in last_lines) or "    (no output)"
        super().__init__(f"Process `{server}` finished unexpectedly with exit code {code}. Its last lines:\n{output}")
        self.server = server


class Child:
    """One server process."""

    def __init__(self, instance: ServerInstance, process: asyncio.subprocess.Process, log_dir: Path | None) -> None:
        self.instance = instance
        self.process = process
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log_path = log_dir / f"{instance.name}.log" if log_dir else None
        self._reading = asyncio.create_task(self._pass_on_output())

    async def _pass_on_output(self) -> None:
        assert self.process.stdout is not None
        with self._log_path.open("a") if self._log_path else contextlib.nullcontext() as log:
            while line := await _read_line(self.process.stdout):
                text = line.decode(errors="replace").rstrip()
                self.last_lines.append(text)
                sys.stderr.write(f"({self.instance.name}) {text}\n")
                if log is not None:
                    log.write(f"{text}\n")
                    log.flush()

    async def crash(self) -> ServerCrashedError:
        """Wait for the end of a process that should not end."""
        code = await self.process.wait()
        await self._reading
        return ServerCrashedError(self.instance.name, code, self.last_lines)

    def interrupt(self) -> None:
        """Ask the process and whatever it started to stop."""
        self._signal(signal.SIGINT)

    async def stop(self) -> None:
        """Wait for an interrupted process; kill it if it takes too long."""
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            logger.warning("%s did not stop within %.0f s and is killed", self.instance.name, STOP_S)
        self._signal(signal.SIGKILL)  # also what the process left behind in its group
        await self.process.wait()
        await self._reading

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # a line longer than the stream's limit: its start is dropped, reading goes on
        return b"(a very long line)\n"


async def start_child(
    instance: ServerInstance, config: DictConfig, *, python: str, parent_fd: int, log_dir: Path | None
) -> Child:
    """Start the entrypoint of an instance as a program, in a process group of its own."""
    path = os.pathsep.join(filter(None, [str(instance.directory), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {
        CONFIG_DICT_ENV_VAR: OmegaConf.to_yaml(config),
        CONFIG_PATH_ENV_VAR: instance.name,
        PARENT_FD_VARIABLE: str(parent_fd),
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
    process = await asyncio.create_subprocess_exec(
        python,
        str(instance.directory / instance.entrypoint),
        cwd=instance.directory,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=(parent_fd,),
        start_new_session=True,
    )
    return Child(instance, process, log_dir)


@contextlib.asynccontextmanager
async def stopping_at_exit(children: Sequence[Child]) -> AsyncIterator[None]:
    """Stop all processes when the context ends, however it ends."""
    try:
        yield
    finally:
        for child in children:
            child.interrupt()
        await asyncio.gather(*(child.stop() for child in children))


async def wait_until_ready(children: Sequence[Child]) -> None:
    """Wait until every process answers; a process that ends meanwhile is an error."""
    if not children:
        return
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_S)) as session:
        crash = asyncio.create_task(first_crash(children))
        ready = asyncio.create_task(_wait_for_answers(session, children))
        try:
            await asyncio.wait((crash, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise crash.result()
        finally:
            crash.cancel()
            ready.cancel()
            await asyncio.gather(crash, ready, return_exceptions=True)


async def first_crash(children: Sequence[Child]) -> ServerCrashedError:
    """The crash that happens first; waits for ever while all is well."""
    if not children:
        await asyncio.Event().wait()
    waiting = [asyncio.create_task(child.crash()) for child in children]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in waiting:
            task.cancel()


async def _wait_for_answers(session: "aiohttp.ClientSession", children: Sequence[Child]) -> None:
    await asyncio.gather(*(_wait_for_answer(session, child.instance) for child in children))


async def _wait_for_answer(session: "aiohttp.ClientSession", instance: ServerInstance) -> None:
    while True:
        try:
            async with session.get(f"http://{instance.host}:{instance.port}/"):
                return
        except (aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(POLL_S)
