"""Hosts a Gym: all servers that one configuration describes.

Servers run in this process unless they ask for a separate one (``isolation: process``, ``num_workers``) or need
packages that are not installed here. Inside the process they call each other directly; each also listens on its own
port, so that other processes can call it. Everything is checked before the first server starts, and everything is
stopped when the context ends.
"""

import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from omegaconf import DictConfig
from starlette.types import ASGIApp

from nemo_gym import CACHE_DIR
from nemo_gym.config.instances import ServerInstance, require_instances
from nemo_gym.io.process import garbage_collection_paused, raise_open_files_limit
from nemo_gym.schemas.refs import BaseServerConfig
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.event_loop import watching_lag
from nemo_gym.servers.head import HeadServer, ServerInstanceDisplayConfig, describe_instance, run_token
from nemo_gym.servers.http.connections import close_http_client, settings_of, use_http_settings
from nemo_gym.servers.isolation import (
    Child,
    first_crash,
    start_child,
    stopping_at_exit,
    wait_until_ready,
)
from nemo_gym.servers.listen import LOG_ALL_REQUESTS, bind, listening
from nemo_gym.servers.loader import build_app, build_server
from nemo_gym.servers.profiles import Marker, profiling
from nemo_gym.servers.served_requests import ServedMetrics, ServedName
from nemo_gym.servers.server_client import GymClient
from nemo_gym.servers.venvs import VenvOptions, ensure_venv, read_requirements, unmet


@dataclass
class Gym:
    """A hosted Gym: a client that reaches every server, and a description of each."""

    config: DictConfig
    client: GymClient
    instances: list[ServerInstance]
    children: list[Child] = field(default_factory=list)
    started_at: float = field(default_factory=time.time)

    def describe(self) -> list[ServerInstanceDisplayConfig]:
        """All servers, in the order of the configuration."""
        pids = {child.instance.name: child.process.pid for child in self.children}
        return [
            describe_instance(instance, pid=pids.get(instance.name, os.getpid()), start_time=self.started_at)
            for instance in self.instances
        ]

    async def watch(self) -> None:
        """Wait forever; raise an error when a server process ends."""
        raise await first_crash(self.children)


@contextlib.asynccontextmanager
async def host_gym(config: DictConfig, *, head: bool = False) -> AsyncIterator[Gym]:
    """Host every server of a configuration; with ``head``, also run the head server, so that others can find them."""
    instances = require_instances(config)
    use_http_settings(settings_of(config))
    raise_open_files_limit()
    head_config = BaseServerConfig.model_validate(config["head_server"])
    gym = Gym(config, GymClient(head_server_config=head_config, global_config_dict=config), instances)
    missing = {i.name: unmet(read_requirements(i.directory)) for i in instances}
    apart = [i for i in instances if i.isolation == "process" or missing[i.name]]
    inline = [i for i in instances if i not in apart]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(close_http_client)
        with garbage_collection_paused():
            local = {instance.port: _host_inline(instance, gym.client) for instance in inline}
        for server in local.values():
            await stack.enter_async_context(server.app.router.lifespan_context(server.app))
        apps: dict[int, ASGIApp] = dict(local)
        # Entered as contexts, so that bound sockets are closed if a later one can't be bound.
        sockets = {i.port: stack.enter_context(bind(i.host, i.port, owner=i.name)) for i in inline}
        metrics_folder: Path | None = None
        if head:
            # Bound before the token is written: if another Gym has the port, its token must not be replaced.
            sockets[head_config.port] = stack.enter_context(
                bind(
                    head_config.host, head_config.port, owner="head server", setting="'+head_server={host: …, port: …}'"
                )
            )
            token = stack.enter_context(run_token(head_config.port))
            metrics_folder = Path(stack.enter_context(TemporaryDirectory(prefix="nemo_gym_metrics_")))
            named = {port: ServedName(server.name, server.server_type) for port, server in local.items()}
            metrics = stack.enter_context(contextlib.closing(ServedMetrics(apps, named, others=metrics_folder)))
            head_server = HeadServer(config, token=token, servers=gym.describe, metrics=metrics)
            apps[head_config.port] = head_server.setup_webserver()
        await stack.enter_async_context(
            listening(apps, list(sockets.values()), log_all=bool(config.get(LOG_ALL_REQUESTS)))
        )
        gym.children = await _start_children(stack, config, apart, missing, metrics_folder)
        await stack.enter_async_context(watching_lag({i.name: i.directory for i in inline}))
        stack.enter_context(profiling(config, MARKERS, labels={server.name: server.label for server in local.values()}))
        yield gym


# The functions through which calls enter a server, from this process or over HTTP. The profiler looks for their frames.
MARKERS: Final = (
    Marker(LocalServer._call.__code__, server="self", path="path"),  # noqa: SLF001
    Marker(LocalServer.__call__.__code__, server="self", path="scope"),
)


def _host_inline(instance: ServerInstance, client: GymClient) -> LocalServer:
    """Build a server in this process and let the others call it directly."""
    server = build_server(instance, client)
    app = build_app(server, folder=instance.directory)
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


async def _start_children(
    stack: AsyncExitStack,
    config: DictConfig,
    apart: list[ServerInstance],
    missing: dict[str, list[str]],
    metrics_folder: Path | None,
) -> list[Child]:
    """Start the servers that run in separate processes, and wait until they answer."""
    if not apart:
        return []
    cache = Path(config.get("uv_venv_dir") or CACHE_DIR)
    options = VenvOptions.of(config)
    log_dir = Path(config["nemo_gym_log_dir"]) if config.get("nemo_gym_log_dir") else None
    pythons = [
        await ensure_venv(i.name, i.directory, read_requirements(i.directory), cache, options)
        if missing[i.name]
        else Path(sys.executable)
        for i in apart
    ]
    # The write end stays open as long as this process lives. When it closes, the children know that we are gone.
    parent_read, parent_write = os.pipe()
    stack.callback(os.close, parent_write)
    stack.callback(os.close, parent_read)
    children: list[Child] = []
    await stack.enter_async_context(stopping_at_exit(children))
    for instance, python in zip(apart, pythons, strict=True):
        children.append(
            await start_child(
                instance,
                config,
                python=str(python),
                parent_fd=parent_read,
                log_dir=log_dir,
                metrics_folder=metrics_folder,
            )
        )
    await wait_until_ready(children)
    return children
