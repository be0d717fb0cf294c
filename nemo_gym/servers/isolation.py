"""Servers in separate processes: what ``python app.py`` does, and how such processes are started, watched and stopped.

A server with ``isolation: process`` or ``num_workers`` runs in a process that is started in the server's folder. It can
also be started by hand with the same environment variables. With ``num_workers`` the process becomes the parent of that
many workers, which share one listening socket. A process whose parent is gone stops, so nothing is left behind when
``ng_run`` is killed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel
from starlette.types import ASGIApp

from nemo_gym import PARENT_DIR
from nemo_gym.config.instances import ServerInstance, read_instances
from nemo_gym.config.keys import CONFIG_DICT_ENV_VAR, CONFIG_PATH_ENV_VAR
from nemo_gym.config.locate import STARTED_IN_ENV_VAR, started_in
from nemo_gym.errors import ConfigError
from nemo_gym.io.process import end_with_parent, raise_open_files_limit
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.http.connections import HttpSettings, aiohttp, close_http_client, settings_of, use_http_settings
from nemo_gym.servers.listen import LOG_ALL_REQUESTS, PortRouter, bind, listening
from nemo_gym.servers.loader import build_app, construct
from nemo_gym.servers.profiles import Marker, profiling
from nemo_gym.servers.served_requests import FOLDER_VARIABLE, ServedName, answering_for_metrics
from nemo_gym.servers.server_client import GymClient
from nemo_gym.servers.sessions import SECRET_VARIABLE, session_secret

logger = logging.getLogger(__name__)


LISTEN_FD_VARIABLE = "NEMO_GYM_LISTEN_FD"
PARENT_FD_VARIABLE = "NEMO_GYM_PARENT_FD"
MARKERS = (Marker(PortRouter.__call__.__code__, server="self", path="scope"),)


def serve_standalone(server_class: type[BaseModel], config: DictConfig, name: str) -> FastAPI | None:
    """Serve one instance until a signal arrives or the parent is gone."""
    instance = _own_instance(config, name)
    if (instance.num_workers or 1) > 1 and LISTEN_FD_VARIABLE not in os.environ:
        _serve_with_workers(instance)
        return None
    head = BaseServerConfig.model_validate(config["head_server"])
    client = GymClient(head_server_config=head, global_config_dict=config)
    server = construct(server_class, instance.settings, client, where=name)
    app = build_app(server)
    if not config.get("dry_run"):
        raise_open_files_limit()
        settings = settings_of(config, workers=instance.num_workers or 1)
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=new_event_loop) as runner:
            label = server.get_session_middleware_key()
            with profiling(config, MARKERS, labels={name: label}, only_server=name):
                runner.run(_serve(app, instance, settings, log_all=bool(config.get(LOG_ALL_REQUESTS))))
    return app


def _own_instance(config: DictConfig, name: str) -> ServerInstance:
    instance = next((instance for instance in read_instances(config) if instance.name == name), None)
    if instance is None:
        raise ConfigError(
            f"there is no server named '{name}' to serve",
            hint=f"{CONFIG_PATH_ENV_VAR} must name a server of the configuration; ng_run sets it for its processes",
        )
    return instance


async def _serve(app: FastAPI, instance: ServerInstance, settings: HttpSettings, *, log_all: bool) -> None:
    use_http_settings(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parent = os.environ.get(PARENT_FD_VARIABLE)
    if parent is not None:
        # Nothing is ever written to this pipe: it becomes readable when the parent ends.
        loop.add_reader(int(parent), stop.set)
        end_with_parent()  # in case a handler blocks the loop
    listener = _inherited_socket() or bind(instance.host, instance.port, owner=instance.name)
    port = listener.getsockname()[1]
    apps: dict[int, ASGIApp] = {port: app}
    served = ServedName(instance.name, instance.server_type)
    async with (
        app.router.lifespan_context(app),
        answering_for_metrics(apps, port, served),
        listening(apps, [listener], log_all=log_all),
    ):
        await stop.wait()
    await close_http_client()


def _inherited_socket() -> socket.socket | None:
    number = os.environ.get(LISTEN_FD_VARIABLE)
    return socket.socket(fileno=int(number)) if number else None


def _serve_with_workers(instance: ServerInstance) -> None:
    listener = bind(instance.host, instance.port, owner=instance.name)
    listener.listen(4096)
    # All workers accept on the same socket, so the kernel spreads connections among them.
    listener.set_inheritable(True)
    reader, writer = os.pipe()
    shared = {
        LISTEN_FD_VARIABLE: str(listener.fileno()),
        PARENT_FD_VARIABLE: str(reader),
        SECRET_VARIABLE: session_secret(),
    }
    workers = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | shared, pass_fds=(listener.fileno(), reader))
        for _ in range(instance.num_workers or 1)
    ]

    def stop(*_: object) -> None:
        for worker in workers:
            worker.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with contextlib.suppress(KeyboardInterrupt):
        for worker in workers:
            worker.wait()
    os.close(writer)


LAST_LINES = 30
STOP_S = 3.0
POLL_S = 0.05
PROBE_S = 2.0


class ServerCrashedError(Exception):
    """A server process ended without being asked to."""

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
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
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
        """Wait until the process ends, and return that as an error."""
        code = await self.process.wait()
        await self._reading
        return ServerCrashedError(self.instance.name, code, self.last_lines)

    def interrupt(self) -> None:
        """Ask the process and everything it started to stop."""
        self._signal(signal.SIGINT)

    async def stop(self) -> None:
        """Wait for an interrupted process; kill it if it takes too long."""
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            logger.warning("%s did not stop within %.0f s and will be killed", self.instance.name, STOP_S)
        self._signal(signal.SIGKILL)  # also kills processes that it left behind in its group
        await self.process.wait()
        await self._reading

    def _signal(self, number: signal.Signals) -> None:
        # The group, because a server may have started processes of its own; it leads one since it was started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # the line exceeds the stream's limit; the stream drops it and reading continues
        return b"(a very long line)\n"


async def start_child(
    instance: ServerInstance,
    config: DictConfig,
    *,
    python: str,
    parent_fd: int,
    log_dir: Path | None,
    metrics_folder: Path | None = None,
) -> Child:
    """Start the entrypoint of an instance as a program in a new process group."""
    environment = os.environ | {
        CONFIG_DICT_ENV_VAR: OmegaConf.to_yaml(config),
        CONFIG_PATH_ENV_VAR: instance.name,
        PARENT_FD_VARIABLE: str(parent_fd),
        STARTED_IN_ENV_VAR: str(started_in()),
        "PYTHONPATH": os.pathsep.join([*_import_paths(instance), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        FOLDER_VARIABLE: str(metrics_folder or ""),
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
        # Ctrl-C goes to us alone, so that children are stopped in order and their own children with them.
        start_new_session=True,
    )
    return Child(instance, process, log_dir)


def _import_paths(instance: ServerInstance) -> list[str]:
    """The folders that a server imports from: its own, and the root of other server folders.

    The installation is importable anyway. Listing it here would put its packages before those of the server's own
    environment.
    """
    root = instance.directory.parents[1]
    return [str(instance.directory), *([str(root)] if root != PARENT_DIR else [])]


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
    """Wait for the first crash; waits forever if there is none."""
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
