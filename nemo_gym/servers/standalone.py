"""One server in a process of its own: what ``python app.py`` does.

Started by ``ng_run`` for servers with ``isolation: process``, or by hand with the same environment variables. With
``num_workers`` the process becomes the parent of that many workers, which share one listening socket. A process whose
parent is gone stops: nothing is left behind when ``ng_run`` is killed.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from typing import Any

from fastapi import FastAPI
from omegaconf import DictConfig
from pydantic import BaseModel

from nemo_gym.config.instances import ServerInstance, read_instances
from nemo_gym.config.keys import CONFIG_PATH_ENV_VAR
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.client import GymClient
from nemo_gym.servers.http import close_http_client
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.loader import construct
from nemo_gym.servers.sessions import SECRET_VARIABLE, session_secret
from nemo_gym.servers.webapp import build_app

LISTEN_FD_VARIABLE = "NEMO_GYM_LISTEN_FD"
PARENT_FD_VARIABLE = "NEMO_GYM_PARENT_FD"
OPEN_FILES = 65_535


def serve_standalone(server_class: type[BaseModel], config: DictConfig, name: str) -> FastAPI | None:
    """Serve one instance until a signal comes or the parent goes away."""
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
        with contextlib.suppress(KeyboardInterrupt):
            _loop_runner()(_serve(app, instance))
    return app


def _own_instance(config: DictConfig, name: str) -> ServerInstance:
    instance = next((instance for instance in read_instances(config) if instance.name == name), None)
    if instance is None:
        raise ConfigError(
            f"no server named '{name}' to serve",
            hint=f"{CONFIG_PATH_ENV_VAR} must name a server of the configuration; ng_run sets it for its processes",
        )
    return instance


def raise_open_files_limit() -> None:
    """Thousands of rollouts at once need as many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_runner() -> Any:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _serve(app: FastAPI, instance: ServerInstance) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parent = os.environ.get(PARENT_FD_VARIABLE)
    if parent is not None:
        # Nothing is ever written to it: it becomes readable when the parent ends.
        loop.add_reader(int(parent), stop.set)
    listener = _inherited_socket() or bind(instance.host, instance.port, owner=instance.name)
    port = listener.getsockname()[1]
    async with app.router.lifespan_context(app), listening({port: app}, [listener]):
        await stop.wait()
    await close_http_client()


def _inherited_socket() -> socket.socket | None:
    number = os.environ.get(LISTEN_FD_VARIABLE)
    return socket.socket(fileno=int(number)) if number else None


def _serve_with_workers(instance: ServerInstance) -> None:
    listener = bind(instance.host, instance.port, owner=instance.name)
    listener.listen(4096)
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
