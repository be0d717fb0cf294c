"""A model behind one or several endpoints that speak Chat Completions: vLLM, SGLang, llama.cpp and their kind.

Requests of the Responses API are converted, sessions stay with their endpoint, and, for training, every answer carries
the tokens it was made of. A prompt that does not fit the context gets an empty, incomplete answer: the rollout ends
there, as it would have with one token more. Everything else that goes wrong upstream becomes one error answer that
names the endpoint, the model and what to do, and never the key.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import PrivateAttr

from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import request_as_sent
from nemo_gym.servers.models.answering import answer_model_error
from nemo_gym.servers.models.failures import ModelCallError
from nemo_gym.servers.models.gate import gates_of
from responses_api_models.vllm_model.calls import ModelCalls, SessionCalls, good_content
from responses_api_models.vllm_model.settings import VLLMModelConfig, unsupported_settings


class UnsupportedSettingsError(ConfigError, NotImplementedError):
    """Settings that exclude each other."""


class VLLMModel(SimpleResponsesAPIModel):
    """A model server that asks inference servers."""

    config: VLLMModelConfig

    _calls: ModelCalls = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the clients; nothing is sent yet."""
        super().model_post_init(context)
        excluded = unsupported_settings(self.config)
        if excluded:
            raise UnsupportedSettingsError(
                f"{self.config.name}: is_responses_native does not go together with {', '.join(excluded)}",
                hint="set is_responses_native: false",
            )
        self._calls = ModelCalls(self.config, gates_of(self.server_client))

    def setup_webserver(self) -> FastAPI:
        """Build the app; failed model calls are answered as such and not as a bug of ours."""
        app = super().setup_webserver()
        app.add_exception_handler(ModelCallError, answer_model_error)
        app.post("/tokenize")(self.tokenize)
        app.post("/detokenize")(self.detokenize)
        app.get("/health")(self.health)
        return app

    def responses_handler(self) -> Callable[..., Any]:
        """What answers ``/v1/responses``, without a look at what the endpoint checks itself."""
        if type(self).responses is not VLLMModel.responses:
            return self.responses
        is_one = len(self._calls.replicas.all) == 1
        return self._calls.relay_responses if is_one else SessionCalls(self._calls).relay_responses

    async def responses(  # type: ignore[override]  # FastAPI passes what a handler names
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Answer a Responses API request."""
        return NeMoGymResponse.model_validate(
            await self._calls.respond(self._calls.session(request), request_as_sent(body))
        )

    async def chat_completions(  # type: ignore[override]  # FastAPI passes what a handler names
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer a Chat Completions request."""
        return await self._calls.complete(self._calls.session(request), body.model_dump(exclude_unset=True))

    async def tokenize(self, request: Request, body: dict[str, Any] = Body()) -> Response:
        """Turn a prompt into tokens, where an endpoint can."""
        answer = await self._calls.post(self._calls.session(request), "/tokenize", body)
        return Response(good_content(answer), media_type="application/json")

    async def detokenize(self, request: Request, body: dict[str, Any] = Body()) -> Response:
        """Turn tokens into text, where an endpoint can."""
        answer = await self._calls.post(self._calls.session(request), "/detokenize", body)
        return Response(good_content(answer), media_type="application/json")

    async def health(self) -> JSONResponse:
        """Which endpoints work, and how long their queues are; 503 if none does."""
        healthy = await asyncio.gather(*(replica.is_healthy() for replica in self._calls.replicas.all))
        found = [
            {"endpoint": replica.address.endpoint, "healthy": works, "queue_depth": replica.gauge.depth}
            for replica, works in zip(self._calls.replicas.all, healthy, strict=True)
        ]
        return JSONResponse({"endpoints": found}, status_code=200 if any(healthy) else 503)


if __name__ == "__main__":
    VLLMModel.run_webserver()
