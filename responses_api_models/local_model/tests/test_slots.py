"""Slots are given out in order, to the engine that knows the prompt, and kept for those who come back."""

import asyncio

import pytest

from responses_api_models.local_model.engine import Engine, common_prefix
from responses_api_models.local_model.slots import HOLD_S, Slots


def engine(free: int = 1) -> Engine:
    return Engine(url="", key="", context=100, eos_token="", free=free)


PROMPT = list(range(100))


async def test_waiting_requests_are_served_in_order() -> None:
    only = engine()
    slots = Slots([only])
    await slots.take(PROMPT)
    order: list[int] = []

    async def wait(number: int) -> None:
        taken = await slots.take([number])
        order.append(number)
        slots.give_back(taken, [number], returns=False)

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert order == []
    slots.give_back(only, PROMPT, returns=False)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert only.free == 1


async def test_a_prompt_goes_to_the_engine_that_knows_it() -> None:
    first, second = engine(2), engine(1)
    second.recent.append(PROMPT)
    slots = Slots([first, second])
    assert await slots.take([*PROMPT, 1]) is second
    assert await slots.take([*PROMPT, 1]) is first


async def test_a_prompt_that_nobody_knows_goes_to_the_idlest_engine() -> None:
    first, second = engine(1), engine(2)
    assert await Slots([first, second]).take(PROMPT) is second


async def test_a_conversation_that_returns_at_once_goes_before_those_who_wait() -> None:
    only = engine()
    slots = Slots([only])
    await slots.take(PROMPT)
    other = asyncio.create_task(slots.take([7]))
    await asyncio.sleep(0)
    slots.give_back(only, [*PROMPT, 1], returns=True)
    assert await slots.take([*PROMPT, 1, 2, 3]) is only
    assert not other.done()
    slots.give_back(only, [*PROMPT, 1, 2, 3], returns=False)
    assert await other is only


async def test_a_slot_is_kept_for_a_moment_only() -> None:
    only = engine()
    slots = Slots([only])
    await slots.take(PROMPT)
    other = asyncio.create_task(slots.take([7]))
    await asyncio.sleep(0)
    slots.give_back(only, PROMPT, returns=True)
    assert await asyncio.wait_for(other, timeout=HOLD_S * 100) is only


async def test_whoever_gives_up_waiting_takes_nothing_away() -> None:
    only = engine()
    slots = Slots([only])
    await slots.take(PROMPT)
    tired, patient = asyncio.create_task(slots.take([1])), asyncio.create_task(slots.take([2]))
    await asyncio.sleep(0)
    tired.cancel()
    slots.give_back(only, PROMPT, returns=False)
    assert await patient is only
    slots.give_back(only, [2], returns=False)
    assert only.free == 1


async def test_a_slot_given_in_the_moment_of_giving_up_is_passed_on() -> None:
    only = engine()
    slots = Slots([only])
    await slots.take(PROMPT)
    tired = asyncio.create_task(slots.take([1]))
    await asyncio.sleep(0)
    slots.give_back(only, PROMPT, returns=False)
    tired.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tired
    assert only.free == 1


def test_common_prefixes_are_found() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2]) == 2
    assert common_prefix([9], [1]) == 0
