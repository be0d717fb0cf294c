"""A shared timer ends what ``asyncio.timeout`` would end, and in the same way."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from nemo_gym.servers.http.deadlines import Deadlines, WaitedTimes, adopt_attempt, attempt_deadline, not_counted

Within = Callable[[float | None], AbstractAsyncContextManager[object]]
Case = Callable[[Within], Coroutine[Any, Any, object]]
LONG_S = 60.0
SOON_S = 0.01


def shared(short_s: float) -> Within:
    deadlines = Deadlines(tick_s=0.005, short_s=short_s)

    @asynccontextmanager
    async def within(seconds: float | None) -> AsyncIterator[object]:
        with deadlines.within(seconds) as deadline:
            yield deadline

    return within


async def in_time(within: Within) -> object:
    async with within(LONG_S):
        await asyncio.sleep(0)
    async with within(None):
        return await asyncio.sleep(0, "done")


async def too_late(within: Within) -> object:
    async with within(SOON_S):
        await asyncio.sleep(LONG_S)
    return "it went on"


async def longer_ones_first(within: Within) -> object:
    async with within(LONG_S):
        try:
            async with within(SOON_S):
                await asyncio.sleep(LONG_S)
        except TimeoutError:
            return "the inner one"
    return "it went on"


async def the_outer_one_is_shorter(within: Within) -> object:
    async with within(SOON_S):
        try:
            async with within(LONG_S):
                await asyncio.sleep(LONG_S)
        except TimeoutError:
            return "the inner one"
    return "it went on"


async def cancelled_from_outside(within: Within) -> object:
    async def work() -> None:
        async with within(LONG_S):
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def cancelled_while_it_ends(within: Within) -> object:
    ending = asyncio.Event()

    async def work() -> None:
        async with within(SOON_S):
            try:
                await asyncio.sleep(LONG_S)
            finally:
                ending.set()
                await asyncio.sleep(LONG_S)

    task = asyncio.create_task(work())
    await ending.wait()
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def another_error(within: Within) -> object:
    async with within(LONG_S):
        raise KeyError("its own")


async def late_but_done(within: Within) -> object:
    async with within(SOON_S):
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            return "it came to an end"
    return "it went on"


CASES = [
    in_time,
    too_late,
    longer_ones_first,
    the_outer_one_is_shorter,
    cancelled_from_outside,
    cancelled_while_it_ends,
    another_error,
    late_but_done,
]


async def seen(case: Case, within: Within) -> tuple[str, object, int]:
    """What a caller gets, and whether the task could go on as if nothing had happened."""
    task = asyncio.current_task()
    assert task is not None
    try:
        result = "value", await case(within)
    except Exception as error:  # noqa: BLE001 - compared below
        result = "error", repr(error)
    return (*result, task.cancelling())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("short_s", [0.0, LONG_S + 1], ids=["one timer", "own timers"])
def test_a_limit_ends_like_one_of_asyncio(case: Case, short_s: float) -> None:
    async def both() -> None:
        assert await seen(case, shared(short_s)) == await seen(case, asyncio.timeout)

    asyncio.run(both())


def test_thousands_of_limits_take_one_timer_of_the_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        set_by_loop: list[float] = []
        call_later = loop.call_later

        def counted(delay: float, *rest: Any, **named: Any) -> asyncio.TimerHandle:
            set_by_loop.append(delay)
            return call_later(delay, *rest, **named)

        loop.call_later = counted  # type: ignore[assignment, method-assign]
        deadlines = Deadlines(tick_s=LONG_S)

        async def work() -> None:
            with deadlines.within(600):
                await asyncio.sleep(0)

        await asyncio.gather(*(work() for _ in range(2000)))
        assert len(set_by_loop) == 1

    asyncio.run(main())


def test_limits_work_in_the_next_event_loop_too() -> None:
    within = shared(0.0)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            asyncio.run(too_late(within))


@pytest.mark.parametrize("short_s", [0.0, 10.0])
async def test_the_time_in_which_the_process_was_stopped_does_not_count(short_s: float) -> None:
    deadlines = Deadlines(tick_s=0.005, short_s=short_s, stopped_s=0.05)
    with deadlines.within(0.15):
        await asyncio.sleep(0.02)
        time.sleep(0.3)  # noqa: ASYNC251 - the event loop can't tell this from SIGSTOP
        await asyncio.sleep(0.02)
    with pytest.raises(TimeoutError), deadlines.within(0.05):
        await asyncio.sleep(LONG_S)


@pytest.mark.parametrize("short_s", [0.0, 10.0])
async def test_waiting_for_a_turn_does_not_count(short_s: float) -> None:
    deadlines = Deadlines(tick_s=0.005, short_s=short_s)

    async def work(then_s: float) -> None:
        with deadlines.within(0.1) as deadline:
            attempt_deadline.set(deadline)
            with not_counted():
                with not_counted():
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.1)
            await asyncio.sleep(then_s)

    await work(0.0)
    with pytest.raises(TimeoutError):
        await work(LONG_S)
    with not_counted():  # whoever still waits when the block is over does not start the clock again
        pass


async def test_without_a_limit_waiting_is_just_waiting() -> None:
    with not_counted():
        await asyncio.sleep(0)


async def test_waiting_in_another_process_does_not_count_either() -> None:
    deadlines, elsewhere = Deadlines(), WaitedTimes()

    async def ask(attempt: str) -> float:
        return elsewhere.seconds(attempt)

    async def serve(headers: list[tuple[bytes, bytes]]) -> None:
        adopt_attempt(headers, elsewhere)
        with not_counted():
            await asyncio.sleep(0.3)

    async def work(then_s: float) -> None:
        with deadlines.within(0.1, ask) as deadline:
            await asyncio.create_task(serve([(b"x-ng-attempt", deadline.name.encode())]))
            await asyncio.sleep(then_s)

    await work(0.0)
    with pytest.raises(TimeoutError):
        await work(LONG_S)


def test_only_attempts_that_waited_are_remembered_and_not_too_many() -> None:
    waited = WaitedTimes(most=2)
    adopt_attempt([(b"x-ng-attempt", b"quick")], waited)
    for name in ("first", "second", "third"):
        waited.begin(name)
    for name in ("first", "second", "third"):
        waited.end(name)
    assert [waited.seconds(name) > 0 for name in ("quick", "first", "second", "third")] == [False, False, True, True]
    attempt_deadline.set(None)
