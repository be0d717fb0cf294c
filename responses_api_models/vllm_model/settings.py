"""The settings of a vllm_model, and the endpoints, clients and converter made from them."""

from typing import Any, Self

from pydantic import Field, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig
from nemo_gym.conversion.completion_tokens import LogProbs
from nemo_gym.openai_utils import NeMoGymAsyncOpenAI
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.servers.http.gate import Gates, RoleGate
from nemo_gym.servers.http.urls import check_endpoint, shown
from nemo_gym.servers.models.endpoint import Endpoint
from nemo_gym.servers.models.failures import ModelAddress
from responses_api_models.vllm_model.replicas import Replica, Replicas

PROBE_TIMEOUT_S = 2.0


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    """Which endpoints and model to use, and how."""

    base_url: str | list[str]
    api_key: str = Field(repr=False)
    model: str
    return_token_id_information: bool
    uses_reasoning_parser: bool
    uses_interleaved_reasoning: bool = True
    replace_developer_role_with_system: bool = False
    sequential_reasoning_allowed: bool = True
    is_responses_native: bool = False
    strict_tools: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    extra_body: dict[str, Any] | None = None
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    audio_root: str | None = None
    on_policy_correction: bool = True
    logprobs_mode: LogProbs | None = None
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    endpoint_max_concurrent_requests: int | None = Field(default=None, ge=1)
    max_queue_depth: int | None = Field(default=128, ge=1)
    request_timeout_s: float = Field(default=600.0, gt=0)
    connect_timeout_s: float = Field(default=30.0, gt=0)
    max_retries: int = Field(default=8, ge=0)
    weights_token: str | None = Field(default=None, min_length=8, repr=False)

    @model_validator(mode="after")
    def _has_endpoints(self) -> Self:
        if not self.base_urls:
            raise ValueError("base_url is an empty list")
        return self

    @property
    def base_urls(self) -> list[str]:
        """The endpoints as a list."""
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url


def unsupported_settings(config: VLLMModelConfig) -> list[str]:
    """List the settings that cannot be combined with an endpoint's own Responses API."""
    if not config.is_responses_native:
        return []
    chosen = {
        "return_token_id_information": config.return_token_id_information,
        "replace_developer_role_with_system": config.replace_developer_role_with_system,
        "sequential_reasoning_allowed: false": not config.sequential_reasoning_allowed,
    }
    return [name for name, is_chosen in chosen.items() if is_chosen]


def open_replicas(config: VLLMModelConfig, gates: Gates) -> Replicas:
    """Prepare the endpoints; nothing is sent yet."""
    for url in config.base_urls:
        check_endpoint(url, setting=f"base_url of {config.name}", has_key=bool(config.api_key))
    limit = config.endpoint_max_concurrent_requests
    replicas = [_replica(config, url, gates.for_role(url, config.name, limit=limit)) for url in config.base_urls]
    return Replicas(replicas, max_retries=config.max_retries, wait_s=config.request_timeout_s)


def _replica(config: VLLMModelConfig, url: str, gate: RoleGate) -> Replica:
    def endpoint(seconds: float, connect_s: float, *, gate: RoleGate | None = None) -> Endpoint:
        return Endpoint(
            base_url=url,
            api_key=config.api_key,
            default_headers=config.default_headers,
            request_timeout_s=seconds,
            connect_timeout_s=connect_s,
            max_retries=0,  # another endpoint may be the better next attempt
            gate=gate,
        )

    secrets = [config.api_key, *config.default_headers.values()]
    return Replica(
        endpoint=endpoint(config.request_timeout_s, config.connect_timeout_s, gate=gate),
        probe=endpoint(PROBE_TIMEOUT_S, PROBE_TIMEOUT_S),
        address=ModelAddress(shown(url), config.model, secrets=secrets),
        max_queue_depth=config.max_queue_depth,
    )


def open_clients(config: VLLMModelConfig) -> list[NeMoGymAsyncOpenAI]:
    """Make a plain client of each endpoint, for subclasses with calls of their own."""
    return [
        NeMoGymAsyncOpenAI(
            base_url=url,
            api_key=config.api_key,
            default_headers=config.default_headers,
            request_timeout_s=config.request_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            max_retries=config.max_retries,
        )
        for url in config.base_urls
    ]


def make_converter(config: VLLMModelConfig) -> ResponsesConverter:
    """Make the converter. An endpoint that returns reasoning separately also gets it back separately."""
    parsed = config.uses_reasoning_parser and config.uses_interleaved_reasoning
    return ResponsesConverter(
        return_token_id_information=config.return_token_id_information,
        uses_reasoning_parser=config.uses_reasoning_parser,
        past_reasoning="separate" if parsed else "think",
        keep_strict=config.strict_tools,
        on_loss=config.on_loss,
    )
