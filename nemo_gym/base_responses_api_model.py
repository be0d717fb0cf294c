"""Front door: the base of every model server, which is an adapter to a model."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from fastapi import Body, FastAPI, Request, Response
from pydantic import PrivateAttr, model_validator

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.servers.models.answering import answer_messages
from nemo_gym.servers.models.cache import CachedCalls, identity, open_cache

__all__ = ["BaseResponsesAPIModel", "BaseResponsesAPIModelConfig", "Body", "SimpleResponsesAPIModel"]


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """Settings of a model server; subclass it to add fields."""


class BaseResponsesAPIModel(BaseServer):
    """A server that generates responses."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """A model server with the standard routes, and with a cache if the configuration asks for one (``+cache=…``)."""

    uses_cache: ClassVar[bool] = True

    _cached_calls: CachedCalls | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _open_cache(self) -> Self:
        cache = open_cache(getattr(self.server_client, "global_config_dict", None)) if self.uses_cache else None
        if cache is not None:
            self._cached_calls = CachedCalls(cache, identity(type(self), self.config))
        return self

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/v1/chat/completions``, ``/v1/responses`` and ``/v1/messages``."""
        app = FastAPI()
        self.setup_session_middleware(app)
        cached = self._cached_calls.wrap if self._cached_calls is not None else lambda handler: handler
        app.post("/v1/chat/completions")(cached(self.chat_completions_handler()))
        app.post("/v1/responses")(cached(self.responses_handler()))
        app.post("/v1/messages")(self.messages)
        return app

    def responses_handler(self) -> Callable[..., Any]:
        """The handler of ``/v1/responses``; a server can return a cheaper one than ``responses`` here."""
        return self.responses

    def chat_completions_handler(self) -> Callable[..., Any]:
        """The handler of ``/v1/chat/completions``, which can be replaced in the same way."""
        return self.chat_completions

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer one Chat Completions request."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer one Responses API request."""

    async def messages(self, request: Request, body: AnthropicMessagesRequest = Body()) -> Response:
        """Answer one request of Anthropic's Messages API through ``responses``."""
        cached = self._cached_calls
        responses = self.responses if cached is None else cached.wrap_typed(self.responses, NeMoGymResponse)
        return await answer_messages(responses, request, body)
