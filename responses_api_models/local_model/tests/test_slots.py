"""Slots go to conversations they have seen, otherwise in order, and are reserved for conversations that return."""

import asyncio
import contextlib

import pytest

from nemo_gym.schemas.call_tokens import common_prefix
from responses_api_models.local_model.engine import Engine
from responses_api_models.local_model.slots import HOLD_S, PATIENCE, GrammarTurns, Slots


def engine(slots: int = 1) -> Engine:
    return Engine(url="", key="", context=100, eos_token="", slots=slots)


async def is_free(slots: Slots) -> bool:
    """Whether another request would get a slot at once."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(slots.take([0]), timeout=0.01)
        return True
    return False


PROMPT = list(range(100))


async def test_waiting_requests_are_served_in_order() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
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
    assert await is_free(slots)


async def test_a_prompt_goes_to_the_slot_that_knows_it() -> None:
    slots = Slots([engine(2), engine(1)])
    taken = [await slots.take([number] * 100) for number in range(3)]
    for number, slot in enumerate(taken):
        slots.give_back(slot, [number] * 100, returns=False)
    assert await slots.take([*[1] * 100, 7]) is taken[1]
    assert await slots.take([*[2] * 100, 7]) is taken[2]


async def test_a_prompt_that_nobody_knows_goes_to_the_idlest_engine() -> None:
    second = engine(2)
    slots = Slots([engine(1), second])
    assert (await slots.take(PROMPT)).engine is second


async def test_an_unknown_prompt_replaces_the_conversation_that_was_not_used_for_the_longest_time() -> None:
    slots = Slots([engine(3)])
    long_ago, lately = [1] * 1000, [2] * 40
    for prompt in (long_ago, lately):
        slots.give_back(await slots.take(prompt), prompt, returns=False)
    for number in range(3, 6):  # the third slot is new; from then on, each replaces the oldest
        slot = await slots.take([number] * 500)
        slots.give_back(slot, [number] * 500, returns=False)
        active = await slots.take([*lately, 7])
        assert active.knows(lately) == len(lately)
        slots.give_back(active, lately, returns=False)


async def test_a_free_slot_goes_to_the_one_it_knows_best() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    other, repeat = asyncio.create_task(slots.take([7] * 100)), asyncio.create_task(slots.take(PROMPT))
    await asyncio.sleep(0)
    slots.give_back(only, [*PROMPT, 1, 2, 3], returns=False)
    assert await repeat is only
    assert not other.done()
    slots.give_back(only, PROMPT, returns=False)
    assert await other is only


async def test_a_prompt_that_is_read_elsewhere_is_left_for_there() -> None:
    slots = Slots([engine(2)])
    first, second = await slots.take([1] * 100), await slots.take([2] * 100)
    repeat, other = asyncio.create_task(slots.take([1] * 100)), asyncio.create_task(slots.take([3] * 100))
    await asyncio.sleep(0)
    slots.give_back(second, [2] * 100, returns=False)
    assert await other is second
    assert not repeat.done()
    slots.give_back(first, [1] * 100, returns=False)
    assert await repeat is first


async def test_nobody_is_passed_over_for_ever() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    other = asyncio.create_task(slots.take([7] * 100))
    await asyncio.sleep(0)
    for _ in range(PATIENCE):
        repeat = asyncio.create_task(slots.take(PROMPT))
        await asyncio.sleep(0)
        slots.give_back(only, PROMPT, returns=False)
        await repeat
    late = asyncio.create_task(slots.take(PROMPT))
    await asyncio.sleep(0)
    slots.give_back(only, PROMPT, returns=False)
    assert await other is only
    late.cancel()


async def test_a_conversation_that_returns_at_once_goes_before_those_who_wait() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    other = asyncio.create_task(slots.take([7]))
    await asyncio.sleep(0)
    slots.give_back(only, [*PROMPT, 1, 2], returns=True)
    # The answer has become other tokens, as can happen when text is tokenized again.
    assert await slots.take([*PROMPT, 12, 3]) is only
    assert not other.done()
    slots.give_back(only, [*PROMPT, 1, 2, 3], returns=False)
    assert await other is only


async def test_another_repeat_does_not_take_what_is_kept_for_a_conversation() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    repeat = asyncio.create_task(slots.take(PROMPT))
    await asyncio.sleep(0)
    slots.give_back(only, [*PROMPT, 1], returns=True)
    another = asyncio.create_task(slots.take(PROMPT))
    assert await slots.take([*PROMPT, 1, 2]) is only
    assert not repeat.done()
    assert not another.done()
    another.cancel()
    repeat.cancel()


async def test_a_slot_is_kept_for_a_moment_only() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    other = asyncio.create_task(slots.take([7]))
    await asyncio.sleep(0)
    slots.give_back(only, PROMPT, returns=True)
    assert await asyncio.wait_for(other, timeout=HOLD_S * 100) is only


async def test_whoever_gives_up_waiting_takes_nothing_away() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    tired, patient = asyncio.create_task(slots.take([1])), asyncio.create_task(slots.take([2]))
    await asyncio.sleep(0)
    tired.cancel()
    slots.give_back(only, PROMPT, returns=False)
    assert await patient is only
    slots.give_back(only, [2], returns=False)
    assert await is_free(slots)


async def test_a_slot_given_in_the_moment_of_giving_up_is_passed_on() -> None:
    slots = Slots([engine()])
    only = await slots.take(PROMPT)
    tired = asyncio.create_task(slots.take([1]))
    await asyncio.sleep(0)
    slots.give_back(only, PROMPT, returns=False)
    tired.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tired
    assert await is_free(slots)


def test_common_prefixes_are_found() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2]) == 2
    assert common_prefix([9], [1]) == 0


# ---- grammars of several engines -------------------------------------------------------------------------------------
async def test_grammars_of_two_engines_take_turns_and_those_of_one_share_them() -> None:
    turns, engines = GrammarTurns(), [engine(), engine()]
    running: list[Engine] = []
    most = 0

    async def use(one: Engine) -> None:
        nonlocal most
        async with turns.of(one):
            running.append(one)
            assert set(running) == {one}
            most = max(most, len(running))
            await asyncio.sleep(0)
            running.remove(one)

    await asyncio.gather(*(use(engines[number // 3 % 2]) for number in range(24)))
    assert most > 1


async def test_an_engine_that_waits_for_its_turn_is_not_overtaken() -> None:
    turns, first, second = GrammarTurns(), engine(), engine()
    order: list[str] = []

    async def use(one: Engine, name: str) -> None:
        async with turns.of(one):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(use(first, "a"), use(second, "b"), use(first, "c"))
    assert order == ["a", "b", "c"]


async def test_a_turn_that_is_cancelled_is_passed_on() -> None:
    turns, first, second = GrammarTurns(), engine(), engine()
    async with turns.of(first):
        waiting = [asyncio.create_task(turns.of(second).__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    await waiting[1]
    assert waiting[0].cancelled()


async def test_a_long_conversation_is_not_forgotten_while_an_empty_slot_is_free() -> None:
    slots = Slots([engine(2)])
    long = await slots.take(range(500))
    slots.give_back(long, range(500), returns=False)
    other = await slots.take([7])
    assert other is not long
