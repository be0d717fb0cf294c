"""The smallest environment: one tool, and a reward for every rollout that finishes."""

from collections.abc import Mapping
from typing import ClassVar

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)


class WeatherQuestion(BaseModel):
    """Arguments of ``get_weather``."""

    city: str


class WeatherReport(BaseModel):
    """What the model reads as the tool's result."""

    city: str
    weather_description: str


class WeatherEnvironment(SimpleResourcesServer):
    """Reports cold weather for every city."""

    config: BaseResourcesServerConfig
    known_holes: ClassVar[Mapping[str, str]] = {"*": "an example that rewards every rollout, to show how one is made"}

    def setup_webserver(self) -> FastAPI:
        """Serve the tool under its own name, which is how agents find it."""
        app = super().setup_webserver()
        app.add_api_route("/get_weather", self.report, methods=["POST"])
        return app

    async def report(self, question: WeatherQuestion) -> WeatherReport:
        """Answer one call of ``get_weather``."""
        return WeatherReport(city=question.city, weather_description=f"The weather in {question.city} is cold.")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Reward every rollout that got this far."""
        return BaseVerifyResponse(**vars(body), reward=1.0)


if __name__ == "__main__":
    WeatherEnvironment.run_webserver()
