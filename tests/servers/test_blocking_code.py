import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from nemo_gym.servers.event_loop import find_blocking_code, waited_for_processor, watching_lag


def hold_the_loop(caplog: pytest.LogCaptureFixture, seconds: float = 60.0) -> None:
    """Until there is a warning, and long enough after it for another one."""
    deadline = time.monotonic() + seconds
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)


async def test_blocking_code_is_named_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with watching_lag({"my_env": Path(__file__).parent}, blocked_s=0.05):
        hold_the_loop(caplog)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert messages[0].startswith("my_env blocks the event loop: hold_the_loop at ")
    assert "isolation: process" in messages[0]


async def test_code_is_not_blamed_while_other_programs_have_the_processors(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    async with watching_lag(
        {"my_env": Path(__file__).parent}, blocked_s=0.05, delayed=lambda: time.monotonic() - began
    ):
        hold_the_loop(caplog, 0.2)
    assert caplog.records == []


def test_the_kernel_reports_how_long_a_thread_waited_for_a_processor() -> None:
    assert 0 <= waited_for_processor(threading.get_native_id()) < 10_000
    assert waited_for_processor(2**30) == 0.0


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
