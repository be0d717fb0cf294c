"""State that belongs to one rollout: each session has a counter that no other rollout can see."""

from fastapi import FastAPI, Request
from pydantic import BaseModel, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionStates,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class Start(BaseSeedSessionRequest):
    """The part of a row that sets the counter."""

    initial_count: int


class Step(BaseModel):
    """Arguments of ``increment_counter``; a negative count goes down."""

    count: int


class Done(BaseModel):
    """Result of ``increment_counter``."""

    success: bool = True


class Reading(BaseModel):
    """Result of ``get_counter_value``."""

    count: int


class CountedRollout(BaseVerifyRequest):
    """A row with the agent's response."""

    initial_count: int
    expected_count: int


class ScoredCount(CountedRollout, BaseVerifyResponse):
    """The row with its reward."""


class CounterEnvironment(SimpleResourcesServer):
    """Keeps one number for each session."""

    config: BaseResourcesServerConfig

    _counts: SessionStates[int] = PrivateAttr(default_factory=SessionStates)

    def setup_webserver(self) -> FastAPI:
        """Serve both tools."""
        app = super().setup_webserver()
        for name, tool in (("increment_counter", self.step), ("get_counter_value", self.read)):
            app.add_api_route(f"/{name}", tool, methods=["POST"])
        return app

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, start: Start
    ) -> BaseSeedSessionResponse:
        """Set the counter. Seeding a session twice does not reset it."""
        self._counts.setdefault(session_of(request), start.initial_count)
        return BaseSeedSessionResponse()

    async def step(self, request: Request, step: Step) -> Done:
        """Move the session's counter."""
        session = session_of(request)
        self._counts[session] = self._counts.get(session, 0) + step.count
        return Done()

    async def read(self, request: Request) -> Reading:
        """Read the session's counter, which is 0 if the session was never seeded."""
        return Reading(count=self._counts.get(session_of(request), 0))

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: CountedRollout
    ) -> ScoredCount:
        """Reward a counter that ended where the row wants it."""
        reached = self._counts.get(session_of(request), 0) == body.expected_count
        return ScoredCount(**dict(body), reward=float(reached))


def session_of(request: Request) -> str:
    """Identify the rollout that a request belongs to."""
    return str(request.session[SESSION_ID_KEY])


if __name__ == "__main__":
    CounterEnvironment.run_webserver()
