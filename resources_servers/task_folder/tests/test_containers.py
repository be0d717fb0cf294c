"""The examples in containers of Podman or Docker, made from busybox alone; only with ROLLOUT_GYM_TEST_CONTAINERS=1."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym.data.task_worlds import Engine, find_engine

EXAMPLES = Path(__file__).parents[1] / "data" / "example"
IMAGES = ("debian:stable-slim", "ubuntu:24.04")
BUSYBOX = shutil.which("busybox")

pytestmark = pytest.mark.skipif(
    os.environ.get("ROLLOUT_GYM_TEST_CONTAINERS") != "1" or BUSYBOX is None, reason="needs a container engine, busybox"
)


def archive(folder: Path) -> Path:
    """A tarball of a system with nothing but busybox, which has to be linked statically."""
    assert BUSYBOX is not None
    for name in ("bin", "etc", "tmp", "root", "home"):
        (folder / "root" / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, folder / "root" / "bin" / "busybox")
    commands = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for command in commands:
        if command != "busybox":
            (folder / "root" / "bin" / command).symlink_to("/bin/busybox")
    (folder / "root" / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home:/bin/sh\n")
    return Path(shutil.make_archive(str(folder / "image"), "tar", folder / "root"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = find_engine()
    if engine is None:
        pytest.skip("there is no container engine")
    made = [image for image in IMAGES if not engine.has(image)]
    tarball = archive(tmp_path_factory.mktemp("busybox"))
    for image in made:
        subprocess.run([engine.command, "import", str(tarball), image], check=True, capture_output=True)
    yield engine
    for image in made:
        subprocess.run([engine.command, "rmi", "--force", image], check=True, capture_output=True)


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nothing", 0.0)])
def test_examples_have_the_same_rewards_in_containers(agent: str, reward: float, tmp_path: Path) -> None:
    settings = {"task_folder.resources_servers.task_folder.sandbox_isolation": "container"}
    output = tmp_path / "rollouts.jsonl"
    run = nemo_gym.collect(tasks=EXAMPLES, agent=agent, output=output, settings=settings, num_samples_in_parallel=2)
    assert [rollout.reward for rollout in run] == [reward] * 10, run.failures
