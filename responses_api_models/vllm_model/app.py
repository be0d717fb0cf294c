"""A model behind one or several endpoints that speak Chat Completions: vLLM, SGLang, llama.cpp and similar servers.

Requests of the Responses API are converted, sessions stay with their endpoint, and for training every completion
carries its tokens. A prompt that does not fit the context gets an empty, incomplete completion, so the rollout ends as
it would at the token limit. Every other failure of an endpoint becomes an error reply that names the endpoint, the
model and what to do, but not the key.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import orjson
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic import PrivateAttr

from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.conversion.parts import SAMPLING_EXTRAS
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import VLLMConverter, request_as_sent, split_responses_input_output_items
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.http.gate import gates_of
from nemo_gym.servers.models.capturing import capture_of
from nemo_gym.servers.models.model_requests import ForwardedChatParams, UnreadRequest
from nemo_gym.servers.models.policy import PolicyState
from nemo_gym.servers.models.streaming import CHAT_COMPLETIONS, Relay
from responses_api_models.vllm_model.calls import ModelCalls
from responses_api_models.vllm_model.chat_streams import ChatStreams
from responses_api_models.vllm_model.rendering import rendering_request
from responses_api_models.vllm_model.replicas import good_content
from responses_api_models.vllm_model.settings import (
    VLLMModelConfig,
    make_converter,
    open_clients,
    unsupported_settings,
)
from responses_api_models.vllm_model.weights import WeightUpdate, pass_on

# Servers written for NeMo Gym import the converter from here.
__all__ = ["VLLMConverter", "VLLMModel", "VLLMModelConfig", "split_responses_input_output_items"]


class UnsupportedSettingsError(ConfigError, NotImplementedError):
    """Settings that cannot be combined."""


class VLLMModel(SimpleResponsesAPIModel):
    """A model server that forwards requests to inference servers.

    Subclasses may override ``get_converter`` and ``_preprocess_chat_completion_create_params``. One that learns its
    endpoints only later sets them in ``config`` and calls ``_post_init`` again.
    """

    config: VLLMModelConfig

    _calls: ModelCalls = PrivateAttr()
    _converter: VLLMConverter = PrivateAttr()
    _clients: list[NeMoGymAsyncOpenAI] = PrivateAttr(default_factory=list)

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the clients; nothing is sent yet."""
        super().model_post_init(context)
        excluded = unsupported_settings(self.config)
        if excluded:
            raise UnsupportedSettingsError(
                f"{self.config.name}: is_responses_native cannot be combined with {', '.join(excluded)}",
                hint="set is_responses_native: false",
            )
        self._post_init()

    def _post_init(self) -> None:
        self._converter = self.get_converter()
        preprocess = self._preprocess_chat_completion_create_params
        self._capture = capture_of(self.server_client, self.config)
        gates, own = gates_of(self.server_client), ("_preprocess_chat_completion_create_params", "get_converter")
        resumes = all(getattr(type(self), name) is getattr(VLLMModel, name) for name in own)
        self._calls = ModelCalls(self.config, gates, self._converter, preprocess, self._capture, resumes=resumes)
        self._clients = open_clients(self.config)

    def get_converter(self) -> VLLMConverter:
        """Make the converter between the Responses API and Chat Completions."""
        return make_converter(self.config)

    def _preprocess_chat_completion_create_params(
        self, request: Request | None, body_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """Adapt a chat request to the endpoint. The result is sent as it is, apart from the model's name."""
        del request  # for subclasses
        return self._calls.adapted(body_dict)

    def setup_webserver(self) -> FastAPI:
        """Build the app, with what inference servers offer besides OpenAI's protocols."""
        app = super().setup_webserver()
        app.post("/tokenize")(self.tokenize)
        app.post("/detokenize")(self.detokenize)
        app.get("/health")(self.health)
        if self._calls.policy is not None:
            self._calls.policy.add_routes(app, self.update_weights)
        return app

    async def relay_responses(self, request: Request, body: UnreadRequest = Body()) -> Response:
        """Complete a Responses API request that the endpoint checks."""
        session = self._calls.session(request, body)
        return JsonResponse(encode_json(await self._calls.respond_to(session, body, request=request)))

    async def responses(  # type: ignore[override]  # FastAPI passes what a handler names
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Complete a Responses API request."""
        sent = request_as_sent(body)
        response = await self._calls.respond(self._calls.session(request, sent), sent, request=request)
        return NeMoGymResponse.model_validate(response)

    async def chat_completions(  # type: ignore[override]  # FastAPI passes what a handler names
        self, request: Request, body: ForwardedChatParams = Body()
    ) -> NeMoGymChatCompletion:
        """Complete a Chat Completions request; options that the protocol does not know reach the endpoint."""
        chat = body.model_dump(exclude_unset=True)
        return await self._calls.complete(self._calls.session(request, chat), chat, request=request)

    def stream_relays(self) -> Mapping[str, Relay]:
        """Pass on streamed chats, unless a setting changes the completions."""
        return {CHAT_COMPLETIONS: ChatStreams(self._calls).reply} if ChatStreams.can_serve(self._calls) else {}

    def sampling_extras(self) -> Collection[str]:
        """Name the options of a chat that the Responses API does not have."""
        return () if self.config.is_responses_native else SAMPLING_EXTRAS

    async def count_input_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Count with the endpoint's ``/tokenize``, if it has one that accepts chats."""
        if self.config.is_responses_native:
            return None
        chat = self._calls.adapted(self._converter.request_to_chat(body))
        prompt = rendering_request(chat, self._calls.dialect, chat["messages"])
        reply = await self._calls.post("", "/tokenize", prompt)
        if reply.status in (404, 405, 501):
            return None
        count = orjson.loads(good_content(reply)).get("count")
        return count if isinstance(count, int) else None

    async def tokenize(self, request: Request, body: dict[str, Any] = Body()) -> Response:
        """Turn a prompt into tokens, if the endpoint can."""
        reply = await self._calls.post(self._calls.session(request, body), "/tokenize", body)
        return Response(good_content(reply), media_type="application/json")

    async def detokenize(self, request: Request, body: dict[str, Any] = Body()) -> Response:
        """Turn tokens into text, if the endpoint can."""
        reply = await self._calls.post(self._calls.session(request, body), "/detokenize", body)
        return Response(good_content(reply), media_type="application/json")

    async def update_weights(self, body: WeightUpdate) -> PolicyState:
        """Pass weight updates on to all endpoints."""
        assert self._calls.policy is not None
        if self._cached_calls is not None:
            raise HTTPException(409, "completions are cached (+cache): those of earlier weights would be given again")
        return await pass_on(body, self._calls.policy, self._calls.replicas)

    async def health(self) -> JSONResponse:
        """Report which endpoints work and how long their queues are; 503 if none works."""
        healthy = await asyncio.gather(*(replica.is_healthy() for replica in self._calls.replicas.all))
        found = [
            {"endpoint": replica.address.endpoint, "healthy": works, "queue_depth": replica.gauge.depth}
            for replica, works in zip(self._calls.replicas.all, healthy, strict=True)
        ]
        return JSONResponse({"endpoints": found}, status_code=200 if any(healthy) else 503)


if __name__ == "__main__":
    VLLMModel.run_webserver()
