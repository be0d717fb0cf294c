"""A model behind any OpenAI-compatible endpoint.

Requests are forwarded with the configured model's name; what the request leaves open is taken from ``extra_body``.
Answers are checked once and passed on. Whatever goes wrong upstream becomes one error answer that names the endpoint,
the model and what to do, and never the key.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Self

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.conversion.repair import ReadResponse, explain, has_unknown_items, read_chat_completion, read_response
from nemo_gym.conversion.to_chat import PastReasoning
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.servers.endpoint import Endpoint, Upstream
from nemo_gym.servers.http_errors import shown
from nemo_gym.servers.model_errors import ModelAddress, ModelCallError, ModelErrorKind
from nemo_gym.servers.wire import encode_json

WITHOUT_MODEL: Final = {"model"}
REQUEST_KEYS: Final = frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields)
HOSTED_TOOLS_HINT: Final = "remove hosted tools (web_search, …) from the request: only function tools can be run here"


class OpenAIModelConfig(BaseResponsesAPIModelConfig):
    """Which endpoint and model, and how to treat them."""

    openai_base_url: str
    openai_api_key: str = Field(repr=False)
    openai_model: str
    extra_body: dict[str, Any] = Field(default_factory=dict)
    openai_default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    request_timeout_s: float = Field(default=600.0, gt=0)
    connect_timeout_s: float = Field(default=30.0, gt=0)
    max_retries: int = Field(default=8, ge=0)
    endpoint: Literal["responses", "chat_completions"] = "responses"
    past_reasoning: PastReasoning = "think"


class ForwardedParams(BaseModel):
    """A request that is passed on as it came, if its keys are those of the protocol: the endpoint checks the rest."""

    model_config = ConfigDict(extra="allow")

    input: Any

    @model_validator(mode="after")
    def _only_known_keys(self) -> Self:
        unknown = (self.__pydantic_extra__ or {}).keys() - REQUEST_KEYS
        if unknown:
            raise ValueError(f"Extra inputs are not permitted: {', '.join(sorted(unknown))}")
        return self

    def to_send(self) -> dict[str, Any]:
        """The request without what endpoints refuse to take back."""
        if isinstance(self.input, list):
            for item in self.input:
                if isinstance(item, dict) and item.get("type") == "reasoning":
                    item.pop("status", None)
        return {**(self.__pydantic_extra__ or {}), "input": self.input}


class OpenAIModel(SimpleResponsesAPIModel):
    """A model server that forwards to an endpoint."""

    config: OpenAIModelConfig

    _upstream: Upstream = PrivateAttr()
    _converter: ResponsesConverter = PrivateAttr()
    _model_key: bytes = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the client; nothing is sent yet."""
        super().model_post_init(context)
        config = self.config
        endpoint = Endpoint(
            base_url=config.openai_base_url,
            api_key=config.openai_api_key,
            default_headers=config.openai_default_headers,
            request_timeout_s=config.request_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            max_retries=config.max_retries,
        )
        secrets = [config.openai_api_key, *config.openai_default_headers.values()]
        address = ModelAddress(shown(config.openai_base_url), config.openai_model, secrets=secrets)
        self._model_key = b'{"model":' + orjson.dumps(config.openai_model) + b","
        self._upstream = Upstream(endpoint, address, max_concurrent_requests=config.max_concurrent_requests)
        self._converter = ResponsesConverter(
            return_token_id_information=False, past_reasoning=config.past_reasoning, keep_strict=True
        )

    def setup_webserver(self) -> FastAPI:
        """Build the app; failed model calls are answered as such and not as a bug of ours."""
        app = super().setup_webserver()
        app.add_exception_handler(ModelCallError, answer_model_error)
        return app

    def responses_handler(self) -> Callable[..., Any]:
        """What answers ``/v1/responses``: where an endpoint speaks the same protocol, its own bytes."""
        relays = self.config.endpoint == "responses" and type(self).responses is OpenAIModel.responses
        return self.relay_responses if relays else self.responses

    async def relay_responses(self, body: ForwardedParams = Body()) -> Response:
        """Answer with what the endpoint said if it is a response as it stands, else with what could be made of it."""
        asked = self.config.extra_body | body.to_send() | {"model": self.config.openai_model}
        content = await self._upstream.post("/responses", encode_json(asked))
        reading = self._read(content, asked)
        if reading.is_repaired:
            content = reading.response.model_dump_json().encode()
        return Response(content, media_type="application/json")

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer a Responses API request."""
        if self.config.endpoint == "chat_completions":
            return await self._responses_by_chat(body)
        content = await self._upstream.post("/responses", self._encode(body))
        return self._read(content, body.model_dump(exclude_unset=True)).response

    def _read(self, content: bytes, asked: Mapping[str, Any]) -> ReadResponse:
        try:
            reading = read_response(content, asked)
        except ValidationError as error:
            hint = HOSTED_TOOLS_HINT if has_unknown_items(error) else None
            raise self._upstream.address.unusable(content, f"no response ({explain(error)})", hint=hint) from error
        if reading.response.status == "failed" or reading.response.error:
            # An agent can't tell this from a model that has nothing to say.
            raise self._upstream.address.unusable(content, "a failed response")
        return reading

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer a Chat Completions request."""
        content = await self._upstream.post("/chat/completions", self._encode(body))
        try:
            completion = read_chat_completion(content)
        except ValidationError as error:
            raise self._upstream.address.unusable(content, f"no chat completion ({explain(error)})") from error
        if not completion.choices:
            raise self._upstream.address.unusable(content, "a chat completion without choices")
        return completion

    async def _responses_by_chat(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        try:
            chat = self._converter.responses_to_chat_completion_create_params(body)
        except UnsupportedContentError as error:
            raise self._upstream.address.error(ModelErrorKind.REJECTED, str(error)) from error
        completion = await self.chat_completions(chat)
        return self._converter.chat_completion_to_response(completion, body, model=self.config.openai_model)

    def _encode(self, body: BaseModel) -> bytes:
        """What the request sets, over the configured defaults, with our model's name."""
        asked = body.__pydantic_serializer__.to_json(body, exclude_unset=True, exclude=WITHOUT_MODEL)
        if not self.config.extra_body:
            # A request is never empty, so ours is the first of several keys.
            return self._model_key + asked[1:]
        return orjson.dumps(self.config.extra_body | orjson.loads(asked) | {"model": self.config.openai_model})


def answer_model_error(_: Request, error: Exception) -> JSONResponse:
    """The answer to a request whose model call failed."""
    assert isinstance(error, ModelCallError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


if __name__ == "__main__":
    OpenAIModel.run_webserver()
