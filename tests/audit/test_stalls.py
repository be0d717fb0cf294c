"""Code that never ends is interrupted, and what takes its time without blocking anybody is not."""

import asyncio
import re
import signal
import time
from collections.abc import Callable

import pytest

from nemo_gym.audit.stalls import interrupted_stalls


def count_for_ever() -> None:
    while True:
        pass


STALLS: dict[str, Callable[[], object]] = {
    "a regular expression": lambda: re.match(r"(\w+)+$", "a" * 5000 + "!"),
    "a huge power": lambda: 9**9**9,
    "a loop": count_for_ever,
    "a pause": lambda: time.sleep(600),
}


@pytest.mark.parametrize("what", STALLS)
async def test_what_never_ends_is_interrupted(what: str) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    async with interrupted_stalls(0.1):
        with pytest.raises(TimeoutError, match=r"blocks the event loop for more than 0\.1 s"):
            STALLS[what]()
        with pytest.raises(TimeoutError):  # and so is the next one
            STALLS[what]()
    assert signal.getsignal(signal.SIGALRM) is handler


async def test_what_does_not_block_is_not_interrupted() -> None:
    async with interrupted_stalls(0.05):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(time.sleep, 0.5)


def test_outside_the_main_thread_nothing_is_interrupted() -> None:
    async def run() -> None:
        async with interrupted_stalls(0.05):
            await asyncio.sleep(0)

    async def in_a_thread() -> None:
        await asyncio.to_thread(lambda: asyncio.run(run()))

    asyncio.run(in_a_thread())
