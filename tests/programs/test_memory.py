"""Programs wait for memory, by what the ones before them used."""

import asyncio

from nemo_gym.programs.memory import FIRST_GUESS, MemoryGate

MB = 1 << 20


async def most_at_once(gate: MemoryGate, number: int, peak: int) -> int:
    running = highest = 0

    async def program() -> None:
        nonlocal running, highest
        async with gate.place() as place:
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(0.005)
            place.note(peak)
            running -= 1

    await asyncio.gather(*(program() for _ in range(number)))
    return highest


async def test_as_many_run_as_fit_and_the_estimate_follows_what_was_measured() -> None:
    gate = MemoryGate(most=None, free=lambda: 1200 * MB)
    async with gate.place(), gate.place():
        assert not gate.has_room()
    assert await most_at_once(gate, 1, 100 * MB) == 1
    assert gate.expected == 100 * MB < FIRST_GUESS
    assert await most_at_once(gate, 20, 100 * MB) == 10


async def test_one_always_runs() -> None:
    assert await most_at_once(MemoryGate(most=None, free=lambda: 0), 4, 100 * MB) == 1


async def test_what_runs_already_uses_is_not_counted_twice() -> None:
    gate = MemoryGate(most=None, free=lambda: 700 * MB)
    async with gate.place() as place:
        assert not gate.has_room()
        place.note(FIRST_GUESS)
        assert gate.has_room()
