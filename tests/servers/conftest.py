"""A small Gym in a folder of its own, the way an author's project looks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.ports import free_port

APP = """
import asyncio, os, sys, time
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class ToyConfig(BaseResourcesServerConfig):
    greeting: str
    other: str | None = None


class Name(BaseModel):
    name: str


class Toy(SimpleResourcesServer):
    config: ToyConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/greet")(self.greet)
        app.post("/whoami")(self.whoami)
        app.post("/ask_other")(self.ask_other)
        app.post("/stream_other")(self.stream_other)
        app.post("/crash")(self.crash)
        app.post("/slow")(self.slow)
        return app

    async def greet(self, body: Name) -> dict[str, str]:
        return {"text": f"{self.config.greeting}, {body.name}"}

    async def whoami(self, request: Request) -> dict[str, object]:
        return {"pid": os.getpid(), "session": request.session[SESSION_ID_KEY]}

    async def ask_other(self, body: Name) -> dict[str, str]:
        answer = await self.server_client.post(server_name=self.config.other, url_path="/greet", json=body)
        return await answer.json()

    async def stream_other(self, body: Name) -> StreamingResponse:
        async def parts():
            yield b"they say: "
            answer = await self.server_client.post(server_name=self.config.other, url_path="/greet", json=body)
            yield await answer.read()

        return StreamingResponse(parts())

    async def slow(self) -> None:
        await asyncio.sleep(60)

    async def crash(self) -> None:
        sys.stderr.write("about to crash\\n")
        sys.stderr.flush()
        os._exit(7)

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Toy.run_webserver()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one resources server, as current directory."""
    folder = tmp_path / "resources_servers" / "toy_for_tests"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return folder


@pytest.fixture
def gym_config(project: Path) -> Callable[..., DictConfig]:
    """Builds a configuration: instance name → settings of its toy server."""

    def build(_implementation: str = "toy_for_tests", /, **instances: dict[str, Any]) -> DictConfig:
        config: dict[str, Any] = {"head_server": {"host": "127.0.0.1", "port": free_port()}}
        for name, settings in instances.items():
            fixed = {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": free_port()}
            config[name] = {"resources_servers": {_implementation: {**fixed, "greeting": "hello", **settings}}}
        return OmegaConf.create(config)

    return build
