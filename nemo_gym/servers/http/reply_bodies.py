"""Reads the bodies of replies within limits, so that no endpoint can fill the memory of a run.

A reply may have ``max_answer_bytes``, counted after decompression; a longer one is refused, and what was read of it is
freed at once, even while somebody keeps the error. Servers of a Gym are our own, and their replies may be longer: a
rollout contains many completions.

All long replies of an event loop share a budget. Whoever goes beyond ``UNCOUNTED_BYTES`` first takes what the whole
reply may need, and waits if others hold that much; its connection is not read meanwhile. So replies can't wait for each
other half-read, and bodies that are short, as nearly all are, cost nothing.
"""

import asyncio
import io
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from nemo_gym.servers.http.connections import aiohttp, loop_client, request_errors
from nemo_gym.servers.http.reply import HttpReply

INTERNAL_BYTES: Final = 2**30
UNCOUNTED_BYTES: Final = 2**20
# How many replies of the largest size may be read at once.
LARGEST_AT_ONCE: Final = 4


class ReplyBudget:
    """Bytes that are shared by the long replies of one event loop, first come, first served."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Hold this many bytes, or all of them if it is more than there are."""
        size = min(size, self._total)
        await self._take(size)
        try:
            yield
        finally:
            self._free += size
            self._serve()

    async def _take(self, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had just been served
                self._free += size
            self._serve()
            raise

    def _serve(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            size, turn = self._waiting.popleft()
            if not turn.done():  # else whoever waited has left
                self._free -= size
                turn.set_result(None)


async def read_reply(response: "aiohttp.ClientResponse", *, internal: bool = False) -> HttpReply:
    """Read the whole body; refuse one that is too long."""
    most = loop_client().settings.max_reply_bytes
    limit = max(INTERNAL_BYTES, most) if internal else most
    try:
        body: bytes | None = await response.content.readany()
        if not response.content.at_eof():  # as hardly ever
            body = await _read_rest(response, body or b"", limit)
        elif len(body or b"") > limit:
            body = None
    except BaseException:
        response.close()
        raise
    if body is None:
        response.close()
        raise request_errors.ReplyTooLargeError(limit)
    return HttpReply(response, body)


def _declared_size(response: "aiohttp.ClientResponse") -> int | None:
    """How long the body will be; None if the reply does not say it, or is compressed."""
    return None if response.headers.get("Content-Encoding") else response.content_length


async def _read_rest(response: "aiohttp.ClientResponse", beginning: bytes, limit: int) -> bytes | None:
    """The whole body, given its beginning; None if it is longer than the limit."""
    declared = _declared_size(response)
    if declared is not None and declared > limit:
        return None
    content = response.content
    buffer = io.BytesIO()
    try:
        buffer.write(beginning)
        beginning = b""
        await _read_on(content, buffer, min(limit, UNCOUNTED_BYTES))
        if not content.at_eof() and buffer.tell() <= limit:
            async with _budget().holding(declared or limit):
                await _read_on(content, buffer, limit)
        return buffer.getvalue() if buffer.tell() <= limit else None
    finally:
        # An error keeps the variables of every function that it passed, for as long as somebody keeps the error.
        buffer.close()


async def _read_on(content: "aiohttp.StreamReader", buffer: io.BytesIO, limit: int) -> None:
    """Read until the end or until there is more than the limit."""
    while not content.at_eof() and buffer.tell() <= limit:
        buffer.write(await content.readany())


def _budget() -> ReplyBudget:
    client = loop_client()
    if client.reply_budget is None:
        client.reply_budget = ReplyBudget(LARGEST_AT_ONCE * client.settings.max_reply_bytes)
    budget: ReplyBudget = client.reply_budget
    return budget
