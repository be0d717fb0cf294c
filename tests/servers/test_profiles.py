"""Profiles of the code of servers: time is attributed to servers and handlers, although all share a process."""

import asyncio
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from nemo_gym.errors import ConfigError
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.profiles import profile_page, profile_table, profiling, speedscope

BUSY = """
    async def greet(self, body: Name) -> dict[str, str]:
        until = time.process_time() + 0.15
        while time.process_time() < until:
            pass
"""
SAMPLES = Counter({("/verify", "check (app.py:3)", "</script><b> (app.py:9)"): 30, ("/verify", "check (app.py:3)"): 10})


def busy_gym(project: Path, gym_config: Callable[..., DictConfig], **servers: dict[str, Any]) -> DictConfig:
    """Servers whose ``/greet`` computes for a while."""
    app = project / "app.py"
    app.write_text(app.read_text().replace("    async def greet(self, body: Name) -> dict[str, str]:\n", BUSY[1:]))
    config = gym_config(**servers)
    config["profiling_enabled"] = True
    config["profiling_results_dirpath"] = str(project.parent.parent / "profile")
    return config


@pytest.mark.parametrize("isolation", ["inline", "process"])
async def test_time_is_told_by_server_and_handler(
    project: Path, gym_config: Callable[..., DictConfig], isolation: str
) -> None:
    quiet: dict[str, Any] = {"other": "busy"}
    busy: dict[str, Any] = {"isolation": "process"} if isolation == "process" else {}
    config = busy_gym(project, gym_config, quiet=quiet, busy=busy)
    async with host_gym(config) as gym:
        answer = await gym.client.post("quiet", "/ask_other", json={"name": "you"})  # which calls the busy one
        assert answer.status == 200
    folder = Path(config["profiling_results_dirpath"])
    profile = json.loads((folder / "Toy___busy" / "busy.speedscope.json").read_bytes())
    frames = [frame["name"] for frame in profile["shared"]["frames"]]
    [samples] = profile["profiles"]
    inside = [
        weight
        for stack, weight in zip(samples["samples"], samples["weights"], strict=True)
        if frames[stack[0]] == "/greet" and any("Toy.greet" in frames[frame] for frame in stack)
    ]
    assert sum(inside) >= 0.1
    assert "Toy.greet (toy_for_tests/app.py" in (folder / "Toy___busy" / "busy.log").read_text()
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    if isolation == "inline":
        whole = (folder / "index.html").read_text()
        assert "Toy.greet" in whole
        # Nothing comes from anywhere else. Not merely "http", which is also a folder of code that may be in a profile.
        assert not re.search(r"https?:|=[\"']//", whole.partition("<body>")[2])


async def test_without_being_asked_nothing_is_profiled(project: Path, gym_config: Callable[..., DictConfig]) -> None:
    async with host_gym(gym_config(one={})):
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert not (project.parent.parent / "results").exists()


async def test_another_thread_than_the_main_one_is_refused(tmp_path: Path) -> None:
    def host() -> None:
        with profiling({"profiling_enabled": True}, (), labels={}):
            pass

    with pytest.raises(ConfigError, match="main thread"):
        await asyncio.to_thread(host)


def test_a_profile_is_written_although_the_run_fails(tmp_path: Path) -> None:
    config = {"profiling_enabled": True, "profiling_results_dirpath": str(tmp_path / "profile")}

    def fail() -> None:
        with profiling(config, (), labels={}):
            until = time.process_time() + 0.05
            while time.process_time() < until:
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "profile" / "index.html").is_file()
    assert (tmp_path / "profile" / "profile.speedscope.json").is_file()


def test_the_table_has_own_time_and_that_of_callees() -> None:
    lines = profile_table(SAMPLES, 0.1).splitlines()
    assert lines[0].split() == ["tsub", "ttot", "name"]
    rows = [(float(own), float(total), name) for own, total, name in (line.split(maxsplit=2) for line in lines[1:])]
    assert rows[0] == (3.0, 3.0, "</script><b> (app.py:9)")
    assert (1.0, 4.0, "check (app.py:3)") in rows


def test_speedscope_weights_add_up() -> None:
    [profile] = speedscope("s", SAMPLES, 0.1)["profiles"]
    assert sum(profile["weights"]) == pytest.approx(4.0)
    assert profile["endValue"] == pytest.approx(4.0)
    assert len(profile["samples"]) == len(profile["weights"]) == 2


def test_no_name_can_leave_the_script_of_the_page() -> None:
    text = profile_page("s", SAMPLES, 0.1).decode()
    assert "</script><b>" not in text
    assert "\\u003c/script>\\u003cb>" in text
