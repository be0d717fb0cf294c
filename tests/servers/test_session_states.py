import logging

import pytest

from nemo_gym.servers.session_states import SessionStates


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_state_that_nobody_asks_for_is_dropped() -> None:
    clock = Clock()
    dropped: list[str] = []
    states = SessionStates[str](max_idle_s=10, on_drop=dropped.append, clock=clock)
    states["abandoned"] = "a"
    states["running"] = "b"
    clock.now = 8
    assert states.get("running") == "b"
    clock.now = 12
    states["new"] = "c"
    assert list(states) == ["running", "new"]
    assert dropped == ["a"]


def test_there_are_never_more_than_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    states = SessionStates[int](max_states=3)
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            states[str(number)] = number
    assert list(states) == ["7", "8", "9"]
    assert len(caplog.records) == 1  # said once, not for each of them


def test_what_its_owner_removes_is_not_reported_as_dropped() -> None:
    dropped: list[int] = []
    states = SessionStates[int](max_states=1, on_drop=dropped.append)
    states["a"] = 1
    assert states.pop("a", None) == 1
    assert states.pop("a", None) is None
    states["b"] = 2
    assert dropped == []


def test_setting_a_state_again_replaces_it() -> None:
    states = SessionStates[int](max_states=2)
    states["a"] = 1
    states["b"] = 2
    states["a"] = 3
    states["c"] = 4
    assert dict(states) == {"a": 3, "c": 4}
