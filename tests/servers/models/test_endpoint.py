"""The client for OpenAI-compatible endpoints, against a real server."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.openai_utils import RATE_LIMIT_ERROR_CODES, RETRY_ERROR_CODES, NeMoGymAsyncOpenAI
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.http.request_errors import RequestFailedError, UpstreamResponseError


class Endpoint:
    """Answers every request with the next status of a script, and with what it was asked."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[web.Request] = []
        self.bodies: list[Any] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        self.bodies.append(await request.json() if request.can_read_body else None)
        status = self.statuses.pop(0) if self.statuses else 200
        return web.json_response({"path": request.path}, status=status, headers={"Retry-After": "0"})


@asynccontextmanager
async def serving(*statuses: int) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(*statuses)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", endpoint.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield endpoint
    finally:
        await close_http_client()
        await runner.cleanup()


async def test_each_call_goes_to_its_route_with_key_and_headers() -> None:
    async with serving() as endpoint:
        client = NeMoGymAsyncOpenAI(base_url=endpoint.url + "/", api_key="k", default_headers={"X-Team": "t"})

        assert await client.create_response(input="hi", model="m") == {"path": "/v1/responses"}
        assert await client.create_chat_completion(messages=[]) == {"path": "/v1/chat/completions"}
        assert await client.create_models() == {"path": "/v1/models"}
        assert await client.create_tokenize(prompt="hi") == {"path": "/tokenize"}
        assert endpoint.bodies == [{"input": "hi", "model": "m"}, {"messages": []}, None, {"prompt": "hi"}]
        for request in endpoint.asked:
            assert request.headers["Authorization"] == "Bearer k"
            assert request.headers["X-Team"] == "t"


@pytest.mark.parametrize("status", [429, 500])
async def test_a_busy_or_broken_endpoint_is_asked_again(status: int) -> None:
    async with serving(status) as endpoint:
        client = NeMoGymAsyncOpenAI(base_url=endpoint.url, api_key="k")

        assert await client.create_response(input="hi") == {"path": "/v1/responses"}
        assert len(endpoint.asked) == 2


async def test_retries_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(*[429] * 9) as endpoint:
        client = NeMoGymAsyncOpenAI(base_url=endpoint.url, api_key="secret", max_retries=1)

        with caplog.at_level(logging.WARNING), pytest.raises(UpstreamResponseError) as error:
            await client.create_response(input="hi")

        assert error.value.status == 429
        assert error.value.response_content == b'{"path": "/v1/responses"}'
        assert len(endpoint.asked) == 2
    assert "1 retry so far, the last: POST" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_other_errors_are_raised_at_once(status: int) -> None:
    async with serving(status) as endpoint:
        client = NeMoGymAsyncOpenAI(base_url=endpoint.url, api_key="k")

        with pytest.raises(UpstreamResponseError) as error:
            await client.create_response(input="hi")

        assert error.value.status == status
        assert len(endpoint.asked) == 1


def test_the_key_is_not_in_the_repr() -> None:
    client = NeMoGymAsyncOpenAI(base_url="http://x", api_key="secret", default_headers={"X-Key": "secret"})

    assert "secret" not in repr(client)


def test_the_codes_are_those_of_the_interface() -> None:
    assert RATE_LIMIT_ERROR_CODES == [429, 502, 503, 504, 520]
    assert RETRY_ERROR_CODES == [429, 502, 503, 504, 520, 500]


@asynccontextmanager
async def redirecting(target: str) -> AsyncIterator[str]:
    """An endpoint that sends everybody somewhere else."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": target})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_no_key_follows_a_redirect_to_another_origin() -> None:
    async with serving() as other, redirecting(other.url + "/responses") as url:
        client = NeMoGymAsyncOpenAI(base_url=url, api_key="k", default_headers={"api-key": "secret"})

        with pytest.raises(RequestFailedError, match="redirects to another origin") as error:
            await client.create_response(input="hi", model="m")
        assert "base URL" in str(error.value)
        assert other.asked == []


async def test_without_a_key_the_login_of_the_base_url_counts() -> None:
    async with serving() as endpoint:
        url = endpoint.url.replace("http://", "http://me:secret@")
        await NeMoGymAsyncOpenAI(base_url=url, api_key="").create_models()

        assert endpoint.asked[0].headers["Authorization"].startswith("Basic ")
