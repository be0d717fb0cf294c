"""Which host names requests may use, so that no web page can reach a local port through the user's browser.

A page of a foreign site may point its own name at this machine (DNS rebinding), or send requests from its own origin. A
browser then says so in ``Host`` and ``Origin``, and no page can change these headers. Addresses can't be pointed
elsewhere, so any of them counts where a port is reachable by one.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers

ANY_ADDRESS: Final = "<address>"  # in hosts: whatever is an IP address, which no name server can point elsewhere
_HOST: Final = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def host_names(hosts: Iterable[str], *, further: Iterable[str] = ()) -> frozenset[str]:
    """The names that requests may use for servers that listen on these hosts."""
    listening = {host.lower() for host in hosts}
    names = LOOPBACK | listening | {name.lower() for name in further}
    if all(map(is_loopback, listening)):
        return names
    return names | {socket.gethostname().lower(), socket.getfqdn().lower(), ANY_ADDRESS}


def foreign_name(headers: Headers, hosts: frozenset[str]) -> str | None:
    """What makes a request foreign, in words: its host or its origin. None if both are ours."""
    named = headers.getlist("host")
    if len(named) != 1 or not is_allowed(named[0], hosts):
        return f"the host {', '.join(named)!r}"
    foreign = [origin for origin in headers.getlist("origin") if not is_allowed(origin.partition("://")[2], hosts)]
    return f"pages of {foreign[0]!r}" if foreign else None


def is_allowed(host: str, hosts: frozenset[str]) -> bool:
    """Whether a Host header, with or without its port, is one of ours."""
    name = host.lower()
    match = _HOST.fullmatch(name)
    bare = (match["address"] or match["name"]) if match else ""
    return name in hosts or bare in hosts or (ANY_ADDRESS in hosts and _is_address(bare))


def is_loopback(host: str) -> bool:
    """Whether an address to listen on cannot be reached from elsewhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
