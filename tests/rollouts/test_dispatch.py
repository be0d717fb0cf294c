import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.dispatch import LONGEST_PAUSE_S, Backlog, Dispatch, pause_before_retry
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout
from nemo_gym.schemas.rows import RolloutKey

Make = Callable[..., PlannedRollout]


def test_new_rollouts_come_in_the_order_of_the_plan(planned: Make) -> None:
    plan = [planned(n) for n in range(3)]
    backlog = Backlog(iter(plan))
    assert [backlog.take(0), backlog.take(0), backlog.take(0)] == plan
    assert not backlog.is_empty, "the end of the plan is known only once it was reached for"
    assert backlog.take(0) is None
    assert backlog.is_empty


def test_rows_are_read_only_when_they_are_taken(planned: Make) -> None:
    read: list[int] = []

    def plan() -> list[PlannedRollout]:
        for n in range(9):
            read.append(n)
            yield planned(n)  # type: ignore[misc]

    backlog = Backlog(iter(plan()))
    backlog.take(0)
    assert read == [0]


def test_a_retry_goes_first_once_its_time_has_come(planned: Make) -> None:
    backlog = Backlog(iter([planned(1), planned(2)]))
    backlog.put_off(planned(0, attempt=2), until=5.0)
    assert backlog.next_due == 5.0
    assert backlog.take(4.9) == planned(1)
    assert backlog.take(5.0) == planned(0, attempt=2)
    assert backlog.next_due is None


def test_what_waits_keeps_the_backlog_from_being_empty(planned: Make) -> None:
    backlog = Backlog(iter(()))
    backlog.put_off(planned(0), until=9)
    assert backlog.take(0) is None
    assert not backlog.is_empty


@given(st.integers(0, 10**6), st.integers(0, 100), st.integers(1, 50), st.none() | st.floats(0, 600))
def test_the_pause_is_bounded_and_never_shorter_than_asked_for(
    task: int, rollout: int, attempt: int, asked: float | None
) -> None:
    one = PlannedRollout(RolloutKey(task, rollout), "a", {}, attempt, 99)
    pause = pause_before_retry(one, asked)
    assert pause >= max(1.0, asked or 0)
    assert pause <= 1.5 * max(LONGEST_PAUSE_S, asked or 0)


def test_rollouts_that_failed_together_do_not_come_back_together(planned: Make) -> None:
    pauses = {round(pause_before_retry(planned(n), None), 2) for n in range(100)}
    assert len(pauses) > 30


def completed(planned: PlannedRollout) -> Outcome:
    return Completed(planned, b"{}", 0.0, 1.0)


def failed(planned: PlannedRollout, *, transient: bool = True, retry_after: float | None = None) -> Outcome:
    failure = Failure(kind="timeout", message="", transient=transient, retry_after_s=retry_after)
    return Failed(planned, b"{}", 0.0, failure)


def short(_: PlannedRollout, asked: float | None) -> float:
    return asked or 0.001


async def all_of(dispatch: Dispatch) -> list[Outcome]:
    return [outcome async for batch in dispatch for outcome in batch]


async def test_starts_in_the_order_of_the_plan_and_never_more_than_allowed(planned: Make) -> None:
    started: list[int] = []
    running = most = 0

    async def attempt(one: PlannedRollout) -> Outcome:
        nonlocal running, most
        started.append(one.key.task)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (one.key.task % 3))
        running -= 1
        return completed(one)

    outcomes = await all_of(Dispatch(iter([planned(n) for n in range(40)]), attempt, limit=FixedLimit(7)))
    assert started == list(range(40))
    assert most == 7
    assert sorted(outcome.planned.key.task for outcome in outcomes) == list(range(40))


async def test_rows_are_read_only_when_there_is_room(planned: Make) -> None:
    read: list[int] = []
    release = asyncio.Event()

    async def attempt(one: PlannedRollout) -> Outcome:
        await release.wait()
        return completed(one)

    def plan():
        for n in range(100):
            read.append(n)
            yield planned(n)

    async with aclosing(aiter(Dispatch(plan(), attempt, limit=FixedLimit(3)))) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.01)
        assert read == [0, 1, 2]
        release.set()
        await waiting


async def test_a_failure_that_may_pass_is_tried_again_up_to_the_last_attempt(planned: Make) -> None:
    async def attempt(one: PlannedRollout) -> Outcome:
        return completed(one) if one.key.task == 1 and one.attempt == 2 else failed(one)

    plan = [planned(0, last=3), planned(1, last=3)]
    outcomes = await all_of(Dispatch(iter(plan), attempt, limit=FixedLimit(2), pause=short))
    assert [o.planned.attempt for o in outcomes if o.planned.key.task == 0] == [1, 2, 3]
    assert [type(o) for o in outcomes if o.planned.key.task == 1] == [Failed, Completed]


async def test_a_failure_that_will_not_pass_is_not_tried_again(planned: Make) -> None:
    async def attempt(one: PlannedRollout) -> Outcome:
        return failed(one, transient=False)

    assert len(await all_of(Dispatch(iter([planned(last=3)]), attempt, limit=FixedLimit(1)))) == 1


async def test_others_go_on_while_a_rollout_waits_for_its_next_attempt(planned: Make) -> None:
    order: list[tuple[int, int]] = []

    async def attempt(one: PlannedRollout) -> Outcome:
        order.append((one.key.task, one.attempt))
        await asyncio.sleep(0)
        return failed(one, retry_after=0.05) if (one.key.task, one.attempt) == (0, 1) else completed(one)

    await all_of(Dispatch(iter([planned(n, last=2) for n in range(5)]), attempt, limit=FixedLimit(1), pause=short))
    assert order == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (0, 2)]


async def test_a_due_retry_does_not_keep_the_loop_busy_while_there_is_no_room(planned: Make) -> None:
    rounds = 0

    class Counting(FixedLimit):
        def allowed(self, now: float) -> int:
            nonlocal rounds
            rounds += 1
            return super().allowed(now)

    async def attempt(one: PlannedRollout) -> Outcome:
        if (one.key.task, one.attempt) == (0, 1):
            return failed(one)
        await asyncio.sleep(0.1)
        return completed(one)

    await all_of(Dispatch(iter([planned(0, last=2), planned(1)]), attempt, limit=Counting(1), pause=short))
    assert rounds < 20


async def test_stopping_starts_nothing_more_and_lets_what_runs_finish(planned: Make) -> None:
    started: list[int] = []

    async def attempt(one: PlannedRollout) -> Outcome:
        started.append(one.key.task)
        await asyncio.sleep(0.02)
        return completed(one)

    dispatch = Dispatch(iter([planned(n) for n in range(50)]), attempt, limit=FixedLimit(4))
    asyncio.get_running_loop().call_later(0.01, lambda: dispatch.stop(drain_s=10))
    outcomes = await all_of(dispatch)
    assert len(outcomes) == 4
    assert started == [0, 1, 2, 3]


async def test_stopping_does_not_wait_for_ever(planned: Make) -> None:
    cancelled: list[int] = []

    async def attempt(one: PlannedRollout) -> Outcome:
        try:
            await asyncio.sleep(0 if one.key.task == 0 else 3600)
        except asyncio.CancelledError:
            cancelled.append(one.key.task)
            raise
        return completed(one)

    dispatch = Dispatch(iter([planned(n) for n in range(50)]), attempt, limit=FixedLimit(3))
    asyncio.get_running_loop().call_later(0.01, lambda: dispatch.stop(drain_s=0.01))
    outcomes = await all_of(dispatch)
    assert [o.planned.key.task for o in outcomes] == [0]
    assert sorted(cancelled) == [1, 2, 3]


async def test_a_second_stop_can_only_shorten_the_wait(planned: Make) -> None:
    async def attempt(one: PlannedRollout) -> Outcome:
        await asyncio.sleep(3600)
        return completed(one)

    dispatch = Dispatch(iter([planned(0)]), attempt, limit=FixedLimit(1))
    loop = asyncio.get_running_loop()
    loop.call_later(0.01, lambda: dispatch.stop(drain_s=3600))
    loop.call_later(0.02, lambda: dispatch.stop(drain_s=0))
    loop.call_later(0.02, lambda: dispatch.stop(drain_s=3600))
    assert await all_of(dispatch) == []


async def test_a_bug_ends_the_stream_after_what_has_ended_was_handed_out(planned: Make) -> None:
    async def attempt(one: PlannedRollout) -> Outcome:
        if one.key.task == 2:
            raise ZeroDivisionError
        return completed(one)

    batches = aiter(Dispatch(iter([planned(n) for n in range(3)]), attempt, limit=FixedLimit(3)))
    assert [outcome.planned.key.task for outcome in await anext(batches)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        await anext(batches)


async def test_leaving_the_stream_cancels_what_runs(planned: Make) -> None:
    running = 0

    async def attempt(one: PlannedRollout) -> Outcome:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(one.key.task * 3600)
        finally:
            running -= 1
        return completed(one)

    async with aclosing(aiter(Dispatch(iter([planned(0), planned(1)]), attempt, limit=FixedLimit(2)))) as batches:
        async for _ in batches:
            break
        assert running == 1
    assert running == 0


async def test_nothing_owed_ends_at_once() -> None:
    async def attempt(one: PlannedRollout) -> Outcome:
        raise AssertionError

    assert await all_of(Dispatch(iter(()), attempt, limit=FixedLimit(1))) == []


async def test_a_limit_that_opens_later_is_waited_for(planned: Make) -> None:
    class OpensLater:
        def __init__(self) -> None:
            self.opens = asyncio.get_running_loop().time() + 0.02

        def allowed(self, now: float) -> int:
            return 5 if now >= self.opens else 0

        def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None: ...

        def next_change(self, now: float) -> float | None:
            return self.opens if now < self.opens else None

    async def attempt(one: PlannedRollout) -> Outcome:
        return completed(one)

    assert len(await all_of(Dispatch(iter([planned(n) for n in range(3)]), attempt, limit=OpensLater()))) == 3
