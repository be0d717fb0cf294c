"""The aiohttp session of each event loop: its connection limits, when it opens and when it closes.

A session opens with the first request, which also imports aiohttp, and is closed by the code that runs the loop. Its
settings come from the configuration and can be changed until it opens. It stores no cookies; callers pass them on.

Importing aiohttp takes longer than importing all our own modules of a collection, and many commands never send a
request, so nothing here imports it before it is used. Other modules write
``from nemo_gym.servers.http.connections import aiohttp`` and use it as usual inside functions.
``except aiohttp.ClientError`` works too, because Python looks the class up only when something was raised. Annotations
must be quoted. ``request_errors`` is our own module of exceptions, which are subclasses of aiohttp's.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from urllib.request import getproxies_environment

from nemo_gym import __version__
from nemo_gym.errors import ConfigError
from nemo_gym.servers.http.deadlines import Deadlines
from nemo_gym.steps.recording import note_wait

if TYPE_CHECKING:
    # An alias tells type checkers that other modules may import the name from here.
    import aiohttp as aiohttp  # noqa: PLC0414

    from nemo_gym.servers.http import request_errors as request_errors  # noqa: PLC0414
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(import_module(self._name), attribute)
            # Stored, so that the next access is an ordinary attribute look-up.
            setattr(self, attribute, found)
            return found

    aiohttp = _LazyModule("aiohttp")
    request_errors = _LazyModule("nemo_gym.servers.http.request_errors")


logger = logging.getLogger(__name__)

LIMIT_KEY: Final = "global_aiohttp_connector_limit"
LIMIT_PER_HOST_KEY: Final = "global_aiohttp_connector_limit_per_host"
MAX_REPLY_KEY: Final = "max_answer_bytes"
UNLIMITED: Final = 2**62
USER_AGENT: Final = f"rollout-gym/{__version__}"
# Idle connections on which something arrived are dropped, one after the other. A server that sends before it gets a
# request would make us connect for ever.
MOST_DROPPED: Final = 100


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits of the connection pool (0: no limit); requests beyond them wait for a connection."""

    connections: int = 102_400
    connections_per_host: int = 16_384
    # Shorter than the timeout of most servers, so that we close idle connections before they do.
    keepalive_s: float = 15.0
    # Longer replies from outside the Gym are errors: no endpoint sends that much on purpose.
    max_reply_bytes: int = 2**26

    @property
    def is_limited(self) -> bool:
        """Whether somebody set a limit. The defaults are beyond what one process can use."""
        defaults = HttpSettings()
        limits = (self.connections, defaults.connections), (self.connections_per_host, defaults.connections_per_host)
        return any(0 < limit < default for limit, default in limits)


@dataclass(slots=True)
class LoopClient:
    """The settings, session and proxies of one event loop."""

    settings: HttpSettings
    session: "aiohttp.ClientSession | None" = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    proxies: dict[str, str] = field(default_factory=getproxies_environment)
    reply_budget: Any = None  # what long replies share (``reply_bodies``)

    def open_session(self) -> "aiohttp.ClientSession":
        """The session, opened now if it is not open yet."""
        if self.session is None or self.session.closed:
            if self not in _clients.values():
                raise request_errors.ClientClosedError
            self.session = _open_session(self.settings)
        return self.session


# The only state of this module: attributes cannot be set on every event loop.
_clients: Final[dict[asyncio.AbstractEventLoop, LoopClient]] = {}


def settings_of(config: Mapping[str, Any], *, workers: int = 1) -> HttpSettings:
    """The limits that a configuration asks for, divided among the worker processes of a server."""
    defaults = HttpSettings()
    total = _limit(config, LIMIT_KEY, defaults.connections)
    per_host = _limit(config, LIMIT_PER_HOST_KEY, defaults.connections_per_host)
    longest = _limit(config, MAX_REPLY_KEY, defaults.max_reply_bytes, unit="bytes") or UNLIMITED
    return HttpSettings(-(-total // workers), -(-per_host // workers), max_reply_bytes=longest)


def _limit(config: Mapping[str, Any], key: str, default: int, *, unit: str = "connections") -> int:
    limit = config.get(key)
    if limit is None:
        return default
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ConfigError(f"{key} is {limit!r}", hint=f"give a number of {unit}; 0 means no limit")
    return limit


def loop_client() -> LoopClient:
    """The client of the running loop."""
    loop = asyncio.get_running_loop()
    client = _clients.get(loop)
    if client is None:
        client = _clients[loop] = LoopClient(HttpSettings())
    return client


def use_http_settings(settings: HttpSettings) -> None:
    """Use these settings for the session of the running loop, unless it is already open."""
    client = loop_client()
    if client.session is None:
        client.settings = settings


def get_global_aiohttp_client(settings: HttpSettings | None = None) -> "aiohttp.ClientSession":
    """The session of the running loop, opened now if necessary. Settings matter only when it opens."""
    if settings is not None:
        use_http_settings(settings)
    return loop_client().open_session()


async def close_http_client() -> None:
    """Close the connections of the running loop, if it has any; requests under way fail."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None and client.session is not None:
        await client.session.close()
        # Transports close in the next iteration of the loop, which might not take place without this.
        await asyncio.sleep(0)


@cache
def request_class() -> "type[aiohttp.ClientRequest]":
    """The class of requests with our default headers."""
    headers = {aiohttp.hdrs.ACCEPT: "*/*", aiohttp.hdrs.USER_AGENT: USER_AGENT}

    class Request(aiohttp.ClientRequest):
        # Set on the class, because headers that a session adds or leaves out are computed again for every request.
        # No Accept-Encoding: replies are small and mostly local, so compressing them costs more than it saves.
        DEFAULT_HEADERS = headers

    return Request


def _open_session(settings: HttpSettings) -> "aiohttp.ClientSession":
    return aiohttp.ClientSession(
        connector=_connector_class()(
            limit=settings.connections,
            limit_per_host=settings.connections_per_host,
            keepalive_timeout=settings.keepalive_s,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        request_class=request_class(),
        # aiohttp then reports every step of every request, which costs a fifth of a request.
        trace_configs=[_noting_waits()] if settings.is_limited else None,
    )


def _noting_waits() -> "aiohttp.TraceConfig":
    """Notes how long a request waits because all connections are in use."""

    async def begin(_session: object, context: Any, _params: object) -> None:
        context.since = perf_counter()

    async def end(_session: object, context: Any, _params: object) -> None:
        note_wait(context.since, "connection")

    config = aiohttp.TraceConfig()
    config.on_connection_queued_start.append(begin)
    config.on_connection_queued_end.append(end)
    return config


@cache
def _connector_class() -> "type[aiohttp.TCPConnector]":
    class Connector(aiohttp.TCPConnector):
        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 - aiohttp's signature
            """A connection on which nothing arrived while it was idle.

            Some servers send a 408 before they close an idle connection. It must not become the reply to the next
            request.
            """
            connection = await super().connect(req, traces, timeout)
            for _ in range(MOST_DROPPED):
                # aiohttp closes connections to proxies anyway, and some releases mark them before they are used.
                if req.proxy or connection.protocol is None or not connection.protocol.should_close:
                    break
                connection.close()
                connection = await super().connect(req, traces, timeout)
            return connection

    return Connector
