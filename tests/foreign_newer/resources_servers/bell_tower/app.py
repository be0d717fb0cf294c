from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    SimpleResourcesServer,
)
from nemo_gym.failure_kinds import PROVIDER_UNAVAILABLE
from nemo_gym.server_utils import SESSION_ID_KEY


class BellTowerConfig(BaseResourcesServerConfig):
    greeting: str = "ding"


class BellTowerSeed(BaseSeedSessionRequest):
    strikes: int


class BellTowerRow(BaseRunRequest):
    strikes: int
    broken: bool = False


class BellTowerVerifyRequest(BellTowerRow, BaseVerifyRequest):
    pass


class BellTowerVerifyResponse(BaseVerifyResponse):
    strikes: int
    rung: int
    closed: int


class City(BaseModel):
    city: str


class BellTower(SimpleResourcesServer):
    ray_enabled = False
    config: BellTowerConfig

    _strikes: dict[str, int] = PrivateAttr(default_factory=dict)
    _rung: dict[str, int] = PrivateAttr(default_factory=dict)
    _closed: set[str] = PrivateAttr(default_factory=set)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        self.setup_cancellation_middleware(app)
        app.post("/get_weather")(self.get_weather)
        return app

    async def seed_session(
        self, request: Request, body: ResourcesSeedSessionRequest | BellTowerSeed
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        session = request.session[SESSION_ID_KEY]
        if isinstance(body, ResourcesSeedSessionRequest):
            if body.resources_session_id in self._closed:
                raise HTTPException(409, "closed")
            self._strikes[session] = body.task_data["strikes"]
            return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)
        self._strikes[session] = body.strikes
        return BaseSeedSessionResponse()

    async def close_resources_session(
        self, request: Request, body: ResourcesCloseSessionRequest
    ) -> ResourcesCloseSessionResponse:
        self._closed.add(body.resources_session_id)
        self._strikes.pop(request.session[SESSION_ID_KEY], None)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    async def get_weather(self, request: Request, body: City) -> dict[str, str]:
        session = request.session[SESSION_ID_KEY]
        self._rung[session] = self._rung.get(session, 0) + self._strikes[session]
        return {"bell": " ".join([self.config.greeting] * self._strikes[session])}

    async def verify(self, request: Request, body: BellTowerVerifyRequest) -> BellTowerVerifyResponse:
        rung = self._rung.get(request.session[SESSION_ID_KEY], 0)
        told = {"mask_sample": True, "failure_kind": PROVIDER_UNAVAILABLE, "failure_reason": "no rope"}
        return BellTowerVerifyResponse(
            **body.model_dump(exclude={"broken"}),
            reward=float(rung == body.strikes),
            rung=rung,
            closed=len(self._closed),
            **(told if body.broken else {}),
        )


if __name__ == "__main__":
    BellTower.run_webserver()
