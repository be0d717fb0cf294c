import asyncio
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


async def test_calls_that_hold_the_loop_for_a_large_share_of_the_time_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def verify() -> None:
        time.sleep(0.25)  # noqa: ASYNC251 - blocks, but for less time than is named at once

    deadline = time.monotonic() + 60
    async with watching_lag({"my_env": Path(__file__).parent}, blocked_s=0.6):
        while not caplog.records and time.monotonic() < deadline:
            await asyncio.create_task(verify())
            await asyncio.sleep(0.25)
    [message] = [record.getMessage() for record in caplog.records]
    assert "verify at " in message
    assert "% of the last " in message


async def test_a_loop_that_is_full_of_short_calls_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    async def verify() -> None:
        for _ in range(10):
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
            await asyncio.sleep(0)

    async with watching_lag({"my_env": Path(__file__).parent}, blocked_s=0.2):
        await asyncio.gather(*(verify() for _ in range(15)))
    assert caplog.records == []


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
    async with watching_lag({}, blocked_s=0.5):
        await asyncio.sleep(0.6)
    assert caplog.records == []


def test_code_outside_any_server_is_named_by_its_place() -> None:
    frame = sys._current_frames()[threading.get_ident()]
    culprit = find_blocking_code(frame, {"elsewhere": Path("/nowhere")})
    assert culprit is not None
    assert culprit.server is None
    assert culprit.function == "test_code_outside_any_server_is_named_by_its_place"
