"""A model behind any OpenAI-compatible endpoint.

Requests are forwarded with the configured model's name; what the request leaves open is taken from ``extra_body``.
Answers are checked once and forwarded. Whatever goes wrong upstream becomes one error answer, which names the endpoint,
the model and what to do, but not the key.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, Final, Literal

import orjson
from fastapi import Response
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.conversion.answer_events import completion_stream, response_stream
from nemo_gym.conversion.chat_requests import PastReasoning
from nemo_gym.conversion.chat_texts import ChatTexts
from nemo_gym.conversion.parts import SAMPLING_EXTRAS
from nemo_gym.conversion.plain_answers import is_plain_response
from nemo_gym.conversion.unknown_items import release_encoded
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, request_as_sent
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.http.urls import check_endpoint, shown
from nemo_gym.servers.models.answering import (
    TEXTS,
    AnswerReader,
    ConvertedParams,
    ForwardedChatParams,
    ForwardedParams,
    chat_of,
    chat_text_of,
    valid_request,
)
from nemo_gym.servers.models.endpoint import Endpoint, Upstream
from nemo_gym.servers.models.failures import ModelAddress
from nemo_gym.servers.models.gate import gates_of
from nemo_gym.servers.models.streaming import (
    CHAT_CHUNKS,
    CHAT_COMPLETIONS,
    RESPONSE_EVENTS,
    RESPONSES,
    Relay,
    StreamRelay,
)

WITHOUT_MODEL: Final = {"model"}


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


class ChatCalls:
    """Answers requests of the Responses API with an endpoint that has only Chat Completions."""

    def __init__(self, config: OpenAIModelConfig, upstream: Upstream, reader: AnswerReader) -> None:
        self._upstream = upstream
        self._reader = reader
        self._model = config.openai_model
        self._defaults = config.extra_body
        self._converter = ResponsesConverter(
            return_token_id_information=False,
            past_reasoning=config.past_reasoning,
            keep_strict=True,
            custom_tools=True,
            on_loss=config.on_loss,
        )
        self._texts = ChatTexts(TEXTS, self._converter, self._to_send, model=self._model)

    async def relay_responses(self, body: ConvertedParams = Body()) -> Response:
        """Answer a request that was not parsed."""
        sent = chat_text_of(body, self._texts)
        if sent is None or body.split is None:
            return JsonResponse(encode_json(await self.respond(body)))
        answer = self._reader.chat_answer(await self._upstream.post("/chat/completions", sent))
        return JsonResponse(self._texts.response(body.split, answer))

    async def respond(self, body: ConvertedParams) -> dict[str, Any]:
        """Answer a request."""
        sent = encode_json(self._to_send(chat_of(body, self._converter, self._upstream.address)))
        answer = self._reader.chat_answer(await self._upstream.post("/chat/completions", sent))
        return self._converter.answer_to_response(answer, body.options, model=self._model)

    def _to_send(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._defaults, **chat, "model": self._model}


class OpenAIModel(SimpleResponsesAPIModel):
    """A model server that forwards to an endpoint."""

    config: OpenAIModelConfig

    _upstream: Upstream = PrivateAttr()
    _reader: AnswerReader = PrivateAttr()
    _model_key: bytes = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the client; nothing is sent yet."""
        super().model_post_init(context)
        config = self.config
        check_endpoint(
            config.openai_base_url, setting=f"openai_base_url of {config.name}", has_key=bool(config.openai_api_key)
        )
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
        self._model_key = b'{"model":' + orjson.dumps(config.openai_model) + b","
        self._upstream = Upstream(endpoint, address, max_concurrent_requests=config.max_concurrent_requests)
        self._reader = AnswerReader(address)

    # Every model call needs it, and pydantic takes as long to find a private attribute as to read a short request.
    @cached_property
    def upstream(self) -> Upstream:
        """The endpoint and the model there."""
        return self._upstream

    @cached_property
    def chats(self) -> ChatCalls:
        """The calls of an endpoint that has only Chat Completions."""
        return ChatCalls(self.config, self._upstream, self._reader)

    def responses_handler(self) -> Callable[..., Any]:
        """Choose what answers ``/v1/responses``: by default requests are forwarded unread, as endpoints check them."""
        if type(self).responses is not OpenAIModel.responses:
            return self.responses
        return self.chats.relay_responses if self.config.endpoint == "chat_completions" else self.relay_responses

    def stream_relays(self) -> Mapping[str, Relay]:
        """Pass on what the endpoint streams, unless a subclass answers otherwise, or the answer has to be converted."""
        relays: dict[str, Relay] = {}
        if type(self).chat_completions is OpenAIModel.chat_completions:
            relays[CHAT_COMPLETIONS] = self._stream_chat
        if type(self).responses is OpenAIModel.responses and self.config.endpoint == "responses":
            relays[RESPONSES] = self._stream_responses
        return relays

    def sampling_extras(self) -> Collection[str]:
        """Name the options of a chat that the Responses API does not have."""
        return SAMPLING_EXTRAS if self.config.endpoint == "chat_completions" else ()

    def model_names(self) -> list[str]:
        """Name the endpoint's model."""
        return [self.config.openai_model]

    async def count_input_tokens(self, asked: Mapping[str, Any]) -> int | None:
        """Have the endpoint count, if it has the Responses API."""
        if self.config.endpoint == "chat_completions":
            return None
        sent = encode_json({**asked, "model": self.config.openai_model})
        return self._reader.count(await self._upstream.post("/responses/input_tokens", sent))

    async def _stream_responses(self, asked: dict[str, Any], options: Mapping[str, Any]) -> Response:
        body = valid_request(ForwardedParams, asked).to_send()
        sent = self.config.extra_body | body | {"model": self.config.openai_model, "stream": True}
        if options:
            sent["stream_options"] = options

        def revise(event: dict[str, Any]) -> dict[str, Any]:
            content = orjson.dumps(event["response"])
            if is_plain_response(content):
                return event
            reading = self._reader.response(content, asked)
            return event | {"response": reading.response.model_dump()} if reading.is_repaired else event

        def make(content: bytes) -> bytes:
            return response_stream(self._reader.response(content, asked).response.model_dump())

        return await StreamRelay(self._upstream, RESPONSE_EVENTS, revise).answer("/responses", encode_json(sent), make)

    async def _stream_chat(self, asked: dict[str, Any], options: Mapping[str, Any]) -> Response:
        body = orjson.loads(self._encode(valid_request(ForwardedChatParams, asked)))
        sent = body | {"stream": True} | ({"stream_options": options} if options else {})

        def make(content: bytes) -> bytes:
            completion = self._reader.completion(content).model_dump()
            return completion_stream(completion, usage=bool(options.get("include_usage")))

        return await StreamRelay(self._upstream, CHAT_CHUNKS).answer("/chat/completions", encode_json(sent), make)

    async def relay_responses(self, body: ForwardedParams = Body()) -> Response:
        """Forward the endpoint's answer if it is a valid response, else one made from it."""
        sent = body.sent_to(self.config.openai_model, self.config.extra_body)
        content = await self.upstream.post("/responses", sent)
        limit = body.option("max_output_tokens", self.config.extra_body.get("max_output_tokens"))
        if not is_plain_response(content, limit=limit):
            reading = self._reader.response(content, orjson.loads(sent))
            if reading.is_repaired:
                content = reading.response.model_dump_json().encode()
        return JsonResponse(content)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer a Responses API request."""
        if self.config.endpoint == "chat_completions":
            asked = ConvertedParams(fields=request_as_sent(body))
            return NeMoGymResponse.model_validate(await self.chats.respond(asked))
        content = await self._upstream.post("/responses", release_encoded(self._encode(body)))
        return self._reader.response(content, body.model_dump(exclude_unset=True)).response

    async def chat_completions(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ForwardedChatParams = Body()
    ) -> NeMoGymChatCompletion:
        """Answer a Chat Completions request."""
        return self._reader.completion(await self._upstream.post("/chat/completions", self._encode(body)))

    def _encode(self, body: BaseModel) -> bytes:
        """Encode what the request sets, over the configured defaults, with the configured model's name."""
        asked = body.__pydantic_serializer__.to_json(body, exclude_unset=True, exclude=WITHOUT_MODEL)
        if not self.config.extra_body:
            # A request is never empty, so ours is the first of several keys.
            return self._model_key + asked[1:]
        return orjson.dumps(self.config.extra_body | orjson.loads(asked) | {"model": self.config.openai_model})


if __name__ == "__main__":
    OpenAIModel.run_webserver()
