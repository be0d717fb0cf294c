"""Messages between the host and a box: a JSON head and the bytes that belong to it.

Both sides use it. The host limits the size of what it reads, because the output of a box can't be trusted.
"""

import json
import socket
from dataclasses import dataclass, field
from typing import Any, Final

_LENGTH: Final = 4
_MAX_HEAD: Final = 64 << 20


class BrokenMessageError(Exception):
    """The peer closed the connection in the middle of a message, or sent something that is not a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A head and its bytes."""

    head: dict[str, Any]
    blobs: list[bytes] = field(default_factory=list)

    def encode(self) -> bytes:
        """The message as it is sent."""
        head = json.dumps({**self.head, "blobs": [len(blob) for blob in self.blobs]}).encode()
        return b"".join((len(head).to_bytes(_LENGTH, "little"), head, *self.blobs))


class Decoder:
    """Assembles a message from the pieces that arrive. ``wanted`` is the number of bytes that are needed next."""

    def __init__(self, limit: int = _MAX_HEAD) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._head: dict[str, Any] | None = None
        self._sizes: list[int] = []
        self._has_length = False
        self.wanted = _LENGTH

    def feed(self, data: bytes) -> Message | None:
        """Take up to ``wanted`` bytes; returns the message once it is complete."""
        if not data:
            raise BrokenMessageError("the connection ended in the middle of a message")
        self._pieces.append(data)
        self.wanted -= len(data)
        return self._next(b"".join(self._pieces)) if self.wanted == 0 else None

    def _next(self, whole: bytes) -> Message | None:
        self._pieces.clear()
        if not self._has_length:
            self._has_length = True
            self._expect(int.from_bytes(whole, "little"))
            return None
        if self._head is None:
            self._head, self._sizes = _read_head(whole)
            if self._expect(sum(self._sizes)) > 0:
                return None
            whole = b""
        ends = [sum(self._sizes[: index + 1]) for index in range(len(self._sizes))]
        blobs = [whole[end - size : end] for end, size in zip(ends, self._sizes, strict=True)]
        return Message(self._head, blobs)

    def _expect(self, size: int) -> int:
        if size > self._limit:
            raise BrokenMessageError(f"a message of {size} bytes, more than the {self._limit} that are allowed")
        self.wanted = size
        return size


def receive(connection: socket.socket) -> Message:
    """Wait for a message on a blocking connection."""
    decoder = Decoder()
    while True:
        message = decoder.feed(connection.recv(min(decoder.wanted, 1 << 20)))
        if message is not None:
            return message


def _read_head(data: bytes) -> tuple[dict[str, Any], list[int]]:
    try:
        head = json.loads(data)
        sizes = head.pop("blobs")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BrokenMessageError(f"not a message: {error}") from None
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise BrokenMessageError("not a message: the sizes of its parts are not numbers")
    return head, sizes
