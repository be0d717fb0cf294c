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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from urllib.request import getproxies_environment

from nemo_gym import __version__
from nemo_gym.errors import ConfigError
from nemo_gym.servers.event_loop import Deadlines
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
USER_AGENT: Final = f"rollout-gym/{__version__}"
# The versions whose undocumented parts are used here and in ``posting``; pyproject.toml asks for one of them.
KNOWN_AIOHTTP: Final = (3, 14)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits of the connection pool (0: no limit); requests beyond them wait for a connection."""

    connections: int = 102_400
    connections_per_host: int = 16_384
    # Shorter than the timeout of most servers, so that we close idle connections before they do.
    keepalive_s: float = 15.0
    # Longer answers are errors: no model or tool sends that much on purpose.
    max_answer_bytes: int = 2**30


@dataclass(slots=True)
class LoopClient:
    """The settings, session and proxies of one event loop."""

    settings: HttpSettings
    session: "aiohttp.ClientSession | None" = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    proxies: dict[str, str] = field(default_factory=getproxies_environment)

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
    return HttpSettings(-(-total // workers), -(-per_host // workers))


def _limit(config: Mapping[str, Any], key: str, default: int) -> int:
    limit = config.get(key)
    if limit is None:
        return default
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ConfigError(f"{key} is {limit!r}", hint="give a number of connections; 0 means no limit")
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
def knows_aiohttp() -> bool:
    """Whether undocumented parts of aiohttp may be used. With another version, everything goes the documented way."""
    if aiohttp.__version__.split(".")[:2] == [str(part) for part in KNOWN_AIOHTTP]:
        return True
    known = ".".join(map(str, KNOWN_AIOHTTP))
    logger.warning(
        "aiohttp %s is installed, but requests were only tested with %s. They are sent in a slower way, and what "
        "arrives late on an idle connection may be taken for another answer. Try: pip install 'aiohttp~=%s.0'",
        *(aiohttp.__version__, known, known),
    )
    return False


@cache
def request_class() -> "type[aiohttp.ClientRequest]":
    """The class of requests with our default headers."""
    headers = {aiohttp.hdrs.ACCEPT: "*/*", aiohttp.hdrs.USER_AGENT: USER_AGENT}

    class Request(aiohttp.ClientRequest):
        # Set on the class, because headers that a session adds or leaves out are computed again for every request.
        # No Accept-Encoding: answers are small and mostly local, so compressing them costs more than it saves.
        DEFAULT_HEADERS = headers

    return Request


def _open_session(settings: HttpSettings) -> "aiohttp.ClientSession":
    return aiohttp.ClientSession(
        connector=(_watched_connector if knows_aiohttp() else aiohttp.TCPConnector)(
            limit=settings.connections,
            limit_per_host=settings.connections_per_host,
            keepalive_timeout=settings.keepalive_s,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        request_class=request_class(),
    )


def _watched_connector(**options: Any) -> "aiohttp.TCPConnector":
    """A connector that notes waits for a connection and does not reuse connections on which something arrived."""
    from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415 - like aiohttp itself

    class Handler(ResponseHandler):
        def is_connected(self) -> bool:
            # Data that arrived while no request was waiting (some servers send a 408 before they close an idle
            # connection) must not be taken for the answer to the next request.
            return super().is_connected() and not self.should_close

    class Connector(aiohttp.TCPConnector):
        # aiohttp's public hooks cost every request something; this one is called only if all connections are in use.
        async def _wait_for_available_connection(self, key: Any, traces: Any) -> None:
            since = perf_counter()
            try:
                await super()._wait_for_available_connection(key, traces)
            finally:
                note_wait(since, "connection")

    connector = Connector(**options)
    # aiohttp has no public way to set this; a test notices if it stops working.
    handler: Callable[..., ResponseHandler] = Handler
    connector._factory = partial(handler, loop=asyncio.get_running_loop())  # noqa: SLF001
    return connector
