"""Front door: the base of every agent server, which takes a task, calls the model and tools, and has it scored."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from fastapi import Body, FastAPI

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.config.addresses import base_url, server_settings
from nemo_gym.metrics.aggregate import answers_standard_metrics
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.rollout_correlation import current_rollout_id, maybe_rollout_id_from_run_body
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig, ModelServerRef
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import BaseServer, SimpleServer, apply_rollout_prefix, get_server_url, rollout_path_prefix

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseResponsesAPIAgent",
    "BaseResponsesAPIAgentConfig",
    "Body",
    "SimpleResponsesAPIAgent",
]


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """Settings of an agent server; subclass it to add fields."""


class BaseResponsesAPIAgent(BaseServer):
    """A server that runs rollouts."""

    config: BaseResponsesAPIAgentConfig


class SimpleResponsesAPIAgent(BaseResponsesAPIAgent, AggregateMetricsMixin, SimpleServer):
    """An agent with the standard routes."""

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/v1/responses``, ``/run`` and ``/aggregate_metrics``."""
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.responses)
        app.post("/run")(self.run_handler())
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    def run_handler(self) -> Callable[..., Any]:
        """The handler of ``/run``; an agent can return a cheaper one than ``run`` here."""
        return self.run

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Work on one request until there is an answer; ``output`` is the whole trajectory."""

    @abstractmethod
    async def run(self, body: BaseRunRequest = Body()) -> BaseVerifyResponse:
        """Run one rollout: seed, respond, verify."""

    def rollout_id_from_run(self, body: Any) -> str | None:
        """The id of the rollout that a body of ``/run`` asks for."""
        return maybe_rollout_id_from_run_body(body) or current_rollout_id()

    def url_path_for_run(self, url_path: str, body: Any) -> str:
        """A path of another server that marks the call as part of the rollout in ``body``."""
        return rollout_path_prefix(self.rollout_id_from_run(body)) + url_path

    def url_path_for_request(self, url_path: str, request: Any = None) -> str:
        """A path of another server that marks the call as part of the rollout that is being served."""
        del request  # the rollout of the current call is known without it
        return rollout_path_prefix(current_rollout_id()) + url_path

    def base_url_for_run(self, base_url: str, body: Any) -> str:
        """An address under which every call is part of the rollout in ``body``. Accepts a server's name too."""
        if "://" not in base_url:
            base_url = get_server_url(base_url)
        return apply_rollout_prefix(base_url, self.rollout_id_from_run(body))

    def resolve_model_base_url(self, model_server: ModelServerRef | str, body: Any = None) -> str:
        """The OpenAI base URL of a model server, for programs that bring their own client."""
        name = model_server if isinstance(model_server, str) else model_server.name
        address = base_url(server_settings(self.server_client.global_config_dict, name))
        return apply_rollout_prefix(address, self.rollout_id_from_run(body)) + "/v1"

    @answers_standard_metrics
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Turn all results of this agent into metrics."""
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)
