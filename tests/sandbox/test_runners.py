"""Which isolation is chosen, and that none at all is never chosen by itself."""

import logging
import os
import stat
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.sandbox import SandboxError, SandboxLimits, SandboxSettings, open_runner, sandbox_runner
from nemo_gym.sandbox.containers import ContainerRunner
from nemo_gym.sandbox.inside import kernel, seccomp
from nemo_gym.sandbox.inside.limits import ProgramEnding
from nemo_gym.sandbox.interface import SandboxCreateError

# An engine that runs its containers as processes of this machine, in a folder: enough to see what it is told.
ENGINE = """#!/bin/sh
echo "$@" >> {log}
case $1 in
info) echo '{{"Runtimes": {{"runsc": {{}}}}}}' ;;
image) [ "$3" = here ] || exit 1 ;;
run) mkdir -p {box}; echo ready; cat >/dev/null ;;
exec)
  shift
  while [ "${{1#--}}" != "$1" ]; do shift; done
  shift
  cd {box} && exec "$@" ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = tmp_path / "log"
    script = tmp_path / "docker"
    script.write_text(ENGINE.format(log=log, box=tmp_path / "box"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


async def test_the_chosen_isolation_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nemo_gym.sandbox"):
        async with sandbox_runner() as runner:
            assert (await runner.run("print(1)")).text == "1\n"
            assert (await runner.run("print(2)")).text == "2\n"
    assert len(caplog.records) == 1
    assert runner.level in caplog.text


async def test_without_any_isolation_nothing_runs_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no sandbox works on this machine") as caught:
        await open_runner(SandboxSettings(isolation="container"))
    assert "apt-get install podman" in (caught.value.hint or "")
    assert "isolation: none" in (caught.value.hint or "")


async def test_no_isolation_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with sandbox_runner(SandboxSettings(isolation="none")) as runner:
        result = await runner.run("import socket; socket.socket(); print(1)")
        slow = await runner.run("import time; time.sleep(60)", limits=SandboxLimits(wall_s=0.2))
    assert (result.text, slow.ending) == ("1\n", ProgramEnding.WALL_TIME)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_sandbox_that_fails_is_a_failed_rollout() -> None:
    assert issubclass(SandboxError, RolloutError)


@pytest.mark.parametrize("architecture", sorted(kernel.NUMBERS))
@pytest.mark.parametrize("one_group", [True, False])
def test_the_filter_fits_the_kernels_machine(architecture: str, one_group: bool) -> None:
    program = seccomp.assemble(architecture, one_group=one_group)
    steps = [program[start : start + 8] for start in range(0, len(program), 8)]
    assert len(steps) < 4096
    for number, step in enumerate(steps):
        code = int.from_bytes(step[:2], "little")
        if code & 7 == 5:  # a jump must land inside
            assert number + 1 + max(step[2], step[3]) < len(steps)
    assert int.from_bytes(steps[-1][:2], "little") == 6  # the last step decides


async def test_containers_are_locked_up(engine: Path) -> None:
    runner = ContainerRunner(image="here", limits=SandboxLimits(processes=5, memory_mib=64))
    await runner.start()
    result = await runner.run("print(open('a').read(), input())", stdin=b"hi", files={"a": b"file"})
    assert result.text == "file hi\n"
    told = engine.read_text()
    wanted = ("--network=none", "--read-only", "--cap-drop=ALL", "no-new-privileges", "--pids-limit=7", "--memory=64m")
    assert [flag for flag in (*wanted, "--runtime=runsc", "--pull=never") if flag not in told] == []
    assert told.splitlines()[-1].startswith("rm --force")


async def test_a_container_that_takes_too_long_is_killed(engine: Path) -> None:
    runner = ContainerRunner(image="here")
    await runner.start()
    async with runner.session() as session:
        slow = await session.exec("sleep 60", limits=SandboxLimits(wall_s=0.2))
        loud = await session.exec("yes", limits=SandboxLimits(wall_s=20, output_kib=10))
        await session.upload("f", b"\0\xff")
        assert await session.download("f") == b"\0\xff"
        with pytest.raises(FileNotFoundError):
            await session.download("missing")
    assert (slow.ending, loud.ending) == (ProgramEnding.WALL_TIME, ProgramEnding.OUTPUT)
    assert engine.read_text().count("kill rollout-gym-") == 2


async def test_an_image_that_is_missing_is_named(engine: Path) -> None:
    with pytest.raises(SandboxCreateError, match="docker pull elsewhere"):
        await ContainerRunner(image="elsewhere").start()
