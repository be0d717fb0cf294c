from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server_utils import SESSION_ID_KEY


class LedgerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.UNSUPPORTED
    judge_model_server: dict = {}


class Seed(BaseSeedSessionRequest):
    start: int


class Entry(BaseModel):
    city: str


class LedgerVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")
    start: int
    ask_judge: bool = False


class LedgerVerifyResponse(BaseMultiRewardVerifyResponse):
    model_config = ConfigDict(extra="allow")


class LedgerServer(SimpleResourcesServer):
    config: LedgerConfig
    vocabulary: list[str] = []
    entries: dict[str, int] = {}

    def model_post_init(self, context):
        with open("letters.txt") as file:  # beside this file, which is where a server is built
            self.vocabulary = file.read().split()

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_weather")(self.get_weather)
        return app

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:
        self.entries[request.session[SESSION_ID_KEY]] = body.start
        return BaseSeedSessionResponse()

    async def get_weather(self, request: Request, body: Entry) -> dict:
        import helpers  # of this folder, however many servers have one

        self.entries[request.session[SESSION_ID_KEY]] += 1
        return {"entry": f"{body.city} is {self.vocabulary[0]}", "words": helpers.count(body.city + " is cold")}

    async def verify(self, request: Request, body: LedgerVerifyRequest) -> LedgerVerifyResponse:
        if body.ask_judge:
            await call_judge(
                self.server_client,
                server_name=self.config.judge_model_server["name"],
                url_path="/v1/verdicts",  # which no model server has
                json={"input": "Is it cold?"},
                response_model=NeMoGymResponse,
            )
        calls = sum(item.type == "function_call" for item in body.response.output)
        kept = float(self.entries.get(request.session[SESSION_ID_KEY], -1) == body.start + calls)
        answered = float(bool(body.response.output_text))
        return LedgerVerifyResponse(
            **body.model_dump(),
            reward=kept * answered,
            reward_components={"kept": kept, "answered": answered},
            rollout_id=current_rollout_id(),
        )


if __name__ == "__main__":
    LedgerServer.run_webserver()
