"""Front door: the base of every agent server (it takes a task, talks to the model and the tools, and has it scored)."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from fastapi import Body, FastAPI

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.metrics.aggregate import answers_standard_metrics
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import BaseServer, SimpleServer

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
        """What answers ``/run``; an agent that can answer more cheaply than by a model says so here."""
        return self.run

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Work on one request until there is an answer; ``output`` is the whole trajectory."""

    @abstractmethod
    async def run(self, body: BaseRunRequest = Body()) -> BaseVerifyResponse:
        """Run one rollout: seed, respond, verify."""

    @answers_standard_metrics
    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Turn all results of this agent into metrics."""
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)
