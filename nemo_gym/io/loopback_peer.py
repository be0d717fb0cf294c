"""Which user is at the other end of a connection inside this machine, as the kernel knows it.

Linux only: it is asked through netlink (``sock_diag``) for the one socket that has the addresses of the connection,
swapped. A socket that its program has closed already belongs to nobody, although the kernel then names user 0.
"""

import os
import socket
import struct
from functools import cache
from ipaddress import ip_address
from typing import Final

_NETLINK: Final = getattr(socket, "AF_NETLINK", None)
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20  # the type of the request and of its reply
_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=LHHLL")  # length, type, flags, number, port
_QUESTION: Final = struct.Struct("=BBBBL")  # family, protocol, extensions, padding, states
_SOCKET: Final = struct.Struct("!HH16s16s12s")  # both ports, both addresses, interface and cookie
_ANY_COOKIE: Final = b"\0\0\0\0" + b"\xff" * 8
_ANY_STATE: Final = 0xFFFFFFFF
_OWNER: Final = struct.Struct("=LL")  # user, inode
_OWNER_AT: Final = _HEADER.size + 4 + _SOCKET.size + 12
_WAIT_S: Final = 1.0  # the kernel replies at once


def user_of_peer(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The user whose program holds the other end, ``peer``, of a connection to ``own``; None if nobody can tell."""
    if _NETLINK is None:
        return None
    try:
        # A new socket each time: one that is kept would be shared with processes that are forked.
        with socket.socket(_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT_S)
            kernel.send(_question(peer, own))
            reply = kernel.recv(4096)
    except (OSError, ValueError):
        return None
    if len(reply) < _OWNER_AT + _OWNER.size or _HEADER.unpack_from(reply)[1] != _BY_FAMILY:
        return None
    user, inode = _OWNER.unpack_from(reply, _OWNER_AT)
    return int(user) if inode else None


@cache
def knows_users() -> bool:
    """Whether the kernel of this machine tells the users of connections; tried once, with one of our own."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        return user_of_peer(client.getsockname(), server.getsockname()) == os.geteuid()


def _question(peer: tuple[str, int], own: tuple[str, int]) -> bytes:
    source, target = (ip_address(host.removeprefix("::ffff:")) for host, _ in (peer, own))
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    sockets = _SOCKET.pack(peer[1], own[1], source.packed, target.packed, _ANY_COOKIE)
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + sockets
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body
