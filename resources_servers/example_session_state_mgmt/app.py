"""State that lives as long as a rollout: every session has a counter, which no other rollout can see."""

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class ExampleSessionStateMgmtConfig(BaseResourcesServerConfig):
    """No settings of its own."""


class CounterSeedSessionRequest(BaseSeedSessionRequest):
    """Where the rollout's counter starts."""

    initial_count: int


class IncrementCounterRequest(BaseModel):
    """Arguments of ``increment_counter``."""

    count: int


class IncrementCounterResponse(BaseModel):
    """Says that the counter was changed."""

    success: bool


class GetCounterValueResponse(BaseModel):
    """The value of the rollout's counter."""

    count: int


class CounterVerifyRequest(BaseVerifyRequest):
    """A row and what the agent made of it."""

    initial_count: int
    expected_count: int


class CounterVerifyResponse(CounterVerifyRequest, BaseVerifyResponse):
    """The score."""


class ExampleSessionStateMgmtServer(SimpleResourcesServer):
    """Counts, separately for every session."""

    config: ExampleSessionStateMgmtConfig
    counters: dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        """Add both tools to the standard routes."""
        app = super().setup_webserver()
        app.post("/increment_counter")(self.increment_counter)
        app.post("/get_counter_value")(self.get_counter_value)
        return app

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: CounterSeedSessionRequest
    ) -> BaseSeedSessionResponse:
        """Start the counter; a repeated call does not reset it."""
        self.counters.setdefault(request.session[SESSION_ID_KEY], body.initial_count)
        return BaseSeedSessionResponse()

    async def increment_counter(self, request: Request, body: IncrementCounterRequest) -> IncrementCounterResponse:
        """Add to the rollout's counter."""
        session_id = request.session[SESSION_ID_KEY]
        self.counters[session_id] = self.counters.get(session_id, 0) + body.count
        return IncrementCounterResponse(success=True)

    async def get_counter_value(self, request: Request) -> GetCounterValueResponse:
        """Read the rollout's counter."""
        return GetCounterValueResponse(count=self.counters.get(request.session[SESSION_ID_KEY], 0))

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: CounterVerifyRequest
    ) -> CounterVerifyResponse:
        """Reward a counter that ended where the row says."""
        count = self.counters.get(request.session[SESSION_ID_KEY], 0)
        return CounterVerifyResponse(**dict(body), reward=float(count == body.expected_count))


if __name__ == "__main__":
    ExampleSessionStateMgmtServer.run_webserver()
