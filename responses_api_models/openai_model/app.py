"""A model behind any OpenAI-compatible endpoint.

Requests are forwarded with the configured model's name, or converted if the endpoint has only Chat Completions; what
the request leaves open is taken from ``extra_body``. Completions are checked once and forwarded. Whatever goes wrong
upstream becomes one error reply, which names the endpoint, the model and what to do, but not the key.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Literal

import orjson
from fastapi import Request, Response
from pydantic import Field

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.conversion.chat_history import PastReasoning
from nemo_gym.conversion.chat_streams import completion_stream
from nemo_gym.conversion.parts import SAMPLING_EXTRAS
from nemo_gym.conversion.plain_responses import is_plain_response
from nemo_gym.conversion.response_streams import last_event, response_stream
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, request_as_sent
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.http.gate import gates_of
from nemo_gym.servers.http.urls import check_endpoint, shown
from nemo_gym.servers.models.completion_reader import CompletionReader
from nemo_gym.servers.models.endpoint import Endpoint, Upstream
from nemo_gym.servers.models.failures import ModelAddress
from nemo_gym.servers.models.model_requests import (
    ForwardedChatParams,
    SentOptions,
    UnreadRequest,
    chat_of,
    valid_request,
)
from nemo_gym.servers.models.streaming import (
    CHAT_CHUNKS,
    CHAT_COMPLETIONS,
    RESPONSE_EVENTS,
    RESPONSES,
    Relay,
    StreamRelay,
)


class OpenAIModelConfig(BaseResponsesAPIModelConfig):
    """Which endpoint and model to use, and how."""

    openai_base_url: str
    openai_api_key: str = Field(repr=False)
    openai_model: str
    extra_body: dict[str, Any] = Field(default_factory=dict)
    openai_default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    endpoint_max_concurrent_requests: int | None = Field(default=None, ge=1)
    request_timeout_s: float = Field(default=600.0, gt=0)
    connect_timeout_s: float = Field(default=30.0, gt=0)
    max_retries: int = Field(default=8, ge=0)
    endpoint: Literal["responses", "chat_completions"] = "responses"
    past_reasoning: PastReasoning = "think"


class OpenAIModel(SimpleResponsesAPIModel):
    """A model server that forwards to an endpoint."""

    config: OpenAIModelConfig

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the client, because the limit of its gate holds from the start; nothing is sent yet."""
        super().model_post_init(context)
        config = self.config
        check_endpoint(
            config.openai_base_url, setting=f"openai_base_url of {config.name}", has_key=bool(config.openai_api_key)
        )
        self._upstream  # noqa: B018 - built now

    # Every call reads these, and pydantic takes fifteen times as long to read a private attribute.
    @cached_property
    def _upstream(self) -> Upstream:
        config = self.config
        limit = config.endpoint_max_concurrent_requests
        endpoint = Endpoint(
            base_url=config.openai_base_url,
            api_key=config.openai_api_key,
            default_headers=config.openai_default_headers,
            request_timeout_s=config.request_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            max_retries=config.max_retries,
            gate=gates_of(self.server_client).for_role(config.openai_base_url, config.name, limit=limit),
        )
        secrets = [config.openai_api_key, *config.openai_default_headers.values()]
        address = ModelAddress(shown(config.openai_base_url), config.openai_model, secrets=secrets)
        return Upstream(endpoint, address, max_concurrent_requests=config.max_concurrent_requests)

    @cached_property
    def _reader(self) -> CompletionReader:
        return CompletionReader(self._upstream.address)

    @cached_property
    def _converter(self) -> ResponsesConverter:
        return ResponsesConverter(
            return_token_id_information=False,
            past_reasoning=self.config.past_reasoning,
            keep_strict=True,
            custom_tools=True,
            on_loss=self.config.on_loss,
        )

    def stream_relays(self) -> Mapping[str, Relay]:
        """Pass on what the endpoint streams, unless it has to be converted."""
        streams = {CHAT_COMPLETIONS: self._stream_chat}
        return streams if self.config.endpoint == "chat_completions" else {**streams, RESPONSES: self._stream_responses}

    def sampling_extras(self) -> Collection[str]:
        """Name the options of a chat that the Responses API does not have."""
        return SAMPLING_EXTRAS if self.config.endpoint == "chat_completions" else ()

    def model_names(self) -> list[str]:
        """Name the endpoint's model."""
        return [self.config.openai_model]

    async def count_input_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Have the endpoint count, if it has the Responses API."""
        if self.config.endpoint == "chat_completions":
            return None
        sent = encode_json({**body, "model": self.config.openai_model})
        return self._reader.token_count(await self._upstream.post("/responses/input_tokens", sent))

    async def relay_responses(self, body: UnreadRequest = Body()) -> Response:
        """Forward a Responses API request and its completion, or convert both."""
        if self.config.endpoint == "chat_completions":
            return JsonResponse(encode_json(await self._respond_by_chat(body.fields)))
        model, defaults = self.config.openai_model, self.config.extra_body
        content = await self._upstream.post("/responses", body.sent_to(model, defaults))
        options = SentOptions(body, model, defaults)
        if is_plain_response(content, options.get("max_output_tokens")):
            return JsonResponse(content)
        reading = self._reader.response(content, options)
        return JsonResponse(reading.response.model_dump_json().encode() if reading.is_repaired else content)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Complete a Responses API request."""
        if self.config.endpoint == "chat_completions":
            return NeMoGymResponse.model_validate(await self._respond_by_chat(request_as_sent(body)))
        reply = await self.relay_responses(UnreadRequest(encode_json(body)))
        return NeMoGymResponse.model_validate_json(bytes(reply.body))

    async def _respond_by_chat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        chat = chat_of(request, self._converter, self._upstream.address)
        content = await self._upstream.post("/chat/completions", encode_json(self._to_send(chat)))
        completion = self._reader.chat_completion(content)
        return self._converter.completion_to_response(completion, request, model=self.config.openai_model)

    async def _stream_responses(self, _: Request, body: dict[str, Any], options: Mapping[str, Any]) -> Response:
        defaults = {**self.config.extra_body, "stream": True} | ({"stream_options": options} if options else {})
        sent = valid_request(UnreadRequest, body).sent_to(self.config.openai_model, defaults)
        request = {**self.config.extra_body, **body}

        def revise(event: dict[str, Any]) -> dict[str, Any]:
            reading = self._reader.response(orjson.dumps(event["response"]), request)
            ending = last_event(reading.response.model_dump() if reading.is_repaired else event["response"])
            return event | ending if reading.is_repaired or ending["type"] != event["type"] else event

        def make(content: bytes) -> bytes:
            return response_stream(self._reader.response(content, request).response.model_dump())

        return await StreamRelay(self._upstream, RESPONSE_EVENTS, revise).reply("/responses", sent, make)

    async def chat_completions(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ForwardedChatParams = Body()
    ) -> NeMoGymChatCompletion:
        """Complete a Chat Completions request."""
        sent = encode_json(self._to_send(body.model_dump(exclude_unset=True)))
        return self._reader.chat_completion(await self._upstream.post("/chat/completions", sent))

    async def _stream_chat(self, _: Request, body: dict[str, Any], options: Mapping[str, Any]) -> Response:
        chat = self._to_send(valid_request(ForwardedChatParams, body).model_dump(exclude_unset=True))
        sent = chat | {"stream": True} | ({"stream_options": options} if options else {})

        def make(content: bytes) -> bytes:
            completion = self._reader.chat_completion(content).model_dump()
            return completion_stream(completion, usage=bool(options.get("include_usage")))

        return await StreamRelay(self._upstream, CHAT_CHUNKS).reply("/chat/completions", encode_json(sent), make)

    def _to_send(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """Return a chat over the configured defaults, with the configured model's name."""
        return {**self.config.extra_body, **chat, "model": self.config.openai_model}


if __name__ == "__main__":
    OpenAIModel.run_webserver()
