from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.rollouts.backlog import LONGEST_PAUSE_S, Backlog, pause_before_retry
from nemo_gym.rollouts.planned import Planned
from nemo_gym.schemas.rows import RolloutKey

Make = Callable[..., Planned]


def test_new_rollouts_come_in_the_order_of_the_plan(planned: Make) -> None:
    plan = [planned(n) for n in range(3)]
    backlog = Backlog(iter(plan))
    assert [backlog.take(0), backlog.take(0), backlog.take(0)] == plan
    assert not backlog.is_empty, "the end of the plan is known only once it was reached for"
    assert backlog.take(0) is None
    assert backlog.is_empty


def test_rows_are_read_only_when_they_are_taken(planned: Make) -> None:
    read: list[int] = []

    def plan() -> list[Planned]:
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
    one = Planned(RolloutKey(task, rollout), "a", {}, attempt, 99)
    pause = pause_before_retry(one, asked)
    assert pause >= max(1.0, asked or 0)
    assert pause <= 1.5 * max(LONGEST_PAUSE_S, asked or 0)


def test_rollouts_that_failed_together_do_not_come_back_together(planned: Make) -> None:
    pauses = {round(pause_before_retry(planned(n), None), 2) for n in range(100)}
    assert len(pauses) > 30
