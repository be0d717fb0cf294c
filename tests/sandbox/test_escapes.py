"""Every way out of a box, at every level that this machine can do, as the current user and as an ordinary one."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from escape_cases import ATTEMPTS, BOMBS, CASES, WORLD_CASES, Case, OutsideWorld, judge_in_worlds

from nemo_gym.sandbox.jail import Jail

ROOT = Path(__file__).parents[2]
# A user that nothing else runs as: processes are counted by user, also those of tests that run beside this one.
NOBODY = str(60_000 + os.getpid() % 5_000)
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutsideWorld]:
    world = OutsideWorld(tmp_path_factory.mktemp("outside"))
    yield world
    world.close()


@pytest.fixture(scope="module")
def armed(level: str) -> Iterator[Jail]:
    jail = Jail(level, modules={"attempts": ATTEMPTS})
    yield jail
    asyncio.run(jail.aclose())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
async def test_a_program_stays_in_its_box(armed: Jail, world: OutsideWorld, case: Case) -> None:
    result = await armed.run(world.program(case), stdin=case.stdin, limits=case.limits)
    assert world.problems(case, result) == []


async def test_all_of_them_stay_in_their_worlds(armed: Jail, world: OutsideWorld) -> None:
    # The bombs take longest: ``make worlds`` has them.
    assert await judge_in_worlds(armed, world, [case for case in WORLD_CASES if case not in BOMBS]) == {}


def ordinary_python() -> str | None:
    """An interpreter that another user can run."""
    if os.getuid() != 0 or shutil.which("setpriv") is None or not Path(SYSTEM_PYTHON).exists():
        return None
    version = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
        check=False,
    )
    return SYSTEM_PYTHON if version.stdout.strip() == "True" else None


@pytest.mark.skipif(ordinary_python() is None, reason="needs root, setpriv and a Python 3.11 that all users can run")
def test_all_of_them_stay_when_an_ordinary_user_runs_the_sandbox(level: str) -> None:
    line = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", SYSTEM_PYTHON]
    done = subprocess.run(
        [*line, str(Path(__file__).with_name("escape_cases.py")), level],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
