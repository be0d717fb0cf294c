"""A model behind Anthropic's Messages API.

Requests of the Responses API and their completions are converted; thinking is sent back with its signature. Requests of
the Messages API itself are forwarded unchanged. Whatever goes wrong upstream becomes one error reply, which names the
endpoint, the model and what to do, but not the key.
"""

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.conversion.anthropic.message_completions import message_to_response
from nemo_gym.conversion.anthropic.message_requests import request_to_messages
from nemo_gym.conversion.anthropic.message_streams import message_events
from nemo_gym.conversion.chat_completions import response_to_completion
from nemo_gym.conversion.chat_requests import chat_to_request
from nemo_gym.conversion.losses import Way
from nemo_gym.conversion.new_responses import uuid4
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.conversion.stream_events import event_bytes
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, request_as_sent
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.http.gate import gates_of
from nemo_gym.servers.http.urls import check_endpoint, shown
from nemo_gym.servers.models.endpoint import Upstream
from nemo_gym.servers.models.failures import ModelAddress, ModelErrorKind
from nemo_gym.servers.models.model_requests import MALFORMED, ForwardedChatParams, UnreadRequest, refuse_malformed
from nemo_gym.servers.models.protocols import messages_reply
from nemo_gym.servers.models.streaming import MESSAGE_EVENTS, StreamRelay
from responses_api_models.anthropic_model.upstream import AnthropicEndpoint, MessageReader

# What of a request decides how many tokens it is read as.
COUNTED: Final = frozenset({"messages", "system", "tools", "tool_choice", "thinking", "output_config", "mcp_servers"})
CONVERTER: Final = ResponsesConverter(return_token_id_information=False)


class AnthropicModelConfig(BaseResponsesAPIModelConfig):
    """Which endpoint and model to use, and how."""

    anthropic_base_url: str = "https://api.anthropic.com/v1"
    anthropic_api_key: str = Field(repr=False)
    anthropic_model: str
    anthropic_version: str = "2023-06-01"
    # The protocol requires a limit; this one is for requests without one.
    max_tokens: int = Field(default=8192, ge=1)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    anthropic_default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    endpoint_max_concurrent_requests: int | None = Field(default=None, ge=1)
    request_timeout_s: float = Field(default=600.0, gt=0)
    connect_timeout_s: float = Field(default=30.0, gt=0)
    max_retries: int = Field(default=8, ge=0)


class AnthropicModel(SimpleResponsesAPIModel):
    """A model server that asks an endpoint of the Messages API."""

    config: AnthropicModelConfig

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the client, because the limit of its gate holds from the start; nothing is sent yet."""
        super().model_post_init(context)
        config = self.config
        check_endpoint(
            config.anthropic_base_url,
            setting=f"anthropic_base_url of {config.name}",
            has_key=bool(config.anthropic_api_key),
        )
        self._upstream  # noqa: B018 - built now

    # Every call reads these, and pydantic takes fifteen times as long to read a private attribute.
    @cached_property
    def _upstream(self) -> Upstream:
        config = self.config
        limit = config.endpoint_max_concurrent_requests
        endpoint = AnthropicEndpoint(
            base_url=config.anthropic_base_url,
            api_key=config.anthropic_api_key,
            version=config.anthropic_version,
            default_headers=config.anthropic_default_headers,
            request_timeout_s=config.request_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            max_retries=config.max_retries,
            gate=gates_of(self.server_client).for_role(config.anthropic_base_url, config.name, limit=limit),
        )
        secrets = [config.anthropic_api_key, *config.anthropic_default_headers.values()]
        address = ModelAddress(shown(config.anthropic_base_url), config.anthropic_model, secrets=secrets)
        return Upstream(endpoint, address, max_concurrent_requests=config.max_concurrent_requests)

    @cached_property
    def _reader(self) -> MessageReader:
        return MessageReader(self._upstream.address)

    @cached_property
    def _path(self) -> str:
        # The base URL may or may not end with the API's version.
        return "/messages" if self._upstream.endpoint.base_url.endswith("/v1") else "/v1/messages"

    def model_names(self) -> list[str]:
        """Name the endpoint's model."""
        return [self.config.anthropic_model]

    async def count_input_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Have the endpoint count."""
        return await self._count(self._converted(body))

    async def count_message_tokens(self, body: AnthropicMessagesRequest) -> int | None:
        """Have the endpoint count a request of its own protocol."""
        return await self._count(body.model_dump(exclude_unset=True))

    async def _count(self, body: Mapping[str, Any]) -> int:
        # What only matters for a completion is refused there.
        counted = {name: value for name, value in body.items() if name in COUNTED}
        sent = encode_json({**counted, "model": self.config.anthropic_model})
        return self._reader.token_count(await self._upstream.post(f"{self._path}/count_tokens", sent))

    async def relay_responses(self, body: UnreadRequest = Body()) -> Response:
        """Complete a Responses API request that the endpoint checks."""
        return JsonResponse(encode_json(await self._respond(body.fields)))

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Complete a Responses API request."""
        return NeMoGymResponse.model_validate(await self._respond(request_as_sent(body)))

    async def chat_completions(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ForwardedChatParams = Body()
    ) -> NeMoGymChatCompletion:
        """Complete a Chat Completions request."""
        try:
            request, lost = chat_to_request(body.model_dump(exclude_unset=True), CONVERTER.history_to_items)
            self._losses.check(Way.FROM_CHAT, lost)
        except UnsupportedContentError as error:
            raise self._upstream.address.error(ModelErrorKind.REJECTED, str(error)) from error
        return NeMoGymChatCompletion.model_validate(response_to_completion(await self._respond(request)))

    async def messages(self, request: Request, body: AnthropicMessagesRequest = Body()) -> Response:  # noqa: ARG002 - the route's
        """Complete a request of the endpoint's own protocol."""
        message = {"max_tokens": self.config.max_tokens, **body.model_dump(exclude_unset=True, exclude={"stream"})}
        if body.stream:
            relay = StreamRelay(self._upstream, MESSAGE_EVENTS)
            return await relay.reply(self._path, self._encode({**message, "stream": True}), self._as_events)
        completion = self._reader.message(await self._send(message))
        return messages_reply(completion.model_dump(exclude_unset=True))

    def _as_events(self, content: bytes) -> bytes:
        return event_bytes(message_events(self._reader.message(content).model_dump(exclude_unset=True)))

    async def _respond(self, request: Mapping[str, Any]) -> dict[str, Any]:
        message = self._reader.whole_message(await self._send(self._converted(request)))
        return message_to_response(
            message, request, new_id=_new_id, created_at=float(int(time.time())), model=self.config.anthropic_model
        )

    def _converted(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            body, lost = request_to_messages(request, max_tokens=self.config.max_tokens)
            self._losses.check(Way.TO_MESSAGES, lost)
        except UnsupportedContentError as error:
            raise self._upstream.address.error(ModelErrorKind.REJECTED, str(error)) from error
        except MALFORMED:
            refuse_malformed(request)
            raise
        return body

    async def _send(self, body: Mapping[str, Any]) -> bytes:
        return await self._upstream.post(self._path, self._encode(body))

    def _encode(self, body: Mapping[str, Any]) -> bytes:
        return encode_json({**self.config.extra_body, **body, "model": self.config.anthropic_model})


def _new_id() -> str:
    return uuid4().hex


if __name__ == "__main__":
    AnthropicModel.run_webserver()
