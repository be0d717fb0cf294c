"""Front door: the base of every model server (an adapter to something that generates)."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from fastapi import Body, FastAPI

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.server_utils import BaseServer, SimpleServer

__all__ = ["BaseResponsesAPIModel", "BaseResponsesAPIModelConfig", "Body", "SimpleResponsesAPIModel"]


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """Settings of a model server; subclass it to add fields."""


class BaseResponsesAPIModel(BaseServer):
    """A server that generates."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """A model server with the standard routes."""

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/v1/chat/completions`` and ``/v1/responses``."""
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/chat/completions")(self.chat_completions)
        app.post("/v1/responses")(self.responses_handler())
        return app

    def responses_handler(self) -> Callable[..., Any]:
        """What answers ``/v1/responses``; a server that can answer more cheaply than by a model says so here."""
        return self.responses

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer one Chat Completions request."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer one Responses API request."""
