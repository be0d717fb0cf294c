"""Serves all servers of this process with one uvicorn, which tells them apart by their ports."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.capture.gateway import Gateway
from nemo_gym.errors import ConfigError
from nemo_gym.servers.callers import Callers
from nemo_gym.servers.gateway_door import GatewayAddress, GatewayDoor
from nemo_gym.servers.http.deadlines import WaitedTimes, adopt_attempt
from nemo_gym.servers.middleware.rollout_scope import adopt_mark, adopt_path_prefix
from nemo_gym.servers.server_client import WAITED_PATH
from nemo_gym.steps.remote import PendingSteps, asks_for_steps, serve_with_steps

BACKLOG = 4096
KEEP_ALIVE_S = 30
GRACE_S = 1
LOG_ALL_REQUESTS = "uvicorn_logging_show_200_ok"


class PortRouter:
    """An ASGI app that passes each request to the app that owns the port, unless the caller may not call."""

    def __init__(
        self, apps: Mapping[int, ASGIApp], callers: Callers | None = None, gateway: Gateway | None = None
    ) -> None:
        self._apps = apps
        self._callers = callers
        self._door = GatewayDoor(gateway) if gateway is not None else None
        self._pending = PendingSteps()
        self._waited = WaitedTimes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._door is not None and (address := GatewayAddress.parse(scope["path"])) is not None:
            await self._door.serve(address, self._apps[scope["server"][1]], scope, receive, send)
            return  # the key of the attempt has said whether the caller may call
        refusal = self._callers.refusal(scope) if self._callers is not None else None
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if scope["path"].startswith(WAITED_PATH):
            await JSONResponse(self._waited.seconds(scope["path"].removeprefix(WAITED_PATH)))(scope, receive, send)
            return
        adopt_mark(scope["headers"])
        adopt_attempt(scope["headers"], self._waited)
        app = self._apps[scope["server"][1]]
        if asks_for_steps(scope["headers"]):
            await serve_with_steps(app, adopt_path_prefix(scope), receive, send, self._pending)
        else:
            await app(adopt_path_prefix(scope), receive, send)


class _QuietServer(uvicorn.Server):
    """A server that leaves signal handling to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _WithoutCutOffCalls(logging.Filter):
    """Leaves out the tracebacks of calls that are cut off because the servers stop, which is what was wanted."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def bind(host: str, port: int, *, owner: str, setting: str = "port in its configuration") -> socket.socket:
    """A bound socket. The error names the address, the server that wanted it, and the setting that changes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # A port can be used again right after a run, while connections of that run are still in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{owner}: can't listen on {host}:{port} ({error.strerror or error})",
            hint=f"another program (perhaps another ng_run) uses that address: stop it, or change {setting}",
        ) from None
    listener.setblocking(False)
    return listener


def _show(logger: logging.Logger) -> None:
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():  # a process of one server sets up no logging
        logger.addHandler(logging.StreamHandler())


def _settings(app: ASGIApp, *, log_all: bool) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=log_all,
        # No proxy stands before these servers, and nobody needs to know what they are made of.
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


@contextlib.asynccontextmanager
async def listening(
    apps: Mapping[int, ASGIApp],
    sockets: Iterable[socket.socket],
    callers: Callers | None = None,
    gateway: Gateway | None = None,
    *,
    log_all: bool = False,
) -> AsyncIterator[None]:
    """Serve the apps while the context lasts. Without ``callers``, the apps decide by themselves whom they answer."""
    if log_all:
        _show(logging.getLogger("uvicorn.access"))
    server = _QuietServer(_settings(PortRouter(apps, callers, gateway), log_all=log_all))
    serving = asyncio.create_task(server.serve(sockets=[*sockets]))
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn sets a flag, it has no event
            await asyncio.sleep(0.005)
        if not server.started:
            ports = ", ".join(str(socket.getsockname()[1]) for socket in sockets)
            raise ConfigError(
                f"could not serve on port {ports}",
                hint="the log says why; another program may have taken a port in the meantime",
            )
        yield
    finally:
        server.should_exit = True
        errors, quiet = logging.getLogger("uvicorn.error"), _WithoutCutOffCalls()
        errors.addFilter(quiet)
        try:
            await serving
        finally:
            errors.removeFilter(quiet)
