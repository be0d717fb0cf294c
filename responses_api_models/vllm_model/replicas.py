"""Several endpoints of one model: a session stays with its endpoint until that fails.

Staying matters because an inference server caches the prompts it has seen. An endpoint that cannot be reached, or
reports that it cannot serve, gets no requests for a while, and its health is checked before it gets work again; its
sessions move to the next one. Every call is tried a bounded number of times.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import aiohttp

from nemo_gym.conversion.reading import unwrapped_error
from nemo_gym.servers.http.deadlines import not_counted
from nemo_gym.servers.http.reply import HttpReply
from nemo_gym.servers.http.request_errors import RequestFailedError, RequestTimeoutError
from nemo_gym.servers.http.retry import RetryPolicy, retry_after_seconds
from nemo_gym.servers.models.completion_reader import CompletionReader
from nemo_gym.servers.models.endpoint import FIRST_ATTEMPTS, RETRY_ERROR_CODES, Endpoint
from nemo_gym.servers.models.failures import ModelAddress, ModelErrorKind, is_out_of_quota
from responses_api_models.vllm_model.queue_depth import QueueGauge

logger = logging.getLogger(__name__)

# A gateway without a server behind it, a server without an engine.
GONE: Final = frozenset({502, 503})
REST_S: Final = 5.0
REMEMBERED_SESSIONS: Final = 65_536
QUEUE_HINT: Final = "the endpoint is overloaded: send fewer requests at once, add endpoints, or raise max_queue_depth"

# How vLLM, SGLang and llama.cpp say that a prompt is too long. A refusal may mention max_tokens for other reasons.
OVERFLOW: Final = re.compile(
    rb"context (length|size|window)|max_(completion_)?tokens[^.\"]{0,40} too large", re.IGNORECASE
)


class EndpointReply(NamedTuple):
    """A reply of any status, and the endpoint that gave it."""

    replica: "Replica"
    reply: HttpReply
    status: int
    content: bytes
    attempts: int = 1

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply, which matter only for errors."""
        return self.reply.headers


@dataclass(slots=True)
class Replica:
    """One endpoint."""

    endpoint: Endpoint
    # The same endpoint with a short timeout, for its health, metrics and properties.
    probe: Endpoint
    address: ModelAddress
    max_queue_depth: int | None = None
    reader: CompletionReader = field(init=False)
    gauge: QueueGauge = field(init=False)
    in_flight: int = 0
    # When it may be probed for its health again; None while it works.
    down_until: float | None = None

    def __post_init__(self) -> None:
        self.reader = CompletionReader(self.address)
        self.gauge = QueueGauge(self._metrics, limit=self.max_queue_depth)

    @property
    def root(self) -> str:
        """The base of routes that are not part of OpenAI's protocol."""
        return self.endpoint.base_url.removesuffix("/v1")

    async def post(self, path: str, body: bytes, *, seconds: float) -> EndpointReply:
        """Send one request, as soon as the endpoint's queue allows."""
        base = self.endpoint.base_url if path.startswith(("/chat", "/responses", "/completions")) else self.root
        self.in_flight += 1
        try:  # not ``admitted``, which would cost as much as converting a short completion
            if not self.gauge.may_go(self.in_flight):
                await self._wait(seconds)
            reply = await self.endpoint.send("POST", base + path, body)
            self.endpoint.note_status(reply.status)
            return EndpointReply(self, reply, reply.status, await reply.read())
        finally:
            self.in_flight -= 1

    @asynccontextmanager
    async def admitted(self, seconds: float) -> AsyncIterator[None]:
        """Wait until the endpoint's queue allows another request, and count as one until the block ends."""
        self.in_flight += 1
        try:
            if not self.gauge.may_go(self.in_flight):
                await self._wait(seconds)
            yield
        finally:
            self.in_flight -= 1

    async def _wait(self, seconds: float) -> None:
        if not await self.gauge.wait(seconds=seconds):
            reason = f"{self.gauge.depth} requests waited there all the time"
            raise self.address.error(ModelErrorKind.RATE_LIMITED, reason, hint=QUEUE_HINT)

    async def is_healthy(self) -> bool:
        """Probe whether the endpoint works; one without a health route works if it replies at all."""
        try:
            reply = await self.probe.send("GET", f"{self.root}/health", None)
        except RequestFailedError:
            return False
        return reply.status < 500

    async def _metrics(self) -> str | None:
        try:
            reply = await self.probe.send("GET", f"{self.root}/metrics", None)
        except RequestFailedError:
            return None
        return (await reply.read()).decode(errors="replace") if reply.ok else None


class Replicas:
    """All endpoints of a model, chosen by session."""

    def __init__(self, replicas: Sequence[Replica], *, max_retries: int, wait_s: float) -> None:
        self.all = list(replicas)
        self.retries = 0
        self._policy = RetryPolicy(attempts=max_retries + 1, base_s=0.5, statuses=frozenset(RETRY_ERROR_CODES))
        self._wait_s = wait_s
        self._assigned: dict[str, int] = {}
        self._known = 0

    async def post(self, session: str, path: str, body: bytes) -> EndpointReply:
        """Call the session's endpoint, or another if that is gone; raises ``ModelCallError`` if none replies."""
        attempt = 1
        left: set[int] = set()
        while True:
            index = await self._choose(session) if len(self.all) > 1 else 0
            result = await self._try(self.all[index], path, body)
            if isinstance(result, EndpointReply) and (
                result.status not in self._policy.statuses
                or is_out_of_quota(result.status, result.headers, result.content)
            ):
                self.all[index].down_until = None
                return result
            if _is_gone(result) and self._leave(index) and index not in left:
                left.add(index)  # another one works, so there is no need to wait
                continue
            wanted_s = retry_after_seconds(result.headers) if isinstance(result, EndpointReply) else None
            delay = self._policy.delay(attempt, retry_after_s=wanted_s)
            if delay is None or (attempt >= FIRST_ATTEMPTS and not self._has_answered):
                return _last(result, self.all[index].address, attempt, has_answered=self._has_answered)
            self._count(f"{self.all[index].address.endpoint}: {_reason(result)}")
            attempt += 1
            with not_counted():
                await asyncio.sleep(delay)

    async def _try(self, replica: Replica, path: str, body: bytes) -> EndpointReply | RequestFailedError:
        try:
            return await replica.post(path, body, seconds=self._wait_s)
        except RequestFailedError as error:
            if isinstance(error, RequestTimeoutError) and not isinstance(
                error.__cause__, aiohttp.ConnectionTimeoutError
            ):
                raise replica.address.no_reply(error) from error  # another attempt would take as long again
            return error

    @property
    def _has_answered(self) -> bool:
        return any(replica.endpoint.has_answered for replica in self.all)

    def index_of(self, session: str) -> int:
        """Return the endpoint of a session; new sessions are assigned in turn."""
        if len(self.all) == 1:
            return 0
        index = self._assigned.get(session)
        if index is None:
            index = self._known % len(self.all)
            self._known += 1
            self._assign(session, index)
        return index

    def _assign(self, session: str, index: int) -> None:
        self._assigned[session] = index
        if len(self._assigned) > REMEMBERED_SESSIONS:
            del self._assigned[next(iter(self._assigned))]

    async def _choose(self, session: str) -> int:
        """Choose the session's endpoint if it works, else move the session to the next that does; else keep it."""
        first = self.index_of(session)
        for index in [(first + step) % len(self.all) for step in range(len(self.all))]:
            if await self._works(self.all[index]):
                if index != first:
                    self._assign(session, index)
                return index
        return first

    async def _works(self, replica: Replica) -> bool:
        if replica.down_until is None:
            return True
        now = asyncio.get_running_loop().time()
        if now < replica.down_until:
            return False
        replica.down_until = now + REST_S  # for all others, while this call asks
        if not await replica.is_healthy():
            return False
        replica.down_until = None
        logger.info("%s works again", replica.address.endpoint)
        return True

    def _leave(self, index: int) -> bool:
        """Leave an endpoint alone for a while; return whether another one works."""
        if len(self.all) == 1:
            return False
        replica = self.all[index]
        if replica.down_until is None:
            logger.warning("%s does not reply: its sessions move on", replica.address.endpoint)
        replica.down_until = asyncio.get_running_loop().time() + REST_S
        return any(other.down_until is None for other in self.all)

    def _count(self, reason: str) -> None:
        self.retries += 1
        if self.retries == 10 ** (len(str(self.retries)) - 1):
            logger.warning("%d retries so far, the last: %s", self.retries, reason)


def _is_gone(result: EndpointReply | RequestFailedError) -> bool:
    return isinstance(result, RequestFailedError) or result.status in GONE


def _reason(result: EndpointReply | RequestFailedError) -> str:
    return result.reason if isinstance(result, RequestFailedError) else f"status {result.status}"


def _last(
    result: EndpointReply | RequestFailedError, address: ModelAddress, attempts: int, *, has_answered: bool
) -> EndpointReply:
    """Return the result of the last attempt: a reply with an error status is still a reply."""
    if isinstance(result, EndpointReply):
        return result._replace(attempts=attempts)
    if attempts > 1:
        result.reason = f"{result.reason} ({attempts} attempts)"
    raise address.no_reply(result, has_answered=has_answered) from result


def good_content(reply: EndpointReply) -> bytes:
    """Return the body of a reply; an error status is raised."""
    if reply.status >= 400:
        raise reply.replica.address.refusal(
            reply.status,
            reply.headers,
            unwrapped_error(reply.content),
            attempts=reply.attempts,
            has_answered=reply.replica.endpoint.has_answered,
        )
    return reply.content


def is_overflow(status: int, content: bytes) -> bool:
    """Whether an endpoint refuses a prompt because it is too long."""
    return status == 400 and OVERFLOW.search(content) is not None
