from pathlib import Path

import pytest

from nemo_gym.io.process import read_quota, usable_cores


@pytest.mark.parametrize(("line", "cores"), [("200000 100000", 2.0), ("max 100000", None), ("", None)])
def test_a_containers_share_is_read(line: str, cores: float | None) -> None:
    assert read_quota(line) == cores


def test_a_container_can_only_take_cores_away(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path / "cpu.max") == 1
    (tmp_path / "cpu.max").write_text("99900000 100000\n")
    assert usable_cores(tmp_path / "cpu.max") == usable_cores(tmp_path / "nothing")
