from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.loader import build_app, construct
from resources_servers.environment_file.app import EnvironmentFileServer

SETTINGS = {"name": "echo", "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "domain": "other"}
CONTENT = [{"type": "output_text", "text": "four", "annotations": []}]
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": CONTENT}
FIXED = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
ROLLOUT = {
    "responses_create_params": {"input": "?"},
    "response": {"id": "r", "created_at": 0, "model": "any", "output": [MESSAGE], **FIXED},
}
ENVIRONMENT = """
import nemo_gym
echo = nemo_gym.Environment()
echo.verify(lambda task, response: len(response.text))
"""
SERVER = """
from nemo_gym import BaseResourcesServerConfig, SimpleResourcesServer
class Config(BaseResourcesServerConfig):
    factor: float = 1.0
class Echo(SimpleResourcesServer):
    config: Config
    def verify(self, task, response):
        return self.config.factor * len(response.text)
"""


def reward(**settings: Any) -> float:
    server = construct(EnvironmentFileServer, {**SETTINGS, **settings}, ServerClient.detached(), where="echo")
    reply = TestClient(build_app(server)).post("/verify", json=ROLLOUT)
    assert reply.status_code == 200, reply.text
    return float(reply.json()["reward"])


@pytest.mark.parametrize(
    ("code", "settings", "expected"), [(ENVIRONMENT, {}, 4.0), (SERVER, {}, 4.0), (SERVER, {"factor": 0.5}, 2.0)]
)
def test_a_file_is_served_with_its_own_settings(
    tmp_path: Path, code: str, settings: dict[str, Any], expected: float
) -> None:
    file = tmp_path / "echo.py"
    file.write_text(code)
    assert reward(file=str(file), **settings) == expected


def test_a_file_must_be_named() -> None:
    with pytest.raises(ConfigError, match="echo: the setting file is missing"):
        reward()
