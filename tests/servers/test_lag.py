import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from nemo_gym.servers.lag import find_blocking_code, watching_lag


def hold_the_loop(seconds: float) -> None:
    time.sleep(seconds)


async def test_blocking_code_is_named_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with watching_lag({"my_env": Path(__file__).parent}, blocked_s=0.05):
        hold_the_loop(0.4)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert messages[0].startswith("my_env blocks the event loop: hold_the_loop at ")
    assert "isolation: process" in messages[0]


async def test_waiting_is_not_blocking(caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    async with watching_lag({}, blocked_s=0.5):
        await asyncio.sleep(0.6)
    assert caplog.records == []


def test_code_outside_any_server_is_named_by_its_place() -> None:
    frame = sys._current_frames()[threading.get_ident()]
    culprit = find_blocking_code(frame, {"elsewhere": Path("/nowhere")})
    assert culprit is not None
    assert culprit.server is None
    assert culprit.function == "test_code_outside_any_server_is_named_by_its_place"
