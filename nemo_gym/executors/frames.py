"""The messages between the collector and its workers: frames of a JSON head and raw bytes, sent over a socket.

    ┌──────────────┬──────────────┬───────────┬───────────┐
    │ head: 4 bytes│ body: 4 bytes│ head      │ body      │
    └──────────────┴──────────────┴───────────┴───────────┘

The body is a line from or for a file, and is passed on without being parsed. A peer that has not authenticated yet may
send only small frames (``limit``).
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from nemo_gym.io.json import decode, encode
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout, Vanished
from nemo_gym.schemas.record import Usage
from nemo_gym.schemas.rows import RolloutKey

LENGTHS = struct.Struct("<II")
MOST_BYTES = 1 << 33  # of a frame; in effect no limit, because two lengths of 32 bits add up to about that


class Frame(NamedTuple):
    """One message."""

    head: dict[str, Any]
    body: bytes = b""

    def encode(self) -> bytes:
        head = encode(self.head)
        return LENGTHS.pack(len(head), len(self.body)) + head + self.body


class Connection(asyncio.Protocol):
    """One end of the socket. Frames sent in the same iteration of the event loop are written together."""

    def __init__(self, on_frame: Callable[[Frame], None], *, limit: int = MOST_BYTES) -> None:
        self.on_frame = on_frame
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self.received_at = self._loop.time()  # when data last arrived
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._to_send: list[bytes] = []
        self._is_over = False  # closed, perhaps before it was opened
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have another class
        if not self.opened.done():  # whoever waited for it may have been cancelled
            self.opened.set_result(None)
        if self._is_over:
            self._transport.abort()

    @property
    def end(self) -> socket.socket | None:
        """The underlying socket, for setting its options."""
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Pass all complete frames to the callback."""
        self.received_at = self._loop.time()
        self._received += data
        position, size = 0, len(self._received)
        while size - position >= LENGTHS.size:
            head_size, body_size = LENGTHS.unpack_from(self._received, position)
            head = position + LENGTHS.size
            body, end = head + head_size, head + head_size + body_size
            if end - position > self.limit:  # before anything is buffered that the peer may not send
                self.abort()
                return
            if end > size:
                break
            frame = self._frame(head, body, end)
            if frame is None:
                return
            position = end
            self.on_frame(frame)
        del self._received[:position]

    def _frame(self, head: int, body: int, end: int) -> Frame | None:
        """The frame at this position; if it is not valid, abort the connection and return None."""
        try:
            content = decode(bytes(self._received[head:body]))
        except ValueError:
            content = None
        if not isinstance(content, dict):
            self.abort()
            return None
        return Frame(content, bytes(self._received[body:end]))

    def send(self, frame: bytes) -> None:
        """Send together with the other frames of this iteration of the event loop."""
        # Hundreds of rollouts may start in the same iteration, and one system call is enough for all of them.
        if not self._to_send:
            self._loop.call_soon(self._flush)
        self._to_send.append(frame)

    def close(self) -> None:
        """Send the waiting frames, then close the socket."""
        self._is_over = True
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; frames that have not been sent are lost."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        frames, self._to_send = self._to_send, []
        if frames and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(frames))


async def open_connection(end: socket.socket, on_frame: Callable[[Frame], None]) -> Connection:
    """Start using one end of the socket."""
    end.setblocking(False)
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(on_frame), sock=end)
    return connection


async def next_frame(frames: "asyncio.Queue[Frame]", connection: Connection) -> Frame | None:
    """The next frame that ``connection`` puts into the queue; None if the connection closes first."""
    first = asyncio.create_task(frames.get())
    either: set[asyncio.Future[Any]] = {first, connection.closed}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return first.result() if first.done() else None
    finally:
        first.cancel()


def encode_planned(number: int, planned: PlannedRollout) -> bytes:
    """The frame that asks a worker to run a rollout."""
    head = {
        "number": number,
        "key": list(planned.key),
        "agent": planned.agent,
        "attempt": planned.attempt,
        "last_attempt": planned.last_attempt,
    }
    return Frame(head, planned.text or encode(planned.row)).encode()


def decode_planned(frame: Frame) -> PlannedRollout:
    """The rollout that a frame asks for."""
    head = frame.head
    return PlannedRollout(
        RolloutKey(*head["key"]), head["agent"], decode(frame.body), head["attempt"], head["last_attempt"]
    )


def encode_outcome(number: int, outcome: Outcome) -> bytes:
    """The frame that reports to the collector how a rollout ended."""
    head: dict[str, Any] = {"number": number, "kind": type(outcome).__name__, "seconds": outcome.seconds}
    match outcome:
        case Completed(reward=reward):
            head["reward"], head["usage"] = reward, outcome.usage and list(outcome.usage)
            if outcome.masked:
                head["masked"] = True
        case Failed(failure=failure):
            head["failure"], head["usage"] = asdict(failure), outcome.usage and list(outcome.usage)
        case Vanished(kind=kind):
            head["class"] = kind
    if outcome.steps:
        head["steps"] = len(outcome.steps)
    return Frame(head, outcome.line + outcome.steps).encode()


def _usage(sent: Sequence[Any]) -> Usage:
    read, written, cached, judges = sent
    return Usage(read, written, cached, [(name, _usage(used)) for name, used in judges])


def decode_outcome(frame: Frame, planned: PlannedRollout) -> Outcome:
    """The outcome in a frame."""
    head, end = frame.head, len(frame.body) - frame.head.get("steps", 0)
    line, steps = frame.body[:end], frame.body[end:]
    usage = _usage(head["usage"]) if head.get("usage") else None
    match head["kind"]:
        case "Completed":
            return Completed(planned, line, head["seconds"], head["reward"], usage, "masked" in head, steps=steps)
        case "Failed":
            return Failed(planned, line, head["seconds"], Failure(**head["failure"]), usage, steps=steps)
        case _:
            return Vanished(planned, line, head["seconds"], head["class"], steps=steps)
