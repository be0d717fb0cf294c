"""Front door: the base of every environment server, which runs whole episodes with the help of other servers."""

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from nemo_gym.rollout_correlation import rollout_context
from nemo_gym.schemas.episodes import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure
from nemo_gym.schemas.refs import BaseRunServerInstanceConfig
from nemo_gym.schemas.rows import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server_utils import SimpleServer
from nemo_gym.servers.episode_lifecycle import (
    CleanupContext,
    CleanupHandle,
    EpisodeSlots,
    HandledEpisodeError,
    failure_or,
    finish,
)

__all__ = [
    "AggregateMetrics",
    "AggregateMetricsRequest",
    "BaseEnvironmentServer",
    "BaseEnvironmentServerConfig",
    "CleanupContext",
    "CleanupHandle",
    "HandledEpisodeError",
]

Req = TypeVar("Req", bound=BaseModel)
Resp = TypeVar("Resp", bound=BaseModel)


class BaseEnvironmentServerConfig(BaseRunServerInstanceConfig):
    """Settings of an environment server; subclass it to add fields."""

    model_config = ConfigDict(extra="forbid")

    max_concurrent_episodes: int | None = Field(default=None, gt=0)
    queue_timeout_seconds: float | None = Field(default=None, gt=0)
    default_episode_timeout_seconds: float | None = Field(default=None, gt=0)
    cleanup_timeout_seconds: float = Field(gt=0)

    @model_validator(mode="after")
    def _waits_for_a_limited_time(self) -> Self:
        if self.max_concurrent_episodes is not None and self.queue_timeout_seconds is None:
            raise ValueError("max_concurrent_episodes needs queue_timeout_seconds")
        return self


class BaseEnvironmentServer(SimpleServer, Generic[Req, Resp]):
    """An environment server; subclasses set both models and implement ``run`` and ``aggregate_metrics``."""

    config: BaseEnvironmentServerConfig

    request_model: ClassVar[type[BaseModel]] = BaseEpisodeRequest
    response_model: ClassVar[type[BaseModel]] = BaseEpisodeResponse

    _slots: EpisodeSlots | None = PrivateAttr(default=None)

    def setup_webserver(self) -> FastAPI:
        """Build the app with ``/run`` and ``/aggregate_metrics``; its callers have no session."""
        app = FastAPI()

        async def run(body: Any) -> Any:
            return await self.run_request(body)

        run.__annotations__.update(body=self.request_model)  # the route takes the type of its body from here
        app.post("/run", response_model=self.response_model)(run)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    @abstractmethod
    async def run(self, request: Req, cleanup: CleanupContext) -> Resp:
        """Run one episode; what it opens is registered with ``cleanup``."""

    @abstractmethod
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Turn all results into metrics."""

    async def run_request(self, request: Any) -> Any:
        """Run one episode from admission to clean-up. Its reply says how it ended."""
        try:
            async with self._episode_slots().taken():
                response = await self._run_episode(request)
        except HandledEpisodeError as error:
            response = self.failure_response(request, error.failure)
        ids = (response.episode_id, response.task_id)
        if ids != (request.episode_id, request.task.task_id):
            raise ValueError(f"the response is that of another episode: {ids}")
        return response

    def failure_response(self, request: Any, failure: EpisodeFailure) -> Any:
        """The reply to an episode that failed."""
        # As fields, because a response may have a kind of failure of its own.
        fields = {"episode_id": request.episode_id, "task_id": request.task.task_id, "failure": failure.model_dump()}
        return self.response_model.model_validate(fields)

    async def _run_episode(self, request: Any) -> Any:
        cleanup = CleanupContext(request.episode_id, self.config.cleanup_timeout_seconds)
        with rollout_context(request.episode_id.capture_key):
            try:
                timeout_s = self.config.default_episode_timeout_seconds
                ended = await failure_or(self.run(request, cleanup), timeout_s=timeout_s)
            finally:
                await finish(cleanup.aclose())
        return self.failure_response(request, ended) if isinstance(ended, EpisodeFailure) else ended

    def _episode_slots(self) -> EpisodeSlots:
        if self._slots is None:
            self._slots = EpisodeSlots(self.config.max_concurrent_episodes, self.config.queue_timeout_seconds)
        return self._slots
