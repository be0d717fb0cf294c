from pathlib import Path

import pytest

from nemo_gym.io.process import available_memory, read_quota, usable_cores


@pytest.mark.parametrize(("line", "cores"), [("200000 100000", 2.0), ("max 100000", None), ("", None)])
def test_a_containers_share_is_read(line: str, cores: float | None) -> None:
    assert read_quota(line) == cores


def test_a_container_can_only_take_cores_away(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path / "cpu.max") == 1
    (tmp_path / "cpu.max").write_text("99900000 100000\n")
    assert usable_cores(tmp_path / "cpu.max") == usable_cores(tmp_path / "nothing")


def test_memory_is_what_the_machine_has_left_or_less_in_a_container(tmp_path: Path) -> None:
    machine = tmp_path / "meminfo"
    assert available_memory(machine, tmp_path) is None
    machine.write_text("MemTotal:  4000 kB\nMemAvailable:    3000 kB\n")
    assert available_memory(machine, tmp_path) == 3000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200000\n")
    assert available_memory(machine, tmp_path) == 300_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(machine, tmp_path) == 3000 * 1024


def test_an_older_container_says_it_in_other_files(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("900\n")
    (tmp_path / "memory/memory.stat").write_text("inactive_file 10\ntotal_inactive_file 50\n")
    assert available_memory(tmp_path / "nothing", tmp_path) == 150
