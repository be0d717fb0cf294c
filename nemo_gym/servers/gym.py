"""Hosts a Gym: all servers that one configuration describes.

Servers run in this process unless they ask for a separate one (``isolation: process``, ``num_workers``) or need
packages that are not installed here. Inside the process they call each other directly; each also listens on its own
port, so that other processes can call it. Everything is checked before the first server starts, and everything is
stopped when the context ends.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from omegaconf import DictConfig
from pydantic import BaseModel
from starlette.types import ASGIApp

from nemo_gym import CACHE_DIR
from nemo_gym.config.instances import ServerInstance, require_instances
from nemo_gym.io.process import garbage_collection_paused, raise_open_files_limit
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.callers import callers_of, signed_cookies
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.event_loop import watching_lag
from nemo_gym.servers.head import (
    CountRequests,
    HeadServer,
    ServedMetrics,
    ServerInstanceDisplayConfig,
    describe_instance,
    token_file,
)
from nemo_gym.servers.http.connections import close_http_client, settings_of, use_http_settings
from nemo_gym.servers.isolation import supervised
from nemo_gym.servers.listen import LOG_ALL_REQUESTS, bind, listening
from nemo_gym.servers.loader import build_app, build_server, construct
from nemo_gym.servers.profiles import Marker, profiling
from nemo_gym.servers.server_client import TOKEN_VARIABLE, GymClient
from nemo_gym.servers.supervision import Supervisor, first_failure
from nemo_gym.servers.venvs import VenvOptions, ensure_venv, read_requirements, unmet


@dataclass
class Gym:
    """A hosted Gym: a client that reaches every server, and a description of each."""

    config: DictConfig
    client: GymClient
    instances: list[ServerInstance]
    supervisors: list[Supervisor] = field(default_factory=list)
    started_at: float = field(default_factory=time.time)
    is_ready: bool = False  # all servers reply

    def describe(self) -> list[ServerInstanceDisplayConfig]:
        """All servers, in the order of the configuration."""
        pids = {server.name: server.processes[0].pid for server in self.supervisors if server.processes}
        return [
            describe_instance(instance, pid=pids.get(instance.name, os.getpid()), start_time=self.started_at)
            for instance in self.instances
        ]

    async def watch(self) -> None:
        """Wait forever; raise an error when a server process can't be kept running."""
        await first_failure(self.supervisors)


@contextlib.asynccontextmanager
async def host_gym(
    config: DictConfig,
    *,
    head: bool = False,
    metrics: CountRequests | None = None,
    classes: Mapping[str, type[BaseModel]] = MappingProxyType({}),
) -> AsyncIterator[Gym]:
    """Host every server of a configuration; with ``head``, also the head server, by which others find them.

    ``metrics`` counts requests of other processes for it; ``classes`` are servers that only this process can build.
    """
    instances = require_instances(config)
    use_http_settings(settings_of(config))
    head_config = BaseServerConfig.model_validate(config["head_server"])
    log_all, token = bool(config.get(LOG_ALL_REQUESTS)), secrets.token_urlsafe(32)
    callers = callers_of(config, instances, token=token, open_ports=frozenset({head_config.port}))
    gym = Gym(config, GymClient(head_server_config=head_config, global_config_dict=config, token=token), instances)
    missing = {i.name: [] if i.name in classes else unmet(read_requirements(i.directory)) for i in instances}
    apart = [i for i in instances if i.isolation == "process" or missing[i.name]]
    inline = [i for i in instances if i not in apart]
    raise_open_files_limit()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(close_http_client)
        with garbage_collection_paused():
            local = {i.port: _host_inline(i, gym.client, classes.get(i.name)) for i in inline}
        for server in local.values():
            await stack.enter_async_context(server.app.router.lifespan_context(server.app))
        apps: dict[int, ASGIApp] = dict(local)
        callers.cookies.update({port: signed_cookies(server.app) for port, server in local.items()})
        # Entered as contexts, so that bound sockets are closed if a later one can't be bound.
        sockets = {i.port: stack.enter_context(bind(i.host, i.port, owner=i.name)) for i in inline}
        counted = stack.enter_context(metrics(apps, {i.port: i for i in inline})) if head and metrics else None
        if head:
            sockets[head_config.port] = stack.enter_context(_bind_head(head_config, token))
            apps[head_config.port] = _head_app(gym, token, counted)
        await stack.enter_async_context(listening(apps, sockets.values(), callers, gym.client.gateway, log_all=log_all))
        await _start_processes(stack, gym, apart, missing, counted.environment if counted else {})
        await stack.enter_async_context(watching_lag(_code_of(inline, classes)))
        stack.enter_context(profiling(config, MARKERS, labels={server.name: server.label for server in local.values()}))
        yield gym


def _code_of(inline: Sequence[ServerInstance], classes: Mapping[str, type]) -> dict[str, Path]:
    """The folder, or the file, with the own code of each server; what is only in a notebook has none."""
    files = {name: getattr(given, "code", None) for name, given in classes.items()}
    found = {i.name: files.get(i.name) if i.name in classes else i.directory for i in inline}
    return {name: path for name, path in found.items() if path is not None}


# The functions through which calls enter a server, from this process or over HTTP. The profiler looks for their frames.
MARKERS: Final = (
    Marker(LocalServer.call.__code__, server="self", path="path"),
    Marker(LocalServer.__call__.__code__, server="self", path="scope"),
)


def _head_app(gym: Gym, token: str, counted: ServedMetrics | None) -> ASGIApp:
    head = HeadServer(gym.config, token, servers=gym, metrics=counted, crashes=gym.client.crashes)
    return head.setup_webserver()


@contextlib.contextmanager
def _bind_head(config: BaseServerConfig, token: str) -> Iterator[socket.socket]:
    """Bind the head server's port before its token is written: another Gym's token must not be replaced."""
    setting = "'+head_server={host: …, port: …}'"
    with bind(config.host, config.port, owner="head server", setting=setting) as bound, token_file(config.port, token):
        yield bound


def _host_inline(instance: ServerInstance, client: GymClient, server_class: type[BaseModel] | None) -> LocalServer:
    """Build a server in this process and let the others call it directly."""
    if server_class is None:
        server = build_server(instance, client)
        app = build_app(server, folder=instance.directory)
    else:  # it has no folder
        server = construct(server_class, instance.settings, client, where=instance.name)
        app = build_app(server)
    label = server.get_session_middleware_key()
    local = LocalServer(
        app,
        label=label,
        base_url=f"http://{instance.host}:{instance.port}",
        name=instance.name,
        server_type=instance.server_type,
    )
    client.attach(instance.name, local)
    return local


async def _start_processes(
    stack: AsyncExitStack,
    gym: Gym,
    apart: list[ServerInstance],
    missing: dict[str, list[str]],
    environment: Mapping[str, str],
) -> None:
    """Start the servers that run in separate processes (``apart``), and wait until they reply.

    ``missing`` lists the packages that a server needs and that are not installed here; it then gets a virtual
    environment. ``environment`` holds variables for all processes.
    """
    config, variables = gym.config, {TOKEN_VARIABLE: gym.client.token or "", **environment}
    cache = Path(config.get("uv_venv_dir") or CACHE_DIR)
    log_dir = Path(config["nemo_gym_log_dir"]) if config.get("nemo_gym_log_dir") else None
    for instance in apart:
        python = Path(sys.executable)
        if missing[instance.name]:
            requirements, options = read_requirements(instance.directory), VenvOptions.of(config)
            python = await ensure_venv(instance.name, instance.directory, requirements, cache, options)
        supervisor = supervised(
            instance,
            config,
            python=str(python),
            log_dir=log_dir,
            environment=variables,
            listener=stack.enter_context(bind(instance.host, instance.port, owner=instance.name)),
            crashes=gym.client.crashes,
        )
        gym.supervisors.append(supervisor)
    if gym.supervisors:
        stack.push_async_callback(_close_all, gym.supervisors)
        await _open_all(gym.supervisors)
    gym.is_ready = True


async def _open_all(supervisors: Sequence[Supervisor]) -> None:
    """Start all at once; the first error ends the others' start."""
    starting = [asyncio.create_task(supervisor.open()) for supervisor in supervisors]
    try:
        await asyncio.gather(*starting)
    finally:
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)


async def _close_all(supervisors: Sequence[Supervisor]) -> None:
    await asyncio.gather(*(supervisor.close() for supervisor in supervisors))
