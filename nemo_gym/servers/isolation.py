"""Servers in separate processes: what ``python app.py`` does, and how a Gym starts it.

A server with ``isolation: process`` runs in a process that is started in the server's folder, and one with
``num_workers`` in that many, which share one listening socket (``supervision`` keeps them running). It can also be
started by hand with the same environment variables; with ``num_workers``, that process becomes the parent of the
workers. A process whose parent is gone stops, so nothing is left behind when ``ng_run`` is killed.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from nemo_gym import INSTALL_DIR
from nemo_gym.capture.gateway import Gateway
from nemo_gym.config.instances import ServerInstance, read_instances
from nemo_gym.config.keys import CONFIG_DICT_ENV_VAR, CONFIG_PATH_ENV_VAR, RESOURCES_SERVERS
from nemo_gym.config.locate import STARTED_IN_ENV_VAR, started_in
from nemo_gym.errors import ConfigError
from nemo_gym.io.child_process import ChildProcess, end_with_parent, show_on_stderr
from nemo_gym.io.process import raise_open_files_limit, settle_heap
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.callers import callers_of, signed_cookies
from nemo_gym.servers.crashes import CrashLog
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.head import Apps, TakePart
from nemo_gym.servers.http.connections import HttpSettings, close_http_client, settings_of, use_http_settings
from nemo_gym.servers.listen import LOG_ALL_REQUESTS, PortRouter, bind, listening
from nemo_gym.servers.loader import build_app, construct
from nemo_gym.servers.middleware.sessions import OWN_SESSIONS_VARIABLE, SECRET_VARIABLE, session_secret
from nemo_gym.servers.profiles import Marker, profiling
from nemo_gym.servers.server_client import TOKEN_VARIABLE, GymClient
from nemo_gym.servers.supervision import ServerCrashedError, Supervisor

LISTEN_FD_VARIABLE = "NEMO_GYM_LISTEN_FD"
MARKERS = (Marker(PortRouter.__call__.__code__, server="self", path="scope"),)


def serve_standalone(
    server_class: type[BaseModel], config: DictConfig, name: str, *, metrics: TakePart
) -> FastAPI | None:
    """Serve one instance until a signal arrives or the parent is gone; ``metrics`` counts its requests."""
    instance = _own_instance(config, name)
    if (instance.num_workers or 1) > 1 and LISTEN_FD_VARIABLE not in os.environ:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(_serve_with_workers(instance))
        except ServerCrashedError as crash:
            sys.exit(str(crash))
        return None
    head = BaseServerConfig.model_validate(config["head_server"])
    client = GymClient(head_server_config=head, global_config_dict=config, token=os.environ.get(TOKEN_VARIABLE))
    server = construct(server_class, instance.settings, client, where=name)
    app = build_app(server)
    if not config.get("dry_run"):
        raise_open_files_limit()
        settings = settings_of(config, workers=instance.num_workers or 1)
        with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=new_event_loop) as runner:
            label = server.get_session_middleware_key()
            with profiling(config, MARKERS, labels={name: label}, only_server=name):
                runner.run(_serve(app, instance, settings, metrics, config, gateway=client.gateway))
    return app


def _own_instance(config: DictConfig, name: str) -> ServerInstance:
    instance = next((instance for instance in read_instances(config) if instance.name == name), None)
    if instance is None:
        raise ConfigError(
            f"there is no server named '{name}' to serve",
            hint=f"{CONFIG_PATH_ENV_VAR} must name a server of the configuration; ng_run sets it for its processes",
        )
    return instance


async def _serve(
    app: FastAPI,
    instance: ServerInstance,
    settings: HttpSettings,
    metrics: TakePart,
    config: DictConfig,
    *,
    gateway: Gateway,
) -> None:
    use_http_settings(settings)
    stop = _stop_event()
    callers = callers_of(config, [instance], cookies={instance.port: signed_cookies(app)})
    listener = _inherited_socket() or bind(instance.host, instance.port, owner=instance.name)
    port = listener.getsockname()[1]
    apps: Apps = {port: app}
    async with (
        app.router.lifespan_context(app),
        metrics(apps, {port: instance}),
        listening(apps, [listener], callers, gateway=gateway, log_all=bool(config.get(LOG_ALL_REQUESTS))),
    ):
        settle_heap()
        await stop.wait()
    await close_http_client()


def _stop_event() -> asyncio.Event:
    """An event that a signal sets, and the end of the parent."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    end_with_parent(partial(loop.call_soon_threadsafe, stop.set))
    return stop


def _inherited_socket() -> socket.socket | None:
    number = os.environ.get(LISTEN_FD_VARIABLE)
    return socket.socket(fileno=int(number)) if number else None


async def _serve_with_workers(instance: ServerInstance) -> None:
    """Serve with several processes until this one is to stop."""
    stop = _stop_event()
    with bind(instance.host, instance.port, owner=instance.name) as listener:
        program = _Program([sys.executable, *sys.argv], {**os.environ, SECRET_VARIABLE: session_secret()})
        supervisor = program.supervisor(instance, listener=listener, crashes=CrashLog(), on_line=show_on_stderr)

        async def serve() -> None:
            await supervisor.open()
            await supervisor.watch()

        either = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(serve())]
        try:
            done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await done.pop()
        finally:
            for task in either:
                task.cancel()
            await asyncio.gather(*either, return_exceptions=True)
            await supervisor.close(WORKER_STOP_S)


WORKER_STOP_S = 2.0  # less than their parent has, which waits for them


class ServerLog:
    """Shows the output of a server process, with its name before each line, and appends it to the server's log file."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._name = name
        self._path = folder / f"{name}.log" if folder else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, line: str) -> None:
        show_on_stderr(f"({self._name}) {line}")
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{line}\n")


def supervised(
    instance: ServerInstance,
    config: DictConfig,
    *,
    python: str,
    log_dir: Path | None,
    environment: Mapping[str, str],
    listener: socket.socket,
    crashes: CrashLog,
) -> Supervisor:
    """The entrypoint of an instance as a program, run with the interpreter ``python``; not started yet.

    ``environment`` is added to that of this process. The log is also written to ``log_dir``, if given.
    """
    variables = {
        **os.environ,
        CONFIG_DICT_ENV_VAR: OmegaConf.to_yaml(config),
        CONFIG_PATH_ENV_VAR: instance.name,
        STARTED_IN_ENV_VAR: str(started_in()),
        "PYTHONPATH": os.pathsep.join([*_import_paths(instance), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        SECRET_VARIABLE: secrets.token_urlsafe(32),  # also that of the processes that take its place
        **environment,
    }
    # With several processes, or in other types of servers, nothing is stored in a process that a rollout would miss.
    if instance.server_type == RESOURCES_SERVERS and (instance.num_workers or 1) == 1:
        variables[OWN_SESSIONS_VARIABLE] = "1"
    program = _Program([python, str(instance.directory / instance.entrypoint)], variables, instance.directory)
    log = ServerLog(instance.name, log_dir)
    return program.supervisor(instance, listener=listener, crashes=crashes, on_line=log)


class _Program(NamedTuple):
    """What the processes of a server run, and where."""

    command: Sequence[str]
    variables: Mapping[str, str]
    folder: Path | None = None

    def supervisor(
        self, instance: ServerInstance, *, listener: socket.socket, crashes: CrashLog, on_line: Callable[[str], None]
    ) -> Supervisor:
        """A supervisor for as many processes as the instance asks for. They all accept on the same socket."""
        workers = instance.num_workers or 1

        def start(number: int) -> ChildProcess:
            return ChildProcess(
                instance.name if workers == 1 else f"worker {number + 1} of {instance.name}",
                self.command,
                environment={**self.variables, LISTEN_FD_VARIABLE: str(listener.fileno())},
                folder=self.folder,
                descriptors=[listener.fileno()],
                on_line=on_line,
                stop_signal=signal.SIGINT,  # the one that servers written for this interface handle
            )

        return Supervisor(instance.name, start, listener=listener, crashes=crashes, number=workers)


def _import_paths(instance: ServerInstance) -> list[str]:
    """The folders that a server imports from: its own, and the root of other server folders.

    The installation is importable anyway. Listing it here would put its packages before those of the server's own
    environment.
    """
    root = instance.directory.parents[1]
    return [str(instance.directory), *([str(root)] if root != INSTALL_DIR else [])]
