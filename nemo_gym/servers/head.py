"""The head server: tells other processes which servers exist and how they are configured.

Only callers with the run's token get secrets. Everyone else gets the same configuration with the secrets masked, which
is enough to find a server. The token is random and is in a private file of the user, so it proves that a caller is the
user who started the servers.
"""

import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeAlias

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel
from starlette.types import ASGIApp

from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.servers.crashes import CrashLog
from nemo_gym.servers.server_client import CRASHES_PATH, TOKEN_HEADER, USAGE_PATH, read_token_file, token_path
from nemo_gym.steps.facts import usage_of_processes

HEALTH_PATHS: Final = ("/", "/health", "/healthz", "/livez", "/readyz")


class ServerInstanceDisplayConfig(BaseModel):
    """One running server, as shown by ``ng_status``."""

    config_path: str | None = None
    dir_path: str | None = None
    entrypoint: str | None = None
    host: str | None = None
    name: str | None = None
    pid: int | None = None
    port: int | None = None
    process_name: str | None = None
    server_type: str | None = None
    start_time: float | None = None
    status: str | None = None
    uptime_seconds: float | None = None
    url: str | None = None


class ServedMetrics(NamedTuple):
    """Counted requests to the servers of a Gym. Whoever hosts the Gym brings this; servers only offer the place."""

    page: Callable[[Request], Awaitable[Response]]  # serves ``GET /metrics``
    environment: Mapping[str, str]  # variables with which servers in other processes take part


Apps: TypeAlias = MutableMapping[int, ASGIApp]  # by port; a server is counted by replacing its app
Served: TypeAlias = Mapping[int, ServerInstance]
CountRequests: TypeAlias = Callable[[Apps, Served], contextlib.AbstractContextManager[ServedMetrics]]
TakePart: TypeAlias = Callable[[Apps, Served], contextlib.AbstractAsyncContextManager[None]]


def describe_instance(instance: ServerInstance, *, pid: int, start_time: float) -> ServerInstanceDisplayConfig:
    """The head server's description of one instance."""
    return ServerInstanceDisplayConfig(
        config_path=instance.name,
        dir_path=str(instance.directory),
        entrypoint=instance.entrypoint,
        host=instance.host,
        name=instance.implementation,
        pid=pid,
        port=instance.port,
        process_name=instance.name,
        server_type=instance.server_type,
        start_time=start_time,
        url=f"http://{instance.host}:{instance.port}",
    )


class HostedServers(Protocol):
    """The servers that a head server tells about."""

    @property
    def is_ready(self) -> bool:
        """Whether all of them reply."""
        ...

    def describe(self) -> Sequence[ServerInstanceDisplayConfig]:
        """All of them, in the order of the configuration."""
        ...


class HeadServer:
    """Publishes one configuration and the servers that run with it."""

    def __init__(
        self,
        config: DictConfig,
        token: str,
        *,
        servers: HostedServers,
        metrics: ServedMetrics | None = None,
        crashes: CrashLog | None = None,
    ) -> None:
        self._token = token
        self._crashes = crashes or CrashLog()
        self._metrics = metrics
        self._servers = servers
        self._open_yaml = OmegaConf.to_yaml(config)
        self._masked_yaml = OmegaConf.to_yaml(OmegaConf.create(mask_secrets(OmegaConf.to_container(config))))

    def setup_webserver(self) -> FastAPI:
        """Build the app with its routes."""
        app = FastAPI()
        app.get("/")(self.alive)
        for path in HEALTH_PATHS[1:]:
            app.get(path, include_in_schema=False)(self.alive if path == "/livez" else self.ready)
        app.get("/global_config_dict_yaml")(self.global_config_dict_yaml)
        app.get("/server_instances")(self.server_instances)
        app.get(USAGE_PATH)(self.processor_usage)
        app.get(CRASHES_PATH)(self.server_crashes)
        if self._metrics is not None:
            app.get("/metrics")(self._metrics.page)
        return app

    async def alive(self) -> dict[str, str]:
        """Tell that the server is running."""
        return {"status": "ok"}

    async def ready(self) -> JSONResponse:
        """Tell whether all servers are running."""
        return JSONResponse({"status": "ok"}) if self._servers.is_ready else JSONResponse({"status": "starting"}, 503)

    async def global_config_dict_yaml(self, token: Annotated[str | None, Header(alias=TOKEN_HEADER)] = None) -> str:
        """The merged configuration as YAML text, interpolations unresolved."""
        trusted = token is not None and secrets.compare_digest(token.encode(), self._token.encode())
        return self._open_yaml if trusted else self._masked_yaml

    async def server_instances(self) -> list[dict[str, Any]]:
        return [server.model_dump() for server in self._servers.describe()]

    async def server_crashes(self) -> dict[str, Any]:
        """The last crashes of servers with processes of their own, and whether there are such servers."""
        crashes = [crash._asdict() for crash in self._crashes.crashes]
        return {"supervised": self._crashes.is_used, "crashes": crashes}

    async def processor_usage(self) -> dict[int, dict[str, float]]:
        """The processor time of this process and of servers with a process of their own, in seconds, by process id."""
        return {pid: {"cpu_s": used.cpu_s, "ready_s": used.ready_s} for pid, used in usage_of_processes().items()}


@contextlib.contextmanager
def token_file(port: int, token: str) -> Iterator[None]:
    """The run's token in a file that only this user can read; the file is removed when the run ends."""
    path = token_path(port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Private from the moment it exists, and complete when it gets its name.
    aside = path.with_suffix(f".{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(token)
    aside.replace(path)
    try:
        yield
    finally:
        if read_token_file(port) == token:  # a later run on the same port may have written its own
            path.unlink(missing_ok=True)
