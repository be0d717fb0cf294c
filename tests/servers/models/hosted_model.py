"""A Gym with one model server, and a small conversation with a tool that its endpoint knows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from responses_api_models.openai_model.tests.scripted_endpoint import Endpoint
from tests.ports import free_port

KEY = "sk-very-secret"


@asynccontextmanager
async def hosted(upstream: Endpoint, kind: str = "openai", **settings: Any) -> AsyncIterator[tuple[GymClient, str]]:
    """The client of a Gym with an openai_model or an anthropic_model, and the server's address for everybody else."""
    port = free_port()
    server = {"entrypoint": "app.py", "host": "127.0.0.1", "port": port, "max_retries": 0}
    address = {f"{kind}_base_url": upstream.url, f"{kind}_api_key": KEY, f"{kind}_model": "real-name"}
    model = {"responses_api_models": {f"{kind}_model": {**server, **address, **settings}}}
    head = {"host": "127.0.0.1", "port": free_port()}
    async with host_gym(OmegaConf.create({"head_server": head, "policy_model": model})) as gym:
        yield gym.client, f"http://127.0.0.1:{port}"


def completion(message: dict[str, Any]) -> dict[str, Any]:
    """A chat completion with this message."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "real-name",
        "choices": [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 40, "b": 2}'}}
ASKS = completion({"content": None, "tool_calls": [CALL]})
SAYS = completion({"content": "It is 42."})
