"""Clients for endpoints that speak OpenAI's protocols.

Requests to busy and failing endpoints are retried a bounded number of times. Retries are counted and logged at 1, 10,
100, … so that a throttled run shows in the log without flooding it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final

from multidict import CIMultiDict
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.io.json import encode_json
from nemo_gym.servers.http.client import (
    RequestSettings,
    Retry,
    Timeout,
    get_response_json,
    raise_for_status,
    request,
    stream,
)
from nemo_gym.servers.http.connections import aiohttp, request_errors
from nemo_gym.servers.http.deadlines import not_counted
from nemo_gym.servers.http.gate import RoleGate
from nemo_gym.servers.http.reply import HttpReply
from nemo_gym.servers.http.reply_bodies import read_reply
from nemo_gym.servers.http.retry import RetryPolicy
from nemo_gym.servers.models.failures import WRONG_PLACE, ModelAddress, is_out_of_quota
from nemo_gym.steps.recording import note_wait
from nemo_gym.steps.trace_context import HEADER as TRACE_HEADER
from nemo_gym.steps.trace_context import current_traceparent

logger = logging.getLogger(__name__)


RATE_LIMIT_ERROR_CODES: Final = [429, 502, 503, 504, 520]
INVALID_KEY: Final = (401, 403)
EVENT_STREAM: Final = "text/event-stream"
RETRY_ERROR_CODES: Final = [*RATE_LIMIT_ERROR_CODES, 500]
# An endpoint that has never replied is most likely not where it is looked for, and people wait for that message.
FIRST_ATTEMPTS: Final = 4
FIRST_CONNECT_S: Final = 5.0
# An endpoint that gives no reply shows up in the failures after this time; it is the run that waits for it then.
SILENT_S: Final = 15.0


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """A base URL and what all requests to it have in common."""

    base_url: str
    api_key: str = field(repr=False)
    default_headers: dict[str, str] = field(default_factory=dict, repr=False)
    internal: bool = False
    request_timeout_s: float | None = 600.0
    connect_timeout_s: float = 30.0
    max_retries: int = 8
    # The gate that all model servers of a Gym share; None if requests are not limited.
    gate: RoleGate | None = field(default=None, repr=False)
    retries: int = 0
    has_answered: bool = False  # whether there was ever a reply that shows that this is the right place
    _headers: CIMultiDict[str] = field(init=False, repr=False)  # as aiohttp wants them
    _policy: RetryPolicy = field(init=False, repr=False)
    _settings: RequestSettings | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        headers = {"Content-Type": "application/json"}
        if self.api_key:  # without a key, a login in the base URL is used
            headers["Authorization"] = f"Bearer {self.api_key}"
        self._headers = CIMultiDict(headers | self.default_headers)
        statuses = frozenset(RETRY_ERROR_CODES)
        self._policy = RetryPolicy(attempts=self.max_retries + 1, base_s=0.5, statuses=statuses, silent_s=SILENT_S)

    def send(self, method: str, url: str, body: bytes | None) -> Awaitable[HttpReply]:
        """Send JSON that is already encoded. The reply may have any status."""
        return request(method, url, data=body, settings=self._prepared(), headers=_trace_headers())

    def open(
        self, method: str, url: str, body: bytes | None
    ) -> contextlib.AbstractAsyncContextManager["HttpReply | aiohttp.ClientResponse"]:
        """Like ``send``, but without reading the body; only failures before the body are retried."""
        return stream(method, url, data=body, settings=self._prepared(), headers=_trace_headers())

    def note_status(self, status: int) -> None:
        """Learn from a reply whether this is the right place."""
        if not self.has_answered and status not in WRONG_PLACE:
            self.has_answered, self._settings = True, None

    def _prepared(self) -> RequestSettings:
        """What all requests have in common. Not prepared before the first one, because it takes aiohttp."""
        if self._settings is not None:
            return self._settings
        connect_s, policy = self.connect_timeout_s, self._policy
        if not self.has_answered:
            connect_s, policy = min(connect_s, FIRST_CONNECT_S), replace(policy, silent_attempts=FIRST_ATTEMPTS)
        self._settings = RequestSettings(
            headers=self._headers,
            timeout=Timeout(total=self.request_timeout_s, sock_connect=connect_s),
            retries=policy,
            on_retry=self._count_retry,
            gate=self.gate,
            is_final=is_out_of_quota,
            # The headers contain keys that must not reach another host.
            same_origin=True,
            _internal=self.internal,
        )
        return self._settings

    def _count_retry(self, retry: Retry) -> None:
        self.retries += 1
        if self.retries == 10 ** (len(str(self.retries)) - 1):
            counted = "1 retry" if self.retries == 1 else f"{self.retries} retries"
            logger.warning("%s so far, the last: %s", counted, retry.reason)


def _trace_headers() -> dict[str, str] | None:
    parent = current_traceparent()
    return {TRACE_HEADER: parent} if parent else None


class RequestLimit:
    """How many requests may run at once. Waiting is recorded as such, and not counted against the attempt's limit."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def __aenter__(self) -> None:
        if self._slots.locked():
            since = perf_counter()
            with not_counted():
                await self._slots.acquire()
            note_wait(since, "slot")
        else:
            await self._slots.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()


class Upstream:
    """One model at an endpoint: limits its concurrent requests, and turns failures into errors that say what to do."""

    def __init__(self, endpoint: Endpoint, address: ModelAddress, *, max_concurrent_requests: int | None) -> None:
        self.endpoint = endpoint
        self.address = address
        self._limit = RequestLimit(max_concurrent_requests) if max_concurrent_requests else None

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the reply; an error status raises a ``ModelCallError``."""
        url = self.endpoint.base_url + path
        try:
            if self._limit is None:
                reply = await self.endpoint.send("POST", url, body)
            else:
                async with self._limit:
                    reply = await self.endpoint.send("POST", url, body)
        except request_errors.RequestFailedError as error:
            raise self._no_reply(error) from error
        self.endpoint.note_status(reply.status)
        content = await reply.read()
        if not reply.ok:
            raise self._refusal(reply, content)
        return content

    def _no_reply(self, error: "request_errors.RequestFailedError") -> Exception:
        return self.address.no_reply(error, has_answered=self.endpoint.has_answered)

    def _refusal(self, reply: "HttpReply | aiohttp.ClientResponse", content: bytes) -> Exception:
        """The error for a reply without a good status."""
        attempts = 1 + self.endpoint.max_retries if reply.status in RETRY_ERROR_CODES else 1
        known = self.endpoint.has_answered
        return self.address.refusal(reply.status, reply.headers, content, attempts=attempts, has_answered=known)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncIterator["HttpReply | aiohttp.ClientResponse"]:
        """A reply with a good status.

        A stream of events has not been read yet, and counts as a running request until the block is left. Any other
        reply has been read to the end.
        """
        url = self.endpoint.base_url + path
        try:
            async with self._limit or contextlib.nullcontext(), self.endpoint.open("POST", url, body) as reply:
                self.endpoint.note_status(reply.status)
                if reply.ok and EVENT_STREAM in reply.headers.get("Content-Type", ""):
                    yield reply
                    return
                if isinstance(reply, HttpReply):
                    raise self._refusal(reply, await reply.read())
                yield await read_reply(reply)
        except request_errors.RequestFailedError as error:
            raise self._no_reply(error) from error


class NeMoGymAsyncOpenAI(BaseModel):
    """One method for each route of an endpoint: takes parameters, returns decoded JSON, raises errors."""

    base_url: str
    api_key: str = Field(repr=False)
    internal: bool = False
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    request_timeout_s: float | None = 600.0
    connect_timeout_s: float = 30.0
    max_retries: int = Field(default=8, ge=0)
    # The same under the names of newer releases; they win over ``max_retries`` if they are set.
    max_http_attempts: int = Field(default=3, ge=1)
    max_connection_retries: int | None = Field(default=None, ge=0)

    _endpoint: Endpoint = PrivateAttr()
    _refusal: Exception | None = PrivateAttr(default=None)  # that every further request would get, too

    def model_post_init(self, context: Any, /) -> None:
        """Prepare what all requests share."""
        super().model_post_init(context)
        settings = self.model_dump(exclude={"max_http_attempts", "max_connection_retries"})
        if self.model_fields_set & {"max_http_attempts", "max_connection_retries"} and not self.internal:
            settings["max_retries"] = max(self.max_http_attempts - 1, self.max_connection_retries or 0)
        self._endpoint = Endpoint(**settings)

    async def create_completion(self, **params: Any) -> Any:
        """Complete a plain prompt."""
        return await self._call("POST", f"{self._endpoint.base_url}/completions", params)

    async def create_response(self, **params: Any) -> Any:
        return await self._call("POST", f"{self._endpoint.base_url}/responses", params)

    async def create_chat_completion(self, **params: Any) -> Any:
        return await self._call("POST", f"{self._endpoint.base_url}/chat/completions", params)

    async def create_models(self) -> Any:
        """List the models of the endpoint."""
        return await self._call("GET", f"{self._endpoint.base_url}/models", None)

    async def create_tokenize(self, **params: Any) -> Any:
        """Turn a prompt into token ids, if the endpoint supports it."""
        return await self._call("POST", self._endpoint.base_url.removesuffix("/v1") + "/tokenize", params)

    async def _call(self, method: str, url: str, params: dict[str, Any] | None) -> Any:
        if self._refusal is not None:
            raise self._refusal
        response = await self._endpoint.send(method, url, None if params is None else encode_json(params))
        self._endpoint.note_status(response.status)
        try:
            await raise_for_status(response)
        except request_errors.UpstreamResponseError as error:
            content, status = error.response_content, error.status
            if status not in INVALID_KEY and not is_out_of_quota(status, response.headers, content):
                raise
            refusal = request_errors.PermanentEndpointError(
                error.request_info, (), status=status, message=error.message, headers=error.headers
            )
            refusal.response_content = content
            self._refusal = refusal
            raise refusal from error
        return await get_response_json(response)
