"""Front door: the base class of servers, and how servers call each other. The work is done in ``nemo_gym.servers``."""

import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict
from starlette.middleware import Middleware

from nemo_gym.config.addresses import base_url, server_settings
from nemo_gym.config.keys import CONFIG_PATH_ENV_VAR
from nemo_gym.global_config import (
    HEAD_SERVER_KEY_NAME,
    get_first_server_config_dict,
    get_global_config_dict,
    maybe_get_global_config_dict,
)
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig, BaseServerConfig
from nemo_gym.servers.head import HEALTH_PATHS, HeadServer, ServerInstanceDisplayConfig
from nemo_gym.servers.http.client import get_response_json, raise_for_status, request
from nemo_gym.servers.http.connections import HttpSettings, get_global_aiohttp_client
from nemo_gym.servers.isolation import serve_standalone
from nemo_gym.servers.middleware.faults import CancellationMiddleware, FaultMiddleware
from nemo_gym.servers.middleware.rollout_scope import PATH_PREFIX, TOKEN_SEGMENT
from nemo_gym.servers.middleware.sessions import (
    SESSION_ID_KEY,
    SessionCookies,
    SessionMiddleware,
    keeps_own_sessions,
    session_secret,
)
from nemo_gym.servers.server_client import GymClient, HeadServerUnreachableError, ServerStatus
from nemo_gym.telemetry.served_requests import sharing_request_counts

MAX_NUM_TRIES = 3
# Names that others import from here, which are known under others elsewhere.
GlobalAIOHTTPAsyncClientConfig = HttpSettings
ConnectionError = ConnectionError  # noqa: A001, PLW0127 - the builtin, which tests look for here

__all__ = [
    "HEAD_SERVER_KEY_NAME",
    "MAX_NUM_TRIES",
    "SESSION_ID_KEY",
    "BaseServer",
    "ConnectionError",
    "DictConfig",
    "GlobalAIOHTTPAsyncClientConfig",
    "HeadServer",
    "HeadServerUnreachableError",
    "ServerClient",
    "ServerInstanceDisplayConfig",
    "ServerStatus",
    "SimpleServer",
    "apply_rollout_prefix",
    "close_with_app",
    "get_first_server_config_dict",
    "get_global_aiohttp_client",
    "get_global_config_dict",
    "get_response_json",
    "get_server_url",
    "initialize_ray",
    "is_global_aiohttp_client_request_debug_enabled",
    "is_nemo_gym_fastapi_entrypoint",
    "raise_for_status",
    "request",
    "rollout_path_prefix",
]


class ServerClient(GymClient):
    """Calls servers by their instance names, in this process or over HTTP."""

    @classmethod
    def load_from_global_config(cls, head_server_config: BaseServerConfig | None = None) -> Self:
        """A client for the running Gym, found through its head server."""
        head = head_server_config or BaseServerConfig.model_validate(get_global_config_dict()["head_server"])
        return cls.load_from_head(head)

    def _resolve_base_url(self, server_name: str) -> str:
        """The address of a server."""
        return base_url(server_settings(self.global_config_dict, server_name))


class BaseServer(BaseModel):
    """A server instance: its configuration and a client for the other servers."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig
    server_client: ServerClient

    @classmethod
    def load_config_from_global_config(cls) -> BaseRunServerInstanceConfig:
        """The configuration of the instance that this process was started for."""
        name = os.environ[CONFIG_PATH_ENV_VAR]
        settings = OmegaConf.to_container(server_settings(get_global_config_dict(), name), resolve=True)
        assert isinstance(settings, dict)
        config_class: type[BaseRunServerInstanceConfig] = cls.model_fields["config"].annotation  # type: ignore[assignment]
        return config_class.model_validate({**settings, "name": name})


class SimpleServer(BaseServer):
    """A server that is a FastAPI app."""

    # Nothing here starts Ray by itself, so a server that calls ``initialize_ray`` gets it whatever this says.
    ray_enabled: ClassVar[bool | None] = None

    @abstractmethod
    def setup_webserver(self) -> FastAPI:
        """Build the app: routes and middleware."""

    def get_session_middleware_key(self) -> str:
        """The name of this server's session cookie."""
        return f"{type(self).__name__}___{self.config.name}"

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Give every request a session, ``request.session[SESSION_ID_KEY]``."""
        cookies = SessionCookies(self.get_session_middleware_key(), session_secret(), own_only=keeps_own_sessions())
        app.state.session_cookies = cookies
        app.add_middleware(SessionMiddleware, cookies=cookies)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Reply to exceptions with status 500; innermost, so that the reply still gets its session cookie."""
        app.user_middleware.append(Middleware(FaultMiddleware, server=self.get_session_middleware_key()))

    def setup_liveness(self, app: FastAPI) -> None:
        """Reply to ``GET /`` and the paths of health checks, which others poll to see whether the server is ready."""

        async def alive() -> dict[str, str]:
            return {"status": "ok"}

        for path in HEALTH_PATHS:
            app.get(path, include_in_schema=path == "/")(alive)

    def setup_cancellation_middleware(self, app: FastAPI) -> None:
        """Cancel a request whose client has gone away before its reply was complete."""
        app.add_middleware(CancellationMiddleware)

    @classmethod
    def run_webserver(cls) -> FastAPI | None:
        """Serve one instance in this process; called at the end of every server's ``app.py``."""
        name = os.environ.get(CONFIG_PATH_ENV_VAR, "")
        return serve_standalone(cls, get_global_config_dict(), name, metrics=sharing_request_counts)


def close_with_app(app: FastAPI, close: Callable[[], Awaitable[None]]) -> None:
    """Have ``close`` called when the server stops; for what a server holds open, such as processes."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await close()

    app.router.lifespan_context = lifespan


def get_server_url(server_name: str) -> str:
    """The address of a server instance."""
    return base_url(server_settings(get_global_config_dict(), server_name))


def rollout_path_prefix(rollout_id: str | None, *, token_capture: bool = False) -> str:
    """The prefix that makes a call of a path belong to a rollout; empty if there is no id.

    ``token_capture`` says that the call is to be trained on. Model servers here record tokens whether it is or not.
    """
    if not rollout_id:
        return ""
    return f"{PATH_PREFIX}{rollout_id}" + (f"/{TOKEN_SEGMENT.strip('/')}" if token_capture else "")


def apply_rollout_prefix(base_url: str, rollout_id: str | None, *, token_capture: bool = False) -> str:
    """A server's address under which every call belongs to a rollout, for programs that only take a base URL."""
    prefix = rollout_path_prefix(rollout_id, token_capture=token_capture)
    parts = urlsplit(base_url)
    return urlunsplit(parts._replace(path=f"{prefix}{parts.path}"))


def is_nemo_gym_fastapi_entrypoint(file: str) -> bool:
    """True in a uvicorn worker that imports this file. Our own workers run the file as a program instead."""
    entrypoint = os.environ.get("IS_NEMO_GYM_FASTAPI_ENTRYPOINT")
    is_worker = os.environ.get("IS_NEMO_GYM_FASTAPI_WORKER") == "1"
    return is_worker and entrypoint is not None and Path(file).as_posix().endswith(entrypoint)


def is_global_aiohttp_client_request_debug_enabled() -> bool:
    """Whether more is logged about failed requests."""
    config = maybe_get_global_config_dict()
    return bool(config is not None and config.get("global_aiohttp_client_request_debug"))


def initialize_ray() -> None:
    """Join or start the Ray cluster; for servers that use Ray themselves."""
    import ray  # noqa: PLC0415 - an extra, needed only here

    if not ray.is_initialized():
        address = get_global_config_dict().get("ray_head_node_address")
        ray.init(address=address, ignore_reinit_error=True)
