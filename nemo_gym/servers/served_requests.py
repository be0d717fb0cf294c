"""Counts the requests of other processes to the servers of this one, for ``GET /metrics`` of the head server.

Counting begins with the first scrape; until then nothing is imported, wrapped or measured. Servers in separate
processes are not included here; a collector counts the calls to all servers.
"""

from collections.abc import Mapping, MutableMapping
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.config.keys import RESPONSES_API_AGENTS
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.steps.recording import ROOT, Span, current_span, describe_callee, first_span, open_span

if TYPE_CHECKING:
    from nemo_gym.servers.prometheus_metrics import RunMeters

RUN_PATH: Final = "/run"


class ServedMetrics:
    """The metrics of a hosted Gym, created when they are first requested."""

    def __init__(self, apps: MutableMapping[int, ASGIApp], servers: Mapping[int, LocalServer]) -> None:
        self._apps = apps
        self._servers = servers
        self._meters: RunMeters | None = None

    def __call__(self) -> "RunMeters":
        """The metrics; raises ModuleNotFoundError if the extra is not installed."""
        if self._meters is None:
            meters: RunMeters = import_module("nemo_gym.servers.prometheus_metrics").RunMeters()
            self._meters = meters
            meters.watch_lag()
            for port, server in self._servers.items():
                self._apps[port] = CountedServer(server, meters)
        return self._meters

    def close(self) -> None:
        """Stop measuring."""
        if self._meters is not None:
            self._meters.close()


class CountedServer:
    """A server that counts requests from other processes, and the calls that it makes to answer them."""

    def __init__(self, server: LocalServer, meters: "RunMeters") -> None:
        self._server = server
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._server(scope, receive, send)
            return
        asked = open_span()  # set if the caller also asked for the steps
        span = asked or first_span()
        answer = _Watched(send)
        token = current_span.set(span)
        began = perf_counter_ns()
        is_rollout = self._server.server_type == RESPONSES_API_AGENTS and scope["path"] == RUN_PATH
        if is_rollout:
            self._meters.in_flight.inc()
        try:
            await self._server(scope, receive, answer.send)
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
