"""What a replay model records: another model server of the Gym, or an endpoint. Both reply with bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson
from pydantic import BaseModel, Field

from nemo_gym.config_types import ModelServerRef
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.http.connections import request_errors
from nemo_gym.servers.http.gate import gates_of
from nemo_gym.servers.http.urls import check_endpoint, shown
from nemo_gym.servers.models.endpoint import Endpoint, Upstream
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError
from responses_api_models.replay_model.recording import RecordedReply

# Headers that matter in an error reply.
TELLING: Final = (FAILURE_CLASS_HEADER, "Retry-After")


class EndpointSettings(BaseModel):
    """An OpenAI-compatible endpoint."""

    base_url: str
    api_key: str = Field(repr=False)
    model: str | None = None
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    request_timeout_s: float = Field(default=600.0, gt=0)
    connect_timeout_s: float = Field(default=30.0, gt=0)
    max_retries: int = Field(default=8, ge=0)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reply from upstream, and the cookies to send along with the next request."""

    reply: RecordedReply
    cookies: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Where requests are forwarded to."""

    async def forward(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Forwarded:
        """Forward a request; a failure is a reply, too."""
        ...


class ServerSource:
    """A model server of the same Gym."""

    def __init__(self, client: ServerClient, name: str) -> None:
        self._client = client
        self._name = name
        self._address = ModelAddress(f"server {name}", name)

    async def forward(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Forwarded:
        """Forward a request."""
        try:
            reply = await self._client.post(server_name=self._name, url_path=path, json=body, cookies=cookies)
        except request_errors.RequestFailedError as error:
            return _failed(self._address.no_reply(error))
        headers = {name: reply.headers[name] for name in TELLING if name in reply.headers}
        return Forwarded(RecordedReply(reply.status, await reply.read(), headers), reply.cookies)


class EndpointSource:
    """An endpoint outside the Gym."""

    def __init__(self, settings: EndpointSettings, client: ServerClient) -> None:
        check_endpoint(settings.base_url, setting="base_url of the upstream endpoint", has_key=bool(settings.api_key))
        endpoint = Endpoint(
            **settings.model_dump(exclude={"model", "max_concurrent_requests"}),
            gate=gates_of(client).for_role(settings.base_url, "replay"),
        )
        secrets = [settings.api_key, *settings.default_headers.values()]
        address = ModelAddress(shown(settings.base_url), settings.model or "any", secrets=secrets)
        self._model = settings.model
        self._upstream = Upstream(endpoint, address, max_concurrent_requests=settings.max_concurrent_requests)

    async def forward(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Forwarded:  # noqa: ARG002 - ours alone
        """Forward a request, with the model's name if one is configured."""
        if self._model is not None:
            body = orjson.dumps(orjson.loads(body) | {"model": self._model})
        try:
            content = await self._upstream.post(path.removeprefix("/v1"), body)
        except ModelCallError as error:
            return _failed(error)
        return Forwarded(RecordedReply(200, content))


def _failed(error: ModelCallError) -> Forwarded:
    return Forwarded(RecordedReply(error.status, orjson.dumps(error.body()), error.headers()))


def source_of(upstream: ModelServerRef | EndpointSettings | None, client: ServerClient) -> Source | None:
    """Choose the source that the settings name."""
    if upstream is None:
        return None
    return (
        ServerSource(client, upstream.name)
        if isinstance(upstream, ModelServerRef)
        else EndpointSource(upstream, client)
    )
