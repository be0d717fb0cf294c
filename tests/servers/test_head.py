import stat
from pathlib import Path

import pytest

from nemo_gym.servers.head import token_file
from nemo_gym.servers.server_client import read_run_token, token_path


@pytest.fixture(autouse=True)
def _private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_token_is_readable_while_the_run_lasts_and_only_by_its_user() -> None:
    with token_file(11000, "secret"):
        assert read_run_token(11000) == "secret"
        assert stat.S_IMODE(token_path(11000).stat().st_mode) == 0o600
    assert read_run_token(11000) is None


def test_a_later_run_on_the_same_port_keeps_its_token() -> None:
    with token_file(11000, "first"):
        later = token_file(11000, "second")
        later.__enter__()
    assert read_run_token(11000) == "second"
    later.__exit__(None, None, None)


def test_no_run_no_token() -> None:
    assert read_run_token(1) is None


def test_the_environment_names_the_token_of_a_gym_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_RUN_TOKEN", "given")
    with token_file(11000, "here"):
        assert read_run_token(11000) == "given"
