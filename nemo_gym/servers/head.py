"""The head server: tells other processes which servers exist and how they are configured.

Only callers with the run's token get secrets. Everyone else gets the same configuration with the secrets masked, which
is enough to find a server. The token is random and is in a private file of the user, so it proves that a caller is the
user who started the servers.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import PlainTextResponse, Response
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.servers.served_requests import ServedMetrics
from nemo_gym.servers.server_client import TOKEN_HEADER, USAGE_PATH, read_run_token, token_path
from nemo_gym.steps.facts import usage_of_processes


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


class HeadServer:
    """Publishes one configuration and the servers that run with it."""

    def __init__(
        self,
        config: DictConfig,
        *,
        token: str,
        servers: Callable[[], Sequence[ServerInstanceDisplayConfig]],
        metrics: ServedMetrics | None = None,
    ) -> None:
        self._token = token
        self._metrics = metrics
        self._servers = servers
        self._open_yaml = OmegaConf.to_yaml(config)
        self._masked_yaml = OmegaConf.to_yaml(OmegaConf.create(mask_secrets(OmegaConf.to_container(config))))

    def setup_webserver(self) -> FastAPI:
        """Build the app with its routes."""
        app = FastAPI()
        app.get("/")(self.alive)
        app.get("/global_config_dict_yaml")(self.global_config_dict_yaml)
        app.get("/server_instances")(self.server_instances)
        app.get(USAGE_PATH)(self.processor_usage)
        if self._metrics is not None:
            app.get("/metrics")(self.metrics)
        return app

    async def metrics(self, request: Request) -> Response:
        """What Prometheus scrapes."""
        assert self._metrics is not None
        try:
            return await self._metrics.page(request.headers.get("accept", ""))
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            return PlainTextResponse("metrics need: pip install 'rollout-gym[prometheus]'\n", status_code=501)

    async def alive(self) -> dict[str, str]:
        """Tell that the server is running."""
        return {"status": "ok"}

    async def global_config_dict_yaml(self, token: Annotated[str | None, Header(alias=TOKEN_HEADER)] = None) -> str:
        """The merged configuration as YAML text, interpolations unresolved."""
        trusted = token is not None and secrets.compare_digest(token.encode(), self._token.encode())
        return self._open_yaml if trusted else self._masked_yaml

    async def server_instances(self) -> list[dict[str, Any]]:
        """All servers of the run."""
        return [server.model_dump() for server in self._servers()]

    async def processor_usage(self) -> dict[int, dict[str, float]]:
        """The processor time of this process and of servers with a process of their own, in seconds, by process id."""
        return {pid: {"cpu_s": used.cpu_s, "ready_s": used.ready_s} for pid, used in usage_of_processes().items()}


@contextlib.contextmanager
def run_token(port: int) -> Iterator[str]:
    """A new token in a file that only this user can read; the file is removed when the run ends."""
    path = token_path(port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = secrets.token_urlsafe(32)
    # Private from the moment it exists, and complete when it gets its name.
    aside = path.with_suffix(f".{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(token)
    aside.replace(path)
    try:
        yield token
    finally:
        if read_run_token(port) == token:  # a later run on the same port may have written its own
            path.unlink(missing_ok=True)
