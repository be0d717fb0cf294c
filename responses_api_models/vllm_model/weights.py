"""Forwards weight updates to the inference servers: the same calls to every endpoint, while no request is in progress.

The trainer says which of the servers' own routes to call, with which bodies; the weights get there in whatever way the
server supports (from disk, over NCCL, as an adapter). If an endpoint fails, some endpoints may have the new weights and
others not, so the model stays paused until an update succeeds or it is resumed explicitly.
"""

import asyncio
from typing import Any, Final

from fastapi import HTTPException
from pydantic import BaseModel, Field, field_validator

from nemo_gym.io.json import encode_json
from nemo_gym.servers.http.request_errors import RequestFailedError
from nemo_gym.servers.models.policy import Policy, PolicyState
from responses_api_models.vllm_model.replicas import Replica, Replicas

# Routes of vLLM and SGLang that change weights, and what has to happen around that.
VLLM_PATHS: Final = (
    *("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"),
    *("/collective_rpc", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    *("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache"),
)
SGLANG_PATHS: Final = (
    *("/init_weights_update_group", "/destroy_weights_update_group", "/update_weights_from_distributed"),
    *("/update_weights_from_disk", "/update_weights_from_tensor", "/load_lora_adapter", "/unload_lora_adapter"),
    *("/pause_generation", "/continue_generation", "/flush_cache"),
    *("/release_memory_occupation", "/resume_memory_occupation"),
)
PATHS: Final = frozenset({*VLLM_PATHS, *SGLANG_PATHS})


class EndpointCall(BaseModel):
    """A call to one of the endpoint's own routes; the path may have a query."""

    path: str
    body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("path")
    @classmethod
    def _is_known(cls, path: str) -> str:
        if path.partition("?")[0] not in PATHS:
            raise ValueError(f"{path} is not a route for weight updates; those are {', '.join(sorted(PATHS))}")
        return path


class WeightUpdate(BaseModel):
    """Calls, one after the other, each to all endpoints at once.

    ``drain``: wait first until nothing is in progress; otherwise a completion may come from two versions and is
    recorded under the older one.
    """

    calls: list[EndpointCall] = Field(min_length=1)
    version: int | None = None
    drain: bool = True


async def pass_on(update: WeightUpdate, policy: Policy, replicas: Replicas) -> PolicyState:
    """Make the calls, and increase the version once all endpoints have accepted all of them."""
    async with policy.change(update.version):
        if update.drain:
            async with policy.quiet():
                await _make_calls(update, replicas)
        else:
            await _make_calls(update, replicas)
    return policy.state


async def _make_calls(update: WeightUpdate, replicas: Replicas) -> None:
    for call in update.calls:
        failures = [text for text in await asyncio.gather(*(_send(one, call) for one in replicas.all)) if text]
        if failures:
            raise HTTPException(502, f"{call.path} failed at {'; '.join(failures)}. The model may have mixed weights")


async def _send(replica: Replica, call: EndpointCall) -> str:
    """Make one call; returns what went wrong at this endpoint, or an empty string."""
    try:
        reply = await replica.endpoint.send("POST", replica.root + call.path, encode_json(call.body))
    except RequestFailedError as error:
        return f"{replica.address.endpoint} ({error.reason})"
    if reply.ok:
        return ""
    text = (await reply.read()).decode(errors="replace")[:300]
    return f"{replica.address.endpoint} (status {reply.status}: {text})"
