"""One plain connection: a request goes out, its answer comes in, one at a time.

A connection knows by itself whether it may carry another request (``reusable``); every error ends it, and so does
anything that comes unasked. An answer has a deadline, however slowly it drips in.
"""

import asyncio
from typing import Final, cast

from nemo_gym.servers.http_answer import AnswerReader, RawAnswer
from nemo_gym.servers.http_errors import (
    BadAnswerError,
    BrokenOffError,
    ClientClosedError,
    ConnectionLostError,
    DisconnectedError,
)

# Up to this size a body is sent in one piece with its head; beyond it in slices, as fast as the server takes them.
SLICE: Final = 2**16


class Connection(asyncio.Protocol):
    """An open connection; ``send`` is its only verb."""

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_deadline",
        "_loop",
        "_paused",
        "_reader",
        "_transport",
        "_unsent",
        "_waiter",
        "closed",
        "idle_until",
        "silent",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int | None = None) -> None:
        self._loop = loop
        self._reader = AnswerReader(limit)
        self._transport: asyncio.WriteTransport | None = None
        self._waiter: asyncio.Future[RawAnswer] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._deadline: float | None = None
        self._paused = False
        self._unsent = memoryview(b"")
        self.closed: asyncio.Future[None] = loop.create_future()
        self.idle_until = 0.0
        # No byte of an answer came: the server may never have seen the request.
        self.silent = True

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent: the last one was answered, and neither side wants to close."""
        return self._reader.keep_alive and self._transport is not None and self._waiter is None and not self._unsent

    def send(self, head: bytes, body: bytes, deadline: float | None) -> "asyncio.Future[RawAnswer]":
        """Send a request; the whole answer is to come."""
        answer = self._waiter = self._loop.create_future()
        transport = self._transport
        if transport is None:
            self._fail(DisconnectedError())
            return answer
        self.silent = True
        self._deadline = deadline
        if deadline is not None and (self._alarm is None or deadline < self._alarm_at):
            self._set_alarm(deadline)
        if len(body) <= SLICE:
            transport.write(head + body)
        else:
            transport.write(head)
            self._unsent = memoryview(body)
            self._send_more()
        return answer

    def _send_more(self) -> None:
        """Send of a large body what the server takes."""
        while self._unsent and not self._paused and self._transport is not None:
            self._transport.write(self._unsent[:SLICE])
            self._unsent = self._unsent[SLICE:]

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; a request that is under way fails."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._fail(error or ClientClosedError())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for a request."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self.silent = False
        if self._waiter is None:
            self.abort()
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswerError as error:
            self.abort(error)
            return
        if answer is not None:
            self._finish(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the connection: the end of some answers, and the loss of others."""
        self._transport = None
        if self._waiter is not None:
            self._end(exc)
        if self._alarm is not None:
            self._alarm.cancel()
        self._reader.close()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The server takes less than there is."""
        self._paused = True

    def resume_writing(self) -> None:
        """The server takes more."""
        self._paused = False
        self._send_more()

    def _finish(self, answer: RawAnswer) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _end(self, error: Exception | None) -> None:
        try:
            answer = self._reader.end() if error is None else None
        except BadAnswerError as bad:
            self._fail(bad)
            return
        if answer is not None:
            self._finish(answer)
        else:
            self._fail(self._loss(error))

    def _loss(self, error: Exception | None) -> Exception:
        if self._reader.started:
            return BrokenOffError("the connection was lost in the middle of the answer")
        return ConnectionLostError(error) if error is not None else DisconnectedError()

    def _set_alarm(self, when: float) -> None:
        """Have one timer for many requests: it is only ever moved forward, and looks at the deadline when it rings."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._ring)
        self._alarm_at = when

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None or self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._set_alarm(self._deadline)
        else:
            self.abort(TimeoutError())
