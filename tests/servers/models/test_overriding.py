"""A subclass that overrides a method of a model server is called, whole and as a stream."""

from typing import Any

import httpx
import pytest
from fastapi import Response
from fastapi.responses import JSONResponse

from nemo_gym.base_responses_api_model import Body
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.models.model_requests import UnreadRequest
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from responses_api_models.openai_model.tests.scripted_endpoint import reply, serving
from tests.servers.models.test_streaming import RESPONSE


class Typed(OpenAIModel):
    """Changes requests and completions with the interface's types."""

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        response = await super().responses(body.model_copy(update={"temperature": 0.5}))
        response.metadata = {"by": "typed"}
        return response


class TypedAgain(Typed):
    """Inherits what ``Typed`` overrides."""


class Relaying(Typed):
    """Takes over from ``Typed``, unread."""

    async def relay_responses(self, body: UnreadRequest = Body()) -> Response:
        return JSONResponse(RESPONSE | {"metadata": {"by": "relay", "top_k": str(body.fields.get("top_k"))}})


async def post(kind: type[OpenAIModel], url: str, body: dict[str, Any]) -> httpx.Response:
    address = {"openai_base_url": url, "openai_api_key": "none", "openai_model": "m"}
    config = OpenAIModelConfig(host="h", port=1, entrypoint="", name="policy_model", max_retries=0, **address)
    app = kind(config=config, server_client=ServerClient.detached()).setup_webserver()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
        return await client.post("/v1/responses", json=body)


@pytest.mark.parametrize("kind", [Typed, TypedAgain])
async def test_an_overridden_handler_takes_the_route_and_its_streams(kind: type[OpenAIModel]) -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        whole = await post(kind, endpoint.url, {"input": "hi"})
        streamed = await post(kind, endpoint.url, {"input": "hi", "stream": True})

    assert whole.json()["metadata"] == {"by": "typed"}
    assert '"by":"typed"' in streamed.text
    assert [body["temperature"] for body in endpoint.bodies] == [0.5, 0.5]
    assert all("stream" not in body for body in endpoint.bodies)


async def test_the_most_derived_class_decides_whether_a_request_is_read() -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        relayed = await post(Relaying, endpoint.url, {"input": "hi", "top_k": 5})
        refused = await post(Typed, endpoint.url, {"input": "hi", "top_k": 5})

    assert relayed.json()["metadata"] == {"by": "relay", "top_k": "5"}
    assert (refused.status_code, endpoint.bodies) == (422, [])
