"""Streamed chats of a vllm_model, passed on event by event where its settings leave a completion as it is.

Token ids, versions of weights and several endpoints need the whole completion, so such models make their streams of it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
from fastapi import Request
from fastapi.responses import Response

from nemo_gym.conversion.chat_streams import completion_stream
from nemo_gym.io.json import encode_json
from nemo_gym.servers.http.reply import HttpReply
from nemo_gym.servers.models.endpoint import EVENT_STREAM, Upstream
from nemo_gym.servers.models.failures import ModelCallError
from nemo_gym.servers.models.model_requests import ForwardedChatParams, valid_request
from nemo_gym.servers.models.streaming import CHAT_CHUNKS, StreamRelay
from responses_api_models.vllm_model.calls import ModelCalls
from responses_api_models.vllm_model.replicas import Replica


class QueuedUpstream(Upstream):
    """An endpoint whose streams wait their turn like all other requests of the model."""

    def __init__(self, replica: Replica, slots: AbstractAsyncContextManager[None], *, wait_s: float) -> None:
        super().__init__(replica.endpoint, replica.address, max_concurrent_requests=None)
        self._replica = replica
        self._shared = slots
        self._wait_s = wait_s

    @asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncIterator["HttpReply | aiohttp.ClientResponse"]:
        """Open a stream as soon as the endpoint's queue allows."""
        async with self._shared, self._replica.admitted(self._wait_s), super().stream(path, body) as reply:
            yield reply


class ChatStreams:
    """The streamed chats of one model."""

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls
        upstream = QueuedUpstream(calls.replicas.all[0], calls.slots, wait_s=calls.config.request_timeout_s)
        self._relay = StreamRelay(upstream, CHAT_CHUNKS)

    @staticmethod
    def can_serve(calls: ModelCalls) -> bool:
        """Whether callers of this model can get the endpoint's own stream."""
        config = calls.config
        return (
            len(calls.replicas.all) == 1
            and calls.policy is None
            and config.sequential_reasoning_allowed
            and not config.return_token_id_information
        )

    async def reply(self, request: Request, chat: dict[str, Any], options: Mapping[str, Any]) -> Response:
        """Stream a completion. If the stream does not begin, request the whole completion, which has more attempts."""
        given = valid_request(ForwardedChatParams, chat).model_dump(exclude_unset=True)
        body = await self._calls.prepare(dict(given), request)
        body |= {"model": self._calls.config.model, "stream": True}
        if options:
            body["stream_options"] = options
        with_usage = bool(options.get("include_usage"))

        def make(content: bytes) -> bytes:
            completion = self._calls.replicas.all[0].reader.chat_completion(content)
            return completion_stream(completion.model_dump(), usage=with_usage)

        try:
            return await self._relay.reply("/chat/completions", encode_json(body), make)
        except ModelCallError:
            completion = await self._calls.complete("", given, request=request)
            return Response(completion_stream(completion.model_dump(), usage=with_usage), media_type=EVENT_STREAM)
