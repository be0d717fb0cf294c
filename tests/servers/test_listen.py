"""Serving: what is seen when servers stop."""

import asyncio
import logging

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from nemo_gym.servers.listen import bind, listening


async def test_calls_that_are_cut_off_when_servers_stop_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    called = asyncio.Event()

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        called.set()
        await asyncio.Event().wait()

    listener = bind("127.0.0.1", 0, owner="test")
    port = listener.getsockname()[1]
    async with aiohttp.ClientSession() as session:
        with caplog.at_level(logging.INFO):
            async with listening({port: never}, [listener]):
                call = asyncio.create_task(session.get(f"http://127.0.0.1:{port}/"))
                await called.wait()
            await asyncio.gather(call, return_exceptions=True)
    assert "Cancel 1 running task(s)" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
