import logging

import pytest

from nemo_gym.servers.middleware import sessions
from nemo_gym.servers.middleware.sessions import (
    SECRET_VARIABLE,
    SESSION_ID_KEY,
    SessionCookies,
    SessionLostError,
    SessionStates,
    session_secret,
)


def test_a_sealed_session_opens_again_also_elsewhere() -> None:
    here, elsewhere = SessionCookies("a", "key"), SessionCookies("a", "key")
    session = here.open(None)
    cookie = here.seal(session)
    assert here.open(cookie) == elsewhere.open(cookie) == session


def test_another_key_does_not_open_it() -> None:
    cookies = SessionCookies("a", "key")
    session = cookies.open(None)
    stranger = SessionCookies("a", "other key").open(cookies.seal(session))
    assert stranger[SESSION_ID_KEY] != session[SESSION_ID_KEY]


def test_garbage_opens_a_new_session() -> None:
    for garbage in ("", "null", "a.b.c", "é.ü.ß", "=" * 100):
        assert SessionCookies("a", "key").open(garbage)[SESSION_ID_KEY]


def test_an_unchanged_session_keeps_its_cookie_and_a_changed_one_gets_a_new_one() -> None:
    cookies = SessionCookies("a", "key")
    cookie = cookies.seal(cookies.open(None))
    session = cookies.open(cookie)
    assert cookies.seal(session) == cookie
    session["more"] = 1
    assert cookies.open(cookies.seal(session))["more"] == 1


def test_changing_an_opened_session_does_not_change_the_next_one() -> None:
    cookies = SessionCookies("a", "key")
    cookie = cookies.seal(cookies.open(None))
    cookies.open(cookie)["more"] = 1
    assert "more" not in cookies.open(cookie)


def test_memory_of_sealed_cookies_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(sessions, "REMEMBERED_COOKIES", 3)
    cookies = SessionCookies("a", "key")
    sealed = [cookies.seal(cookies.open(None)) for _ in range(10)]
    assert len(cookies._sealed) == 3
    assert all(len(cookies.open(cookie)) == 1 for cookie in sealed)


def test_the_key_is_random_unless_workers_share_one(monkeypatch) -> None:
    assert session_secret() != session_secret()
    monkeypatch.setenv(SECRET_VARIABLE, "shared")
    assert session_secret() == "shared"


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


def test_a_process_that_took_the_place_of_another_knows_which_sessions_are_lost() -> None:
    before, after = SessionCookies("a", "key"), SessionCookies("a", "key", own_only=True)
    lost, own = before.seal(before.open(None)), after.seal(after.open(None))
    with pytest.raises(SessionLostError, match="is gone"):
        after.open(lost)
    assert after.are_signed_in({"a": lost}), "it may call all the same, to be told so"
    assert after.open(own).cookie == own
    assert SESSION_ID_KEY in after.open("forged"), "anything else starts a new session"
    with pytest.raises(SessionLostError):
        after.require_own(before.open(lost))
