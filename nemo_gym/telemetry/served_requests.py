"""Counts the requests of other processes to the servers of a Gym, for ``GET /metrics`` of the head server.

Counting begins with the first scrape; until then nothing is imported, wrapped or measured. Every process counts the
requests to its own servers. The head server gets the numbers of the others through sockets in a private folder, because
the workers of a server share its port. A request whose caller counts it is not counted again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config.instances import ServerInstance
from nemo_gym.config.keys import RESPONSES_API_AGENTS
from nemo_gym.servers.head import Apps, Served, ServedMetrics
from nemo_gym.steps.recording import Span, current_span, describe_callee, first_span, open_span

# ``RunMeters`` of ``prometheus_metrics``, which is imported by the first scrape, because it needs an extra.
Meters: TypeAlias = Any

RUN_PATH: Final = "/run"
FOLDER_VARIABLE: Final = "NEMO_GYM_METRICS_DIR"
SCRAPED: Final = "scraped"  # a file in that folder, from the first scrape on
REPLY_S: Final = 2.0  # for a process that is too busy to reply; the scrape then goes without it


class RequestMeters:
    """The metrics of the servers of this process, created when they are first requested."""

    def __init__(self, apps: Apps, servers: Served) -> None:
        self._apps = apps
        self._servers = servers
        self._meters: Meters | None = None

    def __call__(self) -> Meters:
        """The metrics of this process; raises ModuleNotFoundError if the extra is not installed."""
        if self._meters is None:
            meters: Meters = import_module("nemo_gym.telemetry.prometheus_metrics").RunMeters()
            self._meters = meters
            meters.watch_lag()
            for port, server in self._servers.items():
                self._apps[port] = CountedServer(self._apps[port], server, meters)
        return self._meters

    def close(self) -> None:
        """Stop measuring."""
        if self._meters is not None:
            self._meters.close()


@contextmanager
def counting_requests(apps: Apps, servers: Served) -> Iterator[ServedMetrics]:
    """Count for a head server, together with all other processes of its Gym."""
    with TemporaryDirectory(prefix="nemo_gym_metrics_") as name, closing(RequestMeters(apps, servers)) as own:
        folder = Path(name)
        sockets = partial(folder.glob, "*.sock")

        async def page(request: Request) -> Response:
            try:
                meters = own()
            except ModuleNotFoundError as error:
                if error.name != "prometheus_client":
                    raise
                return PlainTextResponse("metrics need: pip install 'rollout-gym[prometheus]'\n", status_code=501)
            (folder / SCRAPED).touch()  # first, so that a process that is just starting misses nothing
            others = await asyncio.gather(*map(_read, sorted(sockets())))
            answered: Response = meters.page(request.headers.get("accept", ""), [text for text in others if text])
            return answered

        yield ServedMetrics(page, {FOLDER_VARIABLE: name})


async def _read(path: Path) -> str:
    """What another process has counted; empty if it is gone, does not reply or can't count."""
    try:
        async with asyncio.timeout(REPLY_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                return (await reader.read()).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


@asynccontextmanager
async def sharing_request_counts(apps: Apps, servers: Served) -> AsyncIterator[None]:
    """Give the head server the numbers of this process, if there is a head server that collects them."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        yield
        return

    with closing(RequestMeters(apps, servers)) as metrics:

        async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ModuleNotFoundError):  # the environment of this server may not have prometheus-client
                writer.write(metrics().text().encode())
            writer.close()

        async with await asyncio.start_unix_server(reply, Path(folder) / f"{os.getpid()}.sock"):
            if (Path(folder) / SCRAPED).exists():  # before this process could reply
                with suppress(ModuleNotFoundError):
                    metrics()
            yield


class CountedServer:
    """A server that counts requests from other processes, and the calls that it makes to handle them."""

    def __init__(self, app: ASGIApp, server: ServerInstance, meters: Meters) -> None:
        self._app = app
        self._server = server
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opened = open_span()  # set if the caller also wants the steps
        counts = opened is None or not opened.trail.is_counted
        if scope["type"] != "http" or scope["method"] != "POST" or not counts:
            await self._app(scope, receive, send)
            return
        span = opened or first_span()
        span.trail.is_counted = True
        reply = _Watched(send)
        token = current_span.set(span)
        began = perf_counter_ns()
        is_rollout = self._server.server_type == RESPONSES_API_AGENTS and scope["path"] == RUN_PATH
        if is_rollout:
            self._meters.in_flight.inc()
        try:
            await self._app(scope, receive, reply.send)
        finally:
            current_span.reset(token)
            if is_rollout:
                self._meters.in_flight.dec()
            self._count(scope["path"], span, reply, began, is_rollout=is_rollout)

    def _count(self, path: str, span: Span, reply: "_Watched", began: int, *, is_rollout: bool) -> None:
        meters, server = self._meters, self._server
        if is_rollout:
            failed = f"status_{reply.status or 'none'}" if not 200 <= reply.status < 400 else ""
            outcome = "failed" if failed else "completed"
            meters.count_rollout(server.name, outcome, (perf_counter_ns() - began) / 1e9, failed)
        else:
            callee = describe_callee(server.server_type, server.name, path, from_resources=False)
            request = first_span().begin(callee)  # which ends below, and nothing else happens in this context
            root = span.trail.root
            request.step.waited, request.step.waited_for = root.waited, root.waited_for
            request.step.retries = root.retries
            request.start, request.completion = began, span.completion
            request.end(reply.status, 0, reply.body)
            meters.count_steps([request.step])
        meters.count_steps(span.trail.steps)


class _Watched:
    """Notes the status of a reply, and its body if it comes in one piece."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.body = b""

    async def send(self, message: Message) -> None:
        """The ASGI ``send`` of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body"):
            self.body = message.get("body", b"")
        await self._send(message)
