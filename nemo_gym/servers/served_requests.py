"""Counts the requests of other processes to the servers of a Gym, for ``GET /metrics`` of the head server.

Counting begins with the first scrape; until then nothing is imported, wrapped or measured. Every process counts what
its own servers are asked. The head server asks the others through sockets in a private folder, because the workers of a
server share its port. A request whose caller counts it is not counted again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, closing, suppress
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config.keys import RESPONSES_API_AGENTS
from nemo_gym.steps.recording import ROOT, Span, current_span, describe_callee, first_span, open_span

if TYPE_CHECKING:
    from nemo_gym.servers.prometheus_metrics import RunMeters

RUN_PATH: Final = "/run"
FOLDER_VARIABLE: Final = "NEMO_GYM_METRICS_DIR"
SCRAPED: Final = "scraped"  # a file in that folder, from the first scrape on
ANSWER_S: Final = 2.0  # for a process that is too busy to answer; the scrape then goes without it


class ServedName(NamedTuple):
    """A server as metrics name it."""

    name: str
    server_type: str


class ServedMetrics:
    """The metrics of the servers of this process, created when they are first requested.

    ``others`` is the folder with the sockets of the other processes of the Gym.
    """

    def __init__(
        self, apps: MutableMapping[int, ASGIApp], servers: Mapping[int, ServedName], *, others: Path | None = None
    ) -> None:
        self._apps = apps
        self._servers = servers
        self._others = others
        self._meters: RunMeters | None = None

    def __call__(self) -> "RunMeters":
        """The metrics of this process; raises ModuleNotFoundError if the extra is not installed."""
        if self._meters is None:
            meters: RunMeters = import_module("nemo_gym.servers.prometheus_metrics").RunMeters()
            self._meters = meters
            meters.watch_lag()
            for port, server in self._servers.items():
                self._apps[port] = CountedServer(self._apps[port], server, meters)
        return self._meters

    async def page(self, accept: str) -> Response:
        """The metrics of all processes, in the format that the scraper asks for."""
        meters = self()
        told: list[str] = []
        if self._others is not None:
            (self._others / SCRAPED).touch()  # first, so that a process that is just starting misses nothing
            told = await asyncio.gather(*map(_ask, sorted(self._others.glob("*.sock"))))
        return meters.page(accept, [text for text in told if text])

    def close(self) -> None:
        """Stop measuring."""
        if self._meters is not None:
            self._meters.close()


async def _ask(path: Path) -> str:
    """What another process has counted; empty if it is gone, does not answer or can't count."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                return (await reader.read()).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


@asynccontextmanager
async def answering_for_metrics(
    apps: MutableMapping[int, ASGIApp], port: int, server: ServedName
) -> AsyncIterator[None]:
    """Tell the head server what the server of this process was asked, if a head server wants to know."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        yield
        return

    with closing(ServedMetrics(apps, {port: server})) as metrics:

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ModuleNotFoundError):  # the environment of this server may not have prometheus-client
                writer.write(metrics().text().encode())
            writer.close()

        async with await asyncio.start_unix_server(answer, Path(folder) / f"{os.getpid()}.sock"):
            if (Path(folder) / SCRAPED).exists():  # before this process could be asked
                with suppress(ModuleNotFoundError):
                    metrics()
            yield


class CountedServer:
    """A server that counts requests from other processes, and the calls that it makes to answer them."""

    def __init__(self, app: ASGIApp, server: ServedName, meters: "RunMeters") -> None:
        self._app = app
        self._server = server
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        asked = open_span()  # set if the caller also asked for the steps
        counts = asked is None or not asked.trail.is_counted
        if scope["type"] != "http" or scope["method"] != "POST" or not counts:
            await self._app(scope, receive, send)
            return
        span = asked or first_span()
        span.trail.is_counted = True
        answer = _Watched(send)
        token = current_span.set(span)
        began = perf_counter_ns()
        is_rollout = self._server.server_type == RESPONSES_API_AGENTS and scope["path"] == RUN_PATH
        if is_rollout:
            self._meters.in_flight.inc()
        try:
            await self._app(scope, receive, answer.send)
        finally:
            current_span.reset(token)
            if is_rollout:
                self._meters.in_flight.dec()
            self._count(scope["path"], span, answer, began, is_rollout=is_rollout)

    def _count(self, path: str, span: Span, answer: "_Watched", began: int, *, is_rollout: bool) -> None:
        meters, server = self._meters, self._server
        if is_rollout:
            failed = f"status_{answer.status or 'none'}" if not 200 <= answer.status < 400 else ""
            outcome = "failed" if failed else "completed"
            meters.count_rollout(server.name, outcome, (perf_counter_ns() - began) / 1e9, failed)
        else:
            callee = describe_callee(server.server_type, server.name, path, from_resources=False)
            request = first_span().begin(callee)  # which ends below, and nothing else happens in this context
            request.trail.zero = request.start = began
            if (note := span.trail.notes.get(ROOT)) is not None:
                request.trail.notes[0] = msgspec.structs.replace(note, step=0)
            request.end(answer.status, 0, answer.body)
            meters.count_steps(request.trail.steps())
        meters.count_steps(span.trail.steps())


class _Watched:
    """Notes the status of an answer, and its body if it comes in one piece."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.body = b""

    async def send(self, message: Message) -> None:
        """The ASGI ``send`` of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body"):
            self.body = message.get("body", b"")
        await self._send(message)
