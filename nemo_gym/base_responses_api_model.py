"""Front door: the base of every model server, which is an adapter to a model."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Self

from fastapi import Body, FastAPI, Request, Response
from pydantic import PrivateAttr, model_validator

from nemo_gym.capture.call_files import (
    CALLS_KEY,
    CaptureStore,
    ModelCallCaptureConfig,
    aggregate_model_call_metrics,
    capture_dirs_of,
    captured_calls,
    read_model_call_records,
)
from nemo_gym.capture.call_records import ModelCallRecord, build_model_call_record, extract_token_stats
from nemo_gym.capture.calls import CallStore
from nemo_gym.capture.gateway import Gateway
from nemo_gym.config.keys import MODEL_CALL_CAPTURE_DIR, OBSERVABILITY_ENABLED
from nemo_gym.conversion.losses import LossPolicy, OnLoss
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.server_utils import BaseServer, SimpleServer
from nemo_gym.servers.attempts import add_attempt_routes
from nemo_gym.servers.models.cache import CachedCalls, identity, open_cache
from nemo_gym.servers.models.call_recording import install_recorder, open_capture_store
from nemo_gym.servers.models.capturing import Capture
from nemo_gym.servers.models.model_requests import takes_unread
from nemo_gym.servers.models.protocols import (
    MESSAGES,
    add_counting_routes,
    add_error_handlers,
    add_gemini_routes,
    add_models_route,
    reply_to_messages,
    request_of_messages,
)
from nemo_gym.servers.models.streaming import CHAT_COMPLETIONS, RESPONSES, Relay, add_streaming_route, noting

__all__ = [
    "BaseResponsesAPIModel",
    "BaseResponsesAPIModelConfig",
    "Body",
    "CaptureStore",
    "ModelCallCaptureConfig",
    "ModelCallRecord",
    "SimpleResponsesAPIModel",
    "aggregate_model_call_metrics",
    "build_model_call_record",
    "extract_token_stats",
    "install_model_call_capture",
    "make_capture_store",
    "maybe_rollout_id_from_run_body",
    "merge_model_call_capture_into_record",
    "model_call_capture_dirs_from_config",
    "observability_enabled_from_config",
    "read_model_call_records",
    "start_model_execution",
]

make_capture_store = open_capture_store
model_call_capture_dirs_from_config = capture_dirs_of


def install_model_call_capture(
    app: FastAPI,
    config: ModelCallCaptureConfig,
    *,
    model_server_name: str | None = None,
    global_config_dict: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
    non_generating_requests: Collection[tuple[str, str]] = frozenset(),
) -> None:
    """Record the model calls of an app in files, if the configuration asks for it.

    Routes that call no model are not recorded in any case, and processes that share a folder append to the same files,
    so the last three parameters change nothing here.
    """
    del global_config_dict, num_workers, non_generating_requests
    store = open_capture_store(config)
    if store is not None:
        install_recorder(app, store, model_server_name)


def merge_model_call_capture_into_record(
    record: dict[str, Any], capture_dirs: Collection[str | Path], *, include_payloads: bool = False
) -> dict[str, Any]:
    """The record with the calls that were recorded of its rollout, if it says which rollout it is."""
    rollout_id = maybe_rollout_id_from_run_body(record)
    if rollout_id is not None and capture_dirs:
        record[CALLS_KEY] = captured_calls(rollout_id, capture_dirs, include_payloads=include_payloads)
    return record


def start_model_execution(request: Request, *, upstream_attempted: bool) -> dict[str, Any]:
    """What a handler notes about where its response came from; those who record calls copy it from the request."""
    execution: dict[str, Any] = {
        "upstream_attempted": upstream_attempted,
        "response_source": None,
        "upstream_status_code": None,
        "local_response_reason": None,
    }
    request.state.nemo_gym_model_execution = execution
    return execution


def observability_enabled_from_config(config: Mapping[str, Any] | None) -> bool:
    """Whether a configuration asks for model calls to be recorded."""
    return bool(config is not None and config.get(OBSERVABILITY_ENABLED))


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """Settings of a model server; subclass it to add fields."""

    # What to do about parts of a request that the endpoint's protocol can't express.
    on_loss: OnLoss = "error"


class BaseResponsesAPIModel(BaseServer):
    """A server that generates responses."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """A model server with the standard routes, and with a cache if the configuration sets one (``+cache=…``)."""

    uses_cache: ClassVar[bool] = True
    # Routes of a subclass that call no model, as (method, path); they are not recorded as model calls.
    non_generating_model_routes: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    _cached_calls: CachedCalls | None = PrivateAttr(default=None)
    _losses: LossPolicy = PrivateAttr(default_factory=LossPolicy)
    _capture: Capture | None = PrivateAttr(default=None)  # of servers that keep the tokens of attempts

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
        # The cache holds whole completions. Streams of them are made here, so the endpoint's own are not passed on.
        relays = self.stream_relays() if self._cached_calls is None else {}
        for path, name in ((CHAT_COMPLETIONS, "chat_completions"), (RESPONSES, "responses")):
            relay = (
                relays.get(path) if self._newest("stream_relays", f"relay_{name}", name) == "stream_relays" else None
            )
            add_streaming_route(app, path, noting(cached(self._handler(name))), relay, losses=self._losses)
        app.post(MESSAGES)(noting(self.messages))
        add_gemini_routes(
            app,
            self._responses_handler(),
            self.count_input_tokens,
            losses=self._losses,
            extras=self.sampling_extras(),
        )
        add_counting_routes(app, self.count_input_tokens, self.count_message_tokens)
        add_models_route(app, self.model_names())
        if self._capture is not None:
            self._capture.add_route(app)
        gateway, calls = getattr(self.server_client, "gateway", None), getattr(self.server_client, "calls", None)
        if isinstance(gateway, Gateway) and isinstance(calls, CallStore) and (self.config.num_workers or 1) == 1:
            add_attempt_routes(app, gateway, calls, self.config.name)
        add_error_handlers(app)
        self._record_calls(app)
        return app

    def _record_calls(self, app: FastAPI) -> None:
        config = getattr(self.server_client, "global_config_dict", None)
        for folder in capture_dirs_of(config if isinstance(config, Mapping) else None):
            if not folder.is_absolute():
                raise ConfigError(f"{MODEL_CALL_CAPTURE_DIR} is {folder}", hint="write an absolute path")
            settings = ModelCallCaptureConfig(observability_enabled=True, model_call_capture_dir=folder)
            install_model_call_capture(app, settings, model_server_name=getattr(self.config, "name", None))

    def _handler(self, name: str) -> Callable[..., Any]:
        """The handler of a route: ``relay_<name>`` if there is one, which takes a request and returns bytes unread.

        The only place that chooses between the two. A subclass that overrides ``<name>`` gets the requests itself.
        """
        hook = "_finalize_served_response"
        if getattr(type(self), hook) is not getattr(SimpleResponsesAPIModel, hook):
            return self._finalized(getattr(self, name))  # the hook wants a response that was read
        handler: Callable[..., Any] = getattr(self, self._newest(f"relay_{name}", name))
        return handler

    def _finalized(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        async def finalized(*values: Any, **named: Any) -> Any:
            return await self._finalize_served_response(await handler(*values, **named))

        return finalized

    async def _finalize_served_response(self, response: Any) -> Any:
        """Change a response before it is sent; for subclasses."""
        return response

    def _newest(self, *names: str) -> str:
        """Which of these methods the most derived class defines; the first of them if it defines several."""
        return next(name for kind in type(self).__mro__ for name in names if name in vars(kind))

    def stream_relays(self) -> Mapping[str, Relay]:
        """The relays, by path, that pass on an endpoint's streams. All other streams are made from whole completions.

        A subclass that overrides the handler of a path takes it over, streams included.
        """
        return {}

    def sampling_extras(self) -> Collection[str]:
        """Which options besides those of the Responses API reach the endpoint by ``relay_responses``."""
        return ()

    def model_names(self) -> list[str]:
        """What ``/v1/models`` lists; requests may call the model anything."""
        return [str(getattr(self.config, "model", None) or self.config.name)]

    async def count_input_tokens(self, body: Mapping[str, Any]) -> int | None:
        """The number of tokens of a request of the Responses API; None if the endpoint can't count them."""
        del body  # for servers that can
        return None

    async def count_message_tokens(self, body: AnthropicMessagesRequest) -> int | None:
        """The same for a request of the Messages API."""
        return await self.count_input_tokens(request_of_messages(body, self._losses))

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Complete one Chat Completions request."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Complete one Responses API request."""

    async def messages(self, request: Request, body: AnthropicMessagesRequest = Body()) -> Response:
        """Complete one request of Anthropic's Messages API, by way of ``/v1/responses``."""
        handler, extras = self._responses_handler(), self.sampling_extras()
        return await reply_to_messages(handler, request, body, losses=self._losses, extras=extras)

    def _responses_handler(self) -> Callable[..., Any]:
        """The handler of ``/v1/responses``, for requests that were converted to it."""
        relay, cached = self._handler("responses"), self._cached_calls
        handler = relay if takes_unread(relay) else self.responses
        return handler if cached is None else cached.wrap(handler)
