"""Serves a library on a port: finds a free one, and decides who may connect."""

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.metrics.fields import PASS_THRESHOLD
from nemo_gym.servers.listen import bind, listening
from nemo_gym.view.app import build_app
from nemo_gym.view.guard import ANY_ADDRESS, LOOPBACK, is_loopback
from nemo_gym.view.library import Library

_PORTS_TRIED: Final = 100
_LAST_PORT: Final = 65_535
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not used


class ListenAddress(NamedTuple):
    """Where a viewer can be opened."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        host = socket.gethostname() if self.host in _EVERYWHERE else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


@asynccontextmanager
async def serving(
    library: Library, host: str, port: int, *, pass_threshold: float = PASS_THRESHOLD
) -> AsyncIterator[ListenAddress]:
    """Serve while the context lasts, on the port or the next free one. Beyond this machine only with a token."""
    listener = bind_free(host, port)
    bound = int(listener.getsockname()[1])
    token = None if is_loopback(host) else secrets.token_urlsafe(18)  # 144 bits: can't be guessed
    app = build_app(library, token=token, hosts=host_names(host), pass_threshold=pass_threshold)
    async with listening({bound: app}, [listener]):
        yield ListenAddress(host, bound, token)


def bind_free(host: str, port: int) -> socket.socket:
    """A socket on the port or, if it is taken, on the next free one."""
    _check(host)
    error = ConfigError(f"{port} is not a port", hint="+server_port=<0 to 65535>")
    for candidate in range(port, min(port + _PORTS_TRIED, _LAST_PORT + 1)):
        try:
            return bind(host, candidate, owner="the viewer")
        except ConfigError as found:
            error = found
    raise error


def host_names(host: str) -> frozenset[str]:
    """The host names that requests may use: those of this machine, and any address if it is reachable by one."""
    if is_loopback(host):
        return LOOPBACK | {host}
    return LOOPBACK | {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower(), ANY_ADDRESS}


def _check(host: str) -> None:
    """Refuse a host that is not an address of this machine, before any port is tried."""
    try:
        socket.getaddrinfo(host or None, None)
        bind(host, 0, owner="the viewer").close()
    except (OSError, ConfigError) as error:
        reason = str(error) if isinstance(error, ConfigError) else f"can't listen on {host!r}: {error.strerror}"
        raise ConfigError(reason, hint="+server_host=127.0.0.1, or an address of this machine") from None
