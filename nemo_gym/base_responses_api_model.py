"""Front door: the base of every model server, which is an adapter to a model."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Self

from fastapi import Body, FastAPI, Request, Response
from pydantic import PrivateAttr, model_validator

from nemo_gym.conversion.losses import LossPolicy, OnLoss
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.servers.models.answering import forwarded_kind
from nemo_gym.servers.models.cache import CachedCalls, identity, open_cache
from nemo_gym.servers.models.protocols import (
    MESSAGES,
    add_counting_routes,
    add_error_handlers,
    add_models_route,
    answer_messages,
    request_of_messages,
)
from nemo_gym.servers.models.streaming import CHAT_COMPLETIONS, RESPONSES, Relay, add_streaming_route

__all__ = ["BaseResponsesAPIModel", "BaseResponsesAPIModelConfig", "Body", "SimpleResponsesAPIModel"]


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """Settings of a model server; subclass it to add fields."""

    # What to do about parts of a request that the endpoint's protocol can't express.
    on_loss: OnLoss = "error"


class BaseResponsesAPIModel(BaseServer):
    """A server that generates responses."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """A model server with the standard routes, and with a cache if the configuration asks for one (``+cache=…``)."""

    uses_cache: ClassVar[bool] = True

    _cached_calls: CachedCalls | None = PrivateAttr(default=None)
    _losses: LossPolicy = PrivateAttr(default_factory=LossPolicy)

    @model_validator(mode="after")
    def _open_cache(self) -> Self:
        cache = open_cache(getattr(self.server_client, "global_config_dict", None)) if self.uses_cache else None
        if cache is not None:
            self._cached_calls = CachedCalls(cache, identity(type(self), self.config))
        self._losses = LossPolicy(getattr(self.config, "on_loss", "error"))
        return self

    def setup_webserver(self) -> FastAPI:
        """Build the app: ``/v1/chat/completions``, ``/v1/responses``, ``/v1/messages``, models and counts of tokens."""
        app = FastAPI()
        self.setup_session_middleware(app)
        cached = self._cached_calls.wrap if self._cached_calls is not None else lambda handler: handler
        # The cache holds whole answers. Streams of them are made here, so the endpoint's own are not passed on.
        relays = self.stream_relays() if self._cached_calls is None else {}
        for path, handler in (
            (CHAT_COMPLETIONS, self.chat_completions_handler()),
            (RESPONSES, self.responses_handler()),
        ):
            add_streaming_route(app, path, cached(handler), relays.get(path), losses=self._losses)
        app.post(MESSAGES)(self.messages)
        add_counting_routes(app, self.count_input_tokens, self.count_message_tokens)
        add_models_route(app, self.model_names())
        add_error_handlers(app)
        return app

    def stream_relays(self) -> Mapping[str, Relay]:
        """The relays, by path, that pass on an endpoint's streams. All other streams are made from whole answers."""
        return {}

    def responses_handler(self) -> Callable[..., Any]:
        """The handler of ``/v1/responses``; a server can return a cheaper one than ``responses`` here."""
        return self.responses

    def chat_completions_handler(self) -> Callable[..., Any]:
        """The handler of ``/v1/chat/completions``, which can be replaced in the same way."""
        return self.chat_completions

    def sampling_extras(self) -> Collection[str]:
        """Which options besides those of the Responses API reach the endpoint by ``responses_handler``."""
        return ()

    def model_names(self) -> list[str]:
        """What ``/v1/models`` lists; requests may call the model anything."""
        return [str(getattr(self.config, "model", None) or self.config.name)]

    async def count_input_tokens(self, asked: Mapping[str, Any]) -> int | None:
        """The number of tokens of a request of the Responses API; None if the endpoint can't count them."""
        del asked  # for servers that can
        return None

    async def count_message_tokens(self, body: AnthropicMessagesRequest) -> int | None:
        """The same for a request of the Messages API."""
        return await self.count_input_tokens(request_of_messages(body, self._losses))

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer one Chat Completions request."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer one Responses API request."""

    async def messages(self, request: Request, body: AnthropicMessagesRequest = Body()) -> Response:
        """Answer one request of Anthropic's Messages API, by way of ``/v1/responses``."""
        cheap, cached = self.responses_handler(), self._cached_calls
        # The cheaper handler is used only if it takes unparsed requests, with options that only its endpoint knows.
        handler = cheap if forwarded_kind(cheap) else self.responses
        return await answer_messages(
            handler if cached is None else cached.wrap(handler),
            request,
            body,
            losses=self._losses,
            extras=self.sampling_extras(),
        )
