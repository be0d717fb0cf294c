"""Front door: the base of every resources server (tools, state, verification)."""

from abc import abstractmethod
from enum import StrEnum
from typing import ClassVar

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.judge import judge_failsafe
from nemo_gym.metrics.aggregate import answers_standard_metrics
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reward_profile import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import BaseServer, SimpleServer

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseMultiRewardVerifyResponse",
    "BaseResourcesServer",
    "BaseResourcesServerConfig",
    "BaseRunRequest",
    "BaseSeedSessionRequest",
    "BaseSeedSessionResponse",
    "BaseVerifyRequest",
    "BaseVerifyResponse",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "ReverifyMode",
    "SimpleResourcesServer",
]


class ReverifyMode(StrEnum):
    """Whether saved rollouts can be scored again without running them again."""

    STATELESS = "stateless"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class BaseResourcesServerConfig(BaseRunServerInstanceConfig):
    """Settings of a resources server; subclass it to add fields."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNKNOWN


class BaseResourcesServer(BaseServer):
    """A server with tools, state and verification."""

    config: BaseResourcesServerConfig


class BaseRunRequest(BaseModel):
    """A task: the request for the model; subclasses add the fields of their rows."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming


class BaseVerifyRequest(BaseRunRequest):
    """A task and what the agent made of it."""

    response: NeMoGymResponse


class BaseVerifyResponse(BaseVerifyRequest):
    """A finished rollout and its reward."""

    reward: float


class BaseMultiRewardVerifyResponse(BaseVerifyResponse):
    """A finished rollout whose reward is made of several; ``reward`` stays the one number that is trained on."""

    reward_components: dict[str, float]


class BaseSeedSessionRequest(BaseModel):
    """The start of a rollout; subclasses name the row fields they need."""


class BaseSeedSessionResponse(BaseModel):
    """The answer to the start of a rollout."""


class SimpleResourcesServer(BaseResourcesServer, AggregateMetricsMixin, SimpleServer):
    """A resources server with the standard routes; add tools in ``setup_webserver``."""

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/seed_session``, ``/verify`` and ``/aggregate_metrics``."""
        app = FastAPI()
        self.setup_session_middleware(app)
        app.post("/seed_session")(self.seed_session)
        app.post("/verify")(judge_failsafe(self.verify))
        app.get("/reverify_mode")(self.get_reverify_mode)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    async def seed_session(self, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        """Prepare the state of one rollout; called before anything else."""
        del body  # for servers that keep state
        return BaseSeedSessionResponse()

    async def get_reverify_mode(self) -> dict[str, ReverifyMode]:
        """Say whether saved rollouts can be scored again; ``ng_reverify`` asks."""
        return {"reverify_mode": ReverifyMode(self.config.REVERIFY_MODE)}

    @abstractmethod
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Score one rollout."""

    @answers_standard_metrics
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Turn all results of one agent into metrics."""
        return compute_aggregate_metrics(body.verify_responses, self.compute_metrics, self.get_key_metrics)
