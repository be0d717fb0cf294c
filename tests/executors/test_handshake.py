"""The collector's end of the connections of workers."""

import asyncio
import socket
from typing import Any

import pytest

from nemo_gym.executors.handshake import Listener


async def never(*_: Any) -> None:
    pytest.fail("nobody knows the secret")


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_is_closed_whenever_the_listener_closes(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(b"secret", never)
    port = await listener.open("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as worker:
        # The event loop accepts it, makes a transport of it and starts its task in turns of their own.
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        try:
            while worker.recv(1000):
                pass
        except ConnectionResetError:
            pass
    assert caplog.records == []
