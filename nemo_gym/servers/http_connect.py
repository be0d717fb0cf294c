"""From an address to a connected socket: names are looked up, their addresses tried side by side.

What a name stands for is remembered for a short while, and concurrent callers share one lookup: a thousand connections
that open at once do not ask a thousand times.
"""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import aiohappyeyeballs

from nemo_gym.servers.http_errors import CannotConnectError, ClientClosedError, ConnectTimeoutError
from nemo_gym.servers.http_request import Address

NAMES_KNOWN_S: Final = 10.0
# How long an address has before the next one is tried as well.
HEAD_START_S: Final = 0.25

AddressInfo = tuple[Any, Any, int, str, Any]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a name stands for, or will turn out to."""

    answer: "asyncio.Task[list[AddressInfo]]"
    until: float


class Resolver:
    """Looks names up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lookups: dict[Address, Lookup] = {}

    async def resolve(self, address: Address) -> list[AddressInfo]:
        """All that a connection to the address can be tried with."""
        literal = _literal(address)
        if literal is not None:
            return [literal]
        lookup = self._lookups.get(address)
        if lookup is None or lookup.until < self._loop.time():
            task = self._loop.create_task(self._ask(address))
            # Whoever asked may be gone by the time it fails.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            lookup = self._lookups[address] = Lookup(task, self._loop.time() + NAMES_KNOWN_S)
        try:
            return await asyncio.shield(lookup.answer)
        except OSError:
            self._lookups.pop(address, None)
            raise
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if lookup.answer.cancelled() and not (caller and caller.cancelling()):
                raise ClientClosedError from None
            raise

    async def _ask(self, address: Address) -> list[AddressInfo]:
        return await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)

    def close(self) -> None:
        """Stop asking."""
        for lookup in self._lookups.values():
            lookup.answer.cancel()
        self._lookups.clear()


def _literal(address: Address) -> AddressInfo | None:
    try:
        version = ip_address(address.host).version
    except ValueError:
        return None
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address.host, address.port))


async def open_socket(resolver: Resolver, address: Address, timeout_s: float | None) -> socket.socket:
    """A connected socket; both kinds of failure tell that nothing was sent."""
    try:
        async with asyncio.timeout(timeout_s):
            infos = await resolver.resolve(address)
            connected = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=HEAD_START_S, interleave=1)
    except OSError as error:
        if isinstance(error, TimeoutError) and error.errno is None:  # ours, not the system's
            raise ConnectTimeoutError(timeout_s) from error
        raise CannotConnectError(error) from error
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
