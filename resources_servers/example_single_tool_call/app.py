"""The smallest environment: one tool, and a reward for whoever finishes."""

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)


class ExampleSingleToolCallConfig(BaseResourcesServerConfig):
    """No settings of its own."""


class GetWeatherRequest(BaseModel):
    """Arguments of the tool."""

    city: str


class GetWeatherResponse(BaseModel):
    """What the model gets back."""

    city: str
    weather_description: str


class ExampleSingleToolCallServer(SimpleResourcesServer):
    """Tells the weather, which is cold everywhere."""

    config: ExampleSingleToolCallConfig

    def setup_webserver(self) -> FastAPI:
        """Add the tool to the standard routes. A tool is a route of the same name."""
        app = super().setup_webserver()
        app.post("/get_weather")(self.get_weather)
        return app

    async def get_weather(self, body: GetWeatherRequest) -> GetWeatherResponse:
        """Describe the weather in a city."""
        return GetWeatherResponse(city=body.city, weather_description=f"The weather in {body.city} is cold.")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        """Reward every rollout that got this far."""
        return BaseVerifyResponse(**dict(body), reward=1.0)


if __name__ == "__main__":
    ExampleSingleToolCallServer.run_webserver()
