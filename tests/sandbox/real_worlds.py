# ruff: noqa: E501 - programs are easier to read in long lines than in many
"""Worlds in real containers, bombs in worlds of every level, and the same rewards everywhere: ``make worlds``.

Needs Podman and its rights for containers; what is missing is said. The image is made from busybox and this machine's
interpreter, so no registry is needed.
"""

import asyncio
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from escape_cases import BOMBS, WORLD_CASES, OutsideWorld, judge_in_worlds

from nemo_gym.sandbox import WORLD_LIMITS, ProgramEnding, SandboxError, WorldFile, WorldSpec
from nemo_gym.sandbox.containers import ContainerRunner
from nemo_gym.sandbox.jail import Jail
from tests.sandbox.kernel_features import kernel_supports

BUSYBOX = shutil.which("busybox") or "/bin/busybox"
SMALL = replace(WORLD_LIMITS, memory_mib=256, processes=24, disk_mib=32, file_mib=16, wall_s=60)
# Of what boxes of ours refuse, an engine lets through: it isolates by namespaces of its own and drops all capabilities.
ENGINE_ALLOWS = {
    "sockets of every family", "pairs of sockets of other families", "tracing", "reading and writing other processes",
    "io_uring", "shared memory and queues of System V", "POSIX queues", "memory without a name", "keys of the kernel",
    "machinery of the kernel", "the machine itself", "name and clock of the machine", "file handles",
    "numbers beyond the table", "keystrokes for a terminal", "the filter in a new program", "privileges once given up",
    "new namespaces", "mounts by the newer calls", "another root", "mounts", "unmounting", "the namespaces of others",
    "mounts over what is visible", "higher limits", "the limits of other processes", "the priority of other processes", "devices",
}  # fmt: skip
# Our own supervisor is what these look for; the first process of a container is a shell of the same user.
NOT_THERE = {"the supervisor of the world", "the memory of the parent", "the root of other processes",
             "signals to the parent", "secrets of the system outside the world", "the roots of other worlds",
             "importing installed packages", "writing to the programs of the system", "settings of the kernel"}  # fmt: skip


def libraries_of(binary: Path) -> set[Path]:
    listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def make_image(target: Path) -> None:
    """A tarball with busybox and this machine's interpreter, without packages."""
    prefix, library = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}))
    python = Path(sys.executable).resolve()
    extensions = [path for path in (library / "lib-dynload").glob("*.so") if not path.name.startswith("_tkinter")]
    needed = set().union(*(libraries_of(binary) for binary in (python, *extensions)))
    left_out = {"site-packages", "dist-packages", "test", "idlelib", "__pycache__", "tkinter", "ensurepip", "lib2to3"}
    with tarfile.open(target, "w") as archive:
        for folder in ("bin", "tmp", "etc", "usr/local/bin", "home"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        archive.add(BUSYBOX, "bin/busybox")
        for name in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
            if name == "busybox":
                continue
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        # Below /opt, because nobody but root may enter root's home, where the interpreter may be.
        archive.add(python, "opt/python/bin/python3")
        archive.add(library, f"opt/python/{library.relative_to(prefix)}",
                    filter=lambda member: None if left_out & set(Path(member.name).parts) else member)  # fmt: skip
        for path in needed:
            archive.add(path.resolve(), str(path))
        for name, target in (("usr/local/bin/python3", "/opt/python/bin/python3"), ("usr/bin/id", "/bin/busybox")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        passwd = b"root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home:/bin/sh\n"
        member = tarfile.TarInfo("etc/passwd")
        member.size = len(passwd)
        archive.addfile(member, io.BytesIO(passwd))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("podman") is None or not Path(BUSYBOX).exists():
        pytest.skip("podman and a static busybox are not installed (apt-get install podman runc busybox-static)")
    folder = tmp_path_factory.mktemp("image")
    make_image(folder / "image.tar")
    name = f"localhost/rollout-gym-test:{os.getpid()}"
    imported = subprocess.run(
        ["podman", "import", folder / "image.tar", name], capture_output=True, text=True, check=False
    )
    if imported.returncode != 0:
        pytest.skip(f"podman can't import an image: {imported.stderr.strip()}")
    settings = folder / "containers.conf"
    settings.write_text('[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n')
    trial = ["podman", "run", "--rm", "--network=none", "--memory=64m", "--pids-limit=20", "--ulimit=nproc=1000",
             "--ulimit=nofile=256", name, "true"]  # fmt: skip
    before = os.environ.get("CONTAINERS_CONF")
    first = subprocess.run(trial, capture_output=True, text=True, check=False)
    if first.returncode != 0:  # crun does not run on hybrid control groups, runc does
        os.environ["CONTAINERS_CONF"] = str(settings)
        second = subprocess.run(trial, capture_output=True, text=True, check=False)
        if second.returncode != 0:
            pytest.skip(f"podman can't run a container here: {second.stderr.strip()}")
    yield name
    subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=False)
    os.environ.pop("CONTAINERS_CONF", None)
    if before is not None:
        os.environ["CONTAINERS_CONF"] = before


@pytest.fixture
async def containers(image: str) -> AsyncIterator[ContainerRunner]:
    runner = ContainerRunner(image=image, engine="podman")
    await runner.start()
    yield runner
    await runner.aclose()
    assert ours() == []


def ours() -> list[str]:
    listed = subprocess.run(
        ["podman", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split() if name.startswith("rollout-gym-")]


@pytest.mark.parametrize("user", [0, 1000])
async def test_a_container_is_a_world(containers: ContainerRunner, user: int, tmp_path: Path) -> None:
    files = {"tool": WorldFile(b"#!/bin/sh\necho ran\n", mode=0o755)}
    async with containers.world(WorldSpec(limits=SMALL, user=user, files=files, environment={"A": "1"})) as world:
        first = await world.exec("id -u; ./tool; mkdir d; cd d; export X='1 2'; (sleep 7301 & echo $A); exit 3")
        assert (first.text, first.exit_code) == (f"{user}\nran\n1\n", 3)
        assert (await world.exec("pwd; echo $X >&2")).text == "/workspace/d\n"
        slow = await world.exec("sleep 7302 & sleep 7303", timeout_s=1)
        assert (slow.ending, slow.exit_code) == (ProgramEnding.WALL_TIME, -9)
        listed = (await world.exec(["ps"])).text
        assert "7301" in listed
        assert "7302" not in listed
        assert "7303" not in listed
        process = await world.start("cat; echo end >&2")
        await process.write(b"abc")
        await process.close_input()
        assert ((await process.wait()).stdout, (await process.wait()).stderr) == (b"abc", b"end\n")
        assert len((await world.exec("yes", output_kib=16)).stdout) == 16384
        await world.write("d/f", b"\0\xff" * 100_000)
        assert await world.read("d/f", most=200_000) == b"\0\xff" * 100_000
        with pytest.raises(FileNotFoundError):
            await world.read("missing")
        with pytest.raises(OSError, match="allowed"):
            await world.read("d/f", most=10)
        other = await world.fork()
        assert (await other.exec("wc -c < f; echo x > f")).text.strip() == "200000"
        await other.stop()
        await world.freeze()
        with pytest.raises(SandboxError, match="frozen"):
            await world.exec("true")
        await world.get_folder(".", tmp_path / "got")
        assert (tmp_path / "got/d/f").stat().st_size == 200_000


async def test_secrets_of_a_command_are_not_in_the_list_of_processes(containers: ContainerRunner) -> None:
    async with containers.world(WorldSpec(limits=SMALL)) as world:
        process = await world.start('echo "$KEY"; cat', environment={"KEY": "zebra-17", "PATH": "/bin:/usr/local/bin"})
        async for _, data in process.output():
            assert data == b"zebra-17\n"
            break
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                assert b"KEY=zebra" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        await process.kill()


async def test_a_container_reaches_one_address(containers: ContainerRunner) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        writer.close()

    servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
    port, other = (server.sockets[0].getsockname()[1] for server in servers)
    async with containers.world(WorldSpec(limits=SMALL, opening=("127.0.0.1", port))) as world:
        assert (await world.exec(f"wget -q -O - http://127.0.0.1:{port}/")).text == "hello"
        assert not (await world.exec(f"wget -q -T 2 -O - http://127.0.0.1:{other}/")).ok
        assert not (await world.exec("wget -q -T 2 -O - http://192.0.2.1/")).ok
    for server in servers:
        server.close()


async def test_the_limits_hold_in_a_container(containers: ContainerRunner) -> None:
    async with containers.world(WorldSpec(limits=replace(SMALL, disk_mib=8, file_mib=64))) as world:
        hungry = await world.exec(["python3", "-c", "a = b'x' * (400 << 20)"])
        assert hungry.exit_code in {137, 1}
        bomb = "import os, time\nn = 0\ntry:\n  while n < 300:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\nexcept OSError: print(n)"
        assert int((await world.exec(["python3", "-c", bomb])).text) <= SMALL.processes + 2
    async with containers.world(WorldSpec(limits=replace(SMALL, disk_mib=8, file_mib=64))) as world:
        full = await world.exec("head -c 30000000 /dev/zero > big; sleep 40")
        assert full.ending is ProgramEnding.DISK


async def test_the_corpus_stays_in_containers(containers: ContainerRunner, tmp_path: Path) -> None:
    outside = OutsideWorld(tmp_path)
    cases = [case for case in WORLD_CASES if case not in BOMBS and case.name not in ENGINE_ALLOWS | NOT_THERE]
    try:
        assert await judge_in_worlds(containers, outside, cases) == {}
    finally:
        outside.close()


@pytest.mark.parametrize("level", ["namespaces", "landlock"])
async def test_bombs_end_in_worlds(level: str, tmp_path: Path) -> None:
    if not kernel_supports(level):
        pytest.skip(f"the kernel of this machine does not offer {level}")
    jail, outside = Jail(level), OutsideWorld(tmp_path)
    try:
        assert await judge_in_worlds(jail, outside, [case for case in WORLD_CASES if case in BOMBS]) == {}
    finally:
        outside.close()
        await jail.aclose()


def test_no_container_outlives_a_host_that_is_killed(image: str) -> None:
    script = f"""
import asyncio
from nemo_gym.sandbox.containers import ContainerRunner
async def main():
    world = await ContainerRunner(image={image!r}, engine="podman").open_world()
    await world.exec("sleep 7304 & echo")
    print("ready", flush=True)
    await world.exec("sleep 7305")
asyncio.run(main())
"""
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    host.kill()
    host.wait()
    host.stdout.close()
    for _ in range(600):
        if not ours():
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError(ours())


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_an_ordinary_user_gets_containers_or_is_told_what_is_missing(image: str, tmp_path: Path) -> None:
    program = """
import asyncio
from nemo_gym.sandbox.containers import ContainerRunner
from nemo_gym.sandbox.interface import SandboxCreateError
async def main():
    try:
        runner = ContainerRunner(image="localhost/missing:latest", engine="podman")
        await runner.start()
        async with runner.world() as world: print("isolated", (await world.exec("id -u")).text)
    except SandboxCreateError as error: print("told:", error)
asyncio.run(main())
"""
    tmp_path.chmod(0o777)
    line = ["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups", "/usr/bin/python3", "-c", program]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd="/", check=False)
    assert done.stdout.startswith(("isolated", "told: isolation by containers does not work here: podman:")), (
        done.stderr
    )
