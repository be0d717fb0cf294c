"""The bytes of an answer, read as they come. Pure: nothing here knows a socket or a clock.

The parser is httptools', as lenient with servers as aiohttp's. A reader serves all answers of a connection, one after
the other; after an error it is of no use. Interim answers (1xx) are skipped, trailers are dropped.
"""

from typing import Final

import httptools

from nemo_gym.servers.http_errors import BadAnswerError

MAX_FIELD: Final = 8190
MAX_FIELDS: Final = 128
MAX_HEAD: Final = 2**16

RawHeaders = list[tuple[bytes, bytes]]


class RawAnswer:
    """An answer as it came, nothing decoded."""

    __slots__ = ("body", "headers", "reason", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self.reason = self.body = b""


class AnswerReader:
    """Takes bytes in parts of any size and gives an answer when it is whole.

    The parser calls straight into lists where it can, because a call of a Python function costs more than the parsing.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_complete",
        "_parser",
        "_reason",
        "_received",
        "_tickets",
        "keep_alive",
        "limit",
        "on_body",
        "on_message_begin",
        "on_status",
    )

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        # Whether the server keeps the connection open after the answer that was read last.
        self.keep_alive = False
        self._answer = RawAnswer()
        self._complete = False
        self._received = 0
        self._reason: list[bytes] = []
        self.on_status = self._reason.append
        self._body: list[bytes] = []
        self.on_body = self._body.append
        # One for each answer that may begin: for want of it the parser stops at a second one.
        self._tickets = [None]
        self.on_message_begin = self._tickets.pop
        self._parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    @property
    def started(self) -> bool:
        """Whether the head of an answer is there, but not yet its end."""
        return self._answer.status >= 200

    def feed(self, data: bytes) -> RawAnswer | None:
        """Read on; the answer if this was its end."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.keep_alive = False
        except httptools.HttpParserError as error:
            self.keep_alive = False
            if not self._complete:  # else it is what follows the answer that can't be read
                cause = error.__context__
                raise cause if isinstance(cause, BadAnswerError) else BadAnswerError(str(error)) from error
        if self._complete:
            return self._take()
        if self._received > MAX_HEAD and not self._answer.status:
            raise BadAnswerError(f"more than {MAX_HEAD} bytes of headers")
        if self.limit is not None and self._received > self.limit + MAX_HEAD:
            raise BadAnswerError(f"more than {self.limit} bytes")
        return None

    def end(self) -> RawAnswer | None:
        """The server sends no more; the answer if it has no other end than that."""
        if not self.started or any(_is_framing(name.lower(), value) for name, value in self._answer.headers):
            return None
        self.keep_alive = False
        return self._take()

    def close(self) -> None:
        """Let go of the parser, which refers back to this object."""
        del self._parser

    def _take(self) -> RawAnswer:
        """Give the answer away and be ready for the next."""
        answer = self._answer
        answer.reason = b"".join(self._reason)
        answer.body = b"".join(self._body)
        self._answer = RawAnswer()
        self._complete = False
        self._received = 0
        self._reason.clear()
        self._body.clear()
        self._tickets.append(None)
        if self.limit is not None and len(answer.body) > self.limit:
            raise BadAnswerError(f"more than {self.limit} bytes")
        return answer

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        answer = self._answer
        if b"\0" in value:
            raise BadAnswerError("a null byte in a header")
        if not answer.status:
            answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        answer = self._answer
        if len(answer.headers) > MAX_FIELDS:
            raise BadAnswerError(f"more than {MAX_FIELDS} headers")
        if self._received > MAX_FIELD and any(len(name) + len(value) > MAX_FIELD for name, value in answer.headers):
            raise BadAnswerError(f"a header of more than {MAX_FIELD} bytes")
        answer.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """An answer is whole; interim ones are not what we wait for."""
        if self._answer.status >= 200 or self._answer.status == 101:
            self._complete = True
        else:
            self._answer = RawAnswer()
            self._reason.clear()
            self._tickets.append(None)


def _is_framing(name: bytes, value: bytes) -> bool:
    return name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower())
