"""Clients for endpoints that speak OpenAI's protocols.

Requests to busy and failing endpoints are retried a bounded number of times. Retries are counted and logged at 1, 10,
100, … so that a throttled run shows in the log without flooding it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
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
    read_to_end,
    request,
    stream,
)
from nemo_gym.servers.http.connections import aiohttp, request_errors
from nemo_gym.servers.http.retry import RetryPolicy
from nemo_gym.servers.models.failures import ModelAddress
from nemo_gym.servers.models.gate import RoleGate
from nemo_gym.steps.recording import note_wait
from nemo_gym.steps.trace_context import HEADER as TRACE_HEADER
from nemo_gym.steps.trace_context import current_traceparent

logger = logging.getLogger(__name__)


RATE_LIMIT_ERROR_CODES: Final = [429, 502, 503, 504, 520]
EVENT_STREAM: Final = "text/event-stream"
RETRY_ERROR_CODES: Final = [*RATE_LIMIT_ERROR_CODES, 500]


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
    _headers: CIMultiDict[str] = field(init=False, repr=False)  # as aiohttp wants them
    _policy: RetryPolicy = field(init=False, repr=False)
    _settings: RequestSettings | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        headers = {"Content-Type": "application/json"}
        if self.api_key:  # without a key, a login in the base URL is used
            headers["Authorization"] = f"Bearer {self.api_key}"
        self._headers = CIMultiDict(headers | self.default_headers)
        self._policy = RetryPolicy(attempts=self.max_retries + 1, base_s=0.5, statuses=frozenset(RETRY_ERROR_CODES))

    def send(self, method: str, url: str, body: bytes | None) -> Awaitable["aiohttp.ClientResponse"]:
        """Send JSON that is already encoded. The answer may have any status."""
        return request(method, url, data=body, settings=self._prepared(), headers=_trace_headers())

    def open(
        self, method: str, url: str, body: bytes | None
    ) -> contextlib.AbstractAsyncContextManager["aiohttp.ClientResponse"]:
        """Like ``send``, but without reading the body; only failures before the body are retried."""
        return stream(method, url, data=body, settings=self._prepared(), headers=_trace_headers())

    def _prepared(self) -> RequestSettings:
        """What all requests have in common. Not prepared before the first one, because it takes aiohttp."""
        if self._settings is not None:
            return self._settings
        self._settings = RequestSettings(
            headers=self._headers,
            timeout=Timeout(total=self.request_timeout_s, sock_connect=self.connect_timeout_s),
            retries=self._policy,
            on_retry=self._count_retry,
            gate=self.gate,
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


class Upstream:
    """One model at an endpoint: limits its concurrent requests, and turns failures into errors that say what to do."""

    def __init__(self, endpoint: Endpoint, address: ModelAddress, *, max_concurrent_requests: int | None) -> None:
        self.endpoint = endpoint
        self.address = address
        self._limit = asyncio.Semaphore(max_concurrent_requests) if max_concurrent_requests else None
        self._slots: contextlib.AbstractAsyncContextManager[None] = self._limit or contextlib.nullcontext()

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer; an error status raises a ``ModelCallError``."""
        url = self.endpoint.base_url + path
        try:
            if self._limit is None:
                reply = await self.endpoint.send("POST", url, body)
            else:
                since = perf_counter() if self._limit.locked() else None
                async with self._limit:
                    if since is not None:
                        note_wait(since, "slot")
                    reply = await self.endpoint.send("POST", url, body)
        except request_errors.RequestFailedError as error:
            raise self.address.no_answer(error) from error
        content = await reply.read()
        if not reply.ok:
            raise self._refusal(reply, content)
        return content

    def _refusal(self, reply: "aiohttp.ClientResponse", content: bytes) -> Exception:
        """The error for an answer without a good status."""
        attempts = 1 + self.endpoint.max_retries if reply.status in RETRY_ERROR_CODES else 1
        return self.address.refusal(reply.status, reply.headers, content, attempts=attempts)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncIterator["aiohttp.ClientResponse"]:
        """An answer with a good status.

        A stream of events has not been read yet, and counts as a running request until the block is left. Any other
        answer has been read to the end.
        """
        url = self.endpoint.base_url + path
        try:
            async with self._slots, self.endpoint.open("POST", url, body) as reply:
                if not reply.ok or EVENT_STREAM not in reply.headers.get("Content-Type", ""):
                    await read_to_end(reply)
                if not reply.ok:
                    raise self._refusal(reply, await reply.read())
                yield reply
        except request_errors.RequestFailedError as error:
            raise self.address.no_answer(error) from error


class NeMoGymAsyncOpenAI(BaseModel):
    """One method for each route of an endpoint: takes parameters, returns decoded JSON, raises errors."""

    base_url: str
    api_key: str = Field(repr=False)
    internal: bool = False
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    request_timeout_s: float | None = 600.0
    connect_timeout_s: float = 30.0
    max_retries: int = Field(default=8, ge=0)

    _endpoint: Endpoint = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Prepare what all requests share."""
        super().model_post_init(context)
        self._endpoint = Endpoint(**self.model_dump())

    async def create_response(self, **params: Any) -> Any:
        """Call the Responses API."""
        return await self._ask("POST", f"{self._endpoint.base_url}/responses", params)

    async def create_chat_completion(self, **params: Any) -> Any:
        """Call the Chat Completions API."""
        return await self._ask("POST", f"{self._endpoint.base_url}/chat/completions", params)

    async def create_models(self) -> Any:
        """List the models of the endpoint."""
        return await self._ask("GET", f"{self._endpoint.base_url}/models", None)

    async def create_tokenize(self, **params: Any) -> Any:
        """Turn a prompt into token ids, if the endpoint supports it."""
        return await self._ask("POST", self._endpoint.base_url.removesuffix("/v1") + "/tokenize", params)

    async def _ask(self, method: str, url: str, params: dict[str, Any] | None) -> Any:
        response = await self._endpoint.send(method, url, None if params is None else encode_json(params))
        await raise_for_status(response)
        return await get_response_json(response)
