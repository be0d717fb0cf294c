# ruff: noqa: E501 - commands are easier to read in long lines than in many
"""Worlds: a shell that remembers, several commands at once, and what must not get out of them."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import (
    WORLD_LIMITS,
    ProgramEnding,
    SandboxCreateError,
    SandboxError,
    World,
    WorldFile,
    WorldFileError,
    WorldPool,
    WorldSpec,
)
from nemo_gym.sandbox.jail import Jail
from tests.sandbox.kernel_features import kernel_supports

SMALL = replace(WORLD_LIMITS, memory_mib=256, processes=24, disk_mib=8, file_mib=4, disk_files=500, wall_s=60)
namespaces_only = pytest.mark.skipif(not kernel_supports("namespaces"), reason="the kernel has no user namespaces")


@pytest.fixture
async def world(jail: Jail) -> AsyncIterator[World]:
    async with jail.world(WorldSpec(limits=SMALL)) as world:
        yield world


@pytest.fixture(scope="module")
def spaces() -> Iterator[Jail]:
    jail = Jail("namespaces")
    yield jail
    asyncio.run(jail.aclose())


async def test_the_folder_and_the_variables_last(world: World) -> None:
    first = await world.exec("mkdir -p 'a b'; cd 'a b'; export X='1 \"2\" $3\n4'; unset LANG; plain=7; echo $plain")
    assert (first.text, first.stderr, first.exit_code) == ("7\n", b"", 0)
    second = await world.exec('pwd; echo "$X"; echo "<$LANG$plain>"; exit 5')
    assert (second.text, second.exit_code) == (f'{world.workdir}/a b\n1 "2" $3\n4\n<>\n', 5)
    assert (await world.exec("pwd", folder=".")).text == f"{world.workdir}\n"
    assert (await world.exec("pwd")).text == f"{world.workdir}\n"
    assert (await world.exec(["pwd"], folder="a b")).text == f"{world.workdir}/a b\n"
    assert (await world.exec("syntax ( error")).exit_code != 0
    assert (await world.exec("echo $X | wc -l")).text == "1\n"


async def test_variables_of_one_command_are_those_of_the_world_first(jail: Jail) -> None:
    async with jail.world(WorldSpec(limits=SMALL, environment={"A": "1", "B": "2"})) as world:
        assert (await world.exec(["sh", "-c", "echo $A$B$C"], environment={"B": "3", "C": "4"})).text == "134\n"


async def test_commands_run_at_once_and_talk(world: World) -> None:
    process = await world.start("read line; echo got $line; cat >/dev/null; echo end >&2")
    pieces: list[tuple[int, bytes]] = []
    await process.write(b"hello\n")
    async for stream, data in process.output():
        pieces.append((stream, data))
        if data == b"got hello\n":
            assert (await world.exec("echo meanwhile")).text == "meanwhile\n"
            await process.close_input()
    assert (b"".join(data for _, data in pieces), pieces[-1][0]) == (b"got hello\nend\n", 2)
    assert (await process.wait()).ok


async def test_large_input_and_output_pass_whole(world: World) -> None:
    data = os.urandom(3 << 20)
    result = await world.exec(["cat"], stdin=data, output_kib=4096)
    assert result.stdout == data
    assert not result.cut
    short = await world.exec(["cat"], stdin=data, output_kib=10)
    assert (short.stdout, short.cut, short.ok) == (data[:10240], True, True)


async def test_a_command_that_takes_too_long_ends_with_its_children_and_nothing_else(world: World) -> None:
    await world.exec("sleep 7001 & echo")
    slow = await world.exec("sleep 7002 & sleep 7003 | cat", timeout_s=0.5)
    assert (slow.ending, slow.exit_code) == (ProgramEnding.WALL_TIME, -9)
    assert await running_sleeps(world) == {"7001"}
    flood = await world.exec("yes", output_kib=16)
    assert (flood.ending, len(flood.stdout), flood.cut) == (ProgramEnding.OUTPUT, 16384, True)
    process = await world.start("sleep 7004")
    assert (await process.kill()).exit_code == -9


async def running_sleeps(world: World) -> set[str]:
    """The arguments of the sleeps in a world, found from outside, where nothing is hidden."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if line[0] == b"sleep" and line[1].startswith(b"70"):
                found.add(line[1].decode())
    return found


async def test_what_a_command_leaves_running_goes_on_until_the_freeze(world: World) -> None:
    await world.exec("(while :; do date >> ticks; sleep 0.05; done) & sleep 7005 & echo started")
    before = len(await world.read("ticks"))
    while len(await world.read("ticks")) <= before:
        await asyncio.sleep(0.02)
    await world.freeze()
    assert await running_sleeps(world) == set()
    ticks = await world.read("ticks")
    await asyncio.sleep(0.2)
    assert await world.read("ticks") == ticks
    for refused in (world.exec("true"), world.write("a", b""), world.start("true")):
        with pytest.raises(SandboxError, match="frozen"):
            await refused


async def test_nothing_that_resists_outlives_its_world(jail: Jail) -> None:
    async with jail.world(WorldSpec(limits=SMALL)) as world:
        await world.exec(
            "trap '' TERM HUP INT; (setsid sleep 7006 || sleep 7006) & (nohup sleep 7007 &) ; sleep 7008 & disown; echo"
        )
        process = await world.start("sleep 7009")
    assert await running_sleeps(world) == set()
    with pytest.raises(SandboxError, match="stopped"):
        await process.wait()
    with pytest.raises(SandboxError, match="stopped"):
        await world.exec("true")


async def test_a_cancelled_command_is_ended(world: World) -> None:
    task = asyncio.create_task(world.exec("sleep 7010"))
    while "7010" not in await running_sleeps(world):
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while "7010" in await running_sleeps(world):
        await asyncio.sleep(0.02)
    assert (await world.exec("echo on")).text == "on\n"


async def test_files_go_in_and_out_within_bounds(world: World, tmp_path: Path) -> None:
    await world.write("deep/er/file", b"content", mode=0o755)
    assert await world.read("deep/er/file") == b"content"
    assert (await world.exec("./deep/er/file 2>/dev/null; test -x deep/er/file && echo x")).text == "x\n"
    with pytest.raises(FileNotFoundError):
        await world.read("missing")
    for path in (".", "pipe", "/dev/zero", "deep"):
        await world.exec("[ -p pipe ] || mkfifo pipe")
        with pytest.raises(WorldFileError):
            await world.read(path)
    with pytest.raises(WorldFileError, match="more than the 3 allowed"):
        await world.read("deep/er/file", most=3)
    with pytest.raises(WorldFileError):
        await world.write("deep", b"a folder is there")
    await world.exec("head -c 3000000 /dev/zero > big")
    with pytest.raises(WorldFileError, match="MiB allowed"):
        await world.get_folder(".", tmp_path / "out", most_mib=1)


async def test_a_full_disk_is_the_commands_affair_and_then_over(world: World) -> None:
    full = await world.exec("for n in 1 2 3 4 5; do head -c 3000000 /dev/zero > f$n; sleep 0.3; done; [ -s f5 ]")
    assert not full.ok
    assert full.ending in {ProgramEnding.EXITED, ProgramEnding.DISK}
    with contextlib.suppress(WorldFileError):
        await world.write("more", b"x" * 3_000_000)
    await world.exec(["sh", "-c", "rm -f f* more"])
    assert (await world.exec("echo on; pwd")).text == f"on\n{world.workdir}\n"


async def test_memory_and_processes_are_limited_for_all_together(world: World) -> None:
    hungry = "import time; a = b'x' * (90 << 20); time.sleep(60)"
    commands = [world.exec(["python3", "-c", hungry]) for _ in range(4)]
    assert {result.ending for result in await asyncio.gather(*commands)} == {ProgramEnding.MEMORY}
    bomb = "import os, time\nn = 0\ntry:\n  while n < 300:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\nexcept OSError: print(n)"
    counted = await world.exec(["python3", "-c", bomb])
    assert int(counted.text) <= SMALL.processes
    await world.freeze()


async def test_links_lead_nowhere_outside(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    got = tmp_path / "got"
    await world.exec(
        f"mkdir d; echo 1 > d/f; ln -s {secret} d/abs; ln -s ../../../../../../../../{secret} d/rel; ln -s f d/in; ln -s .. d/up;"
        f" ln -s {tmp_path} d/folder; ln d/f d/hard; mkfifo d/pipe"
    )
    with pytest.raises((FileNotFoundError, WorldFileError)):
        await world.read("d/abs")
    await world.get_folder("d", got)
    assert sorted(path.name for path in got.iterdir()) == ["f", "hard", "in"]
    # A second download over the first must not write through links that are there by then.
    await world.exec("cd d; rm in; mkdir in; echo pwned > in/secret; rm f; ln -s in f")
    (got / "folder").symlink_to(tmp_path)
    await world.exec("rm folder; mkdir folder; echo pwned > folder/secret")
    await world.get_folder("d", got)
    assert secret.read_text() == "the host's"


def test_an_archive_that_lies_stays_in_its_folder(tmp_path: Path) -> None:
    from nemo_gym.sandbox.inside.trees import unpack_tree

    out, evil = tmp_path / "out", tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as archive:
        for name, target in (("link", str(tmp_path)), ("up", "../..")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for name in ("link/pwned", "../pwned", "/pwned-abs", "up/pwned", "a/../../pwned"):
            archive.addfile(tarfile.TarInfo(name))
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "../evil.tar"
        archive.addfile(hard)
    for contained in (True, False):
        out.mkdir(exist_ok=True)
        with evil.open("rb") as file:
            unpack_tree(file, str(out), most=1 << 20, contained=contained)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar", "out"]
    assert not (out / "hard").exists()


async def test_a_fork_has_the_files_and_nothing_else(world: World) -> None:
    await world.write("f", b"1")
    await world.exec("ln -s f l; mkdir -m 700 closed; echo x > closed/x; sleep 7011 & echo")
    other = await world.fork()
    try:
        assert (await other.exec("cat f l closed/x; echo 2 > f")).text == "11x\n"
        assert (await world.read("f"), await other.read("f")) == (b"1", b"2\n")
        assert await running_sleeps(world) == {"7011"}
    finally:
        await other.stop()


async def test_a_snapshot_starts_several_worlds(jail: Jail) -> None:
    async with jail.world(
        WorldSpec(limits=SMALL, files={"tool": WorldFile(b"#!/bin/sh\necho ran\n", mode=0o755)})
    ) as first:
        snapshot = await first.snapshot()
    for _ in range(2):
        async with jail.world(WorldSpec(limits=SMALL, snapshot=snapshot)) as world:
            assert (await world.exec("./tool; rm tool")).text == "ran\n"
    await snapshot.remove()
    await snapshot.remove()


async def test_folders_pass_from_world_to_world(jail: Jail, world: World, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "a").write_text("1")
    await world.exec("mkdir there; echo old > there/old; ln -s /etc linked")
    await world.put_folder(tmp_path / "in", "there")
    await world.put_folder(tmp_path / "in", "linked", replaces=True)
    assert (await world.exec("cat there/old there/sub/a linked/sub/a; ls -d linked/*")).text == "old\n11linked/sub\n"
    with tempfile.TemporaryFile() as archive:
        await world.pack_folder(".", archive)
        async with jail.world(WorldSpec(limits=SMALL)) as second:
            await second.unpack_folder(".", archive, replaces=True)
            assert await second.read("there/sub/a") == b"1"


async def test_worlds_do_not_meet(jail: Jail, world: World) -> None:
    await world.write("secret", b"mine")
    await world.exec("sleep 7012 & echo mine > /tmp/mine 2>/dev/null; echo")
    async with jail.world(WorldSpec(limits=SMALL)) as other:
        look = (
            f"cat {world.workdir}/secret /tmp/mine; ls {world.workdir}/../..; pkill -9 sleep;"
            " kill -9 -1; for p in /proc/[0-9]*; do cat $p/environ $p/root/workspace/secret; done"
        )
        seen = await other.exec(["sh", "-c", look])
        assert b"mine" not in seen.stdout
    assert await world.read("secret") == b"mine"
    assert await running_sleeps(world) == {"7012"}


async def test_64_worlds_at_once_never_hold_up_the_event_loop(jail: Jail) -> None:
    longest = 0.0
    stop = asyncio.Event()

    async def tick() -> None:
        nonlocal longest
        while not stop.is_set():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
            await asyncio.sleep(0.001)

    async def live() -> str:
        async with jail.world(WorldSpec(limits=SMALL)) as world:
            await world.write("a", b"1")
            return (await world.exec("cat a; echo b > c; cat c")).text

    ticking = asyncio.create_task(tick())
    assert await asyncio.gather(*(live() for _ in range(64))) == ["1b\n"] * 64
    stop.set()
    await ticking
    assert longest < 0.1  # of this thread's CPU time: other processes do not count


async def test_nothing_is_left_of_many_worlds(level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    jail = Jail(level)
    await (await jail.open_world(WorldSpec(limits=SMALL))).stop()
    descriptors = len(os.listdir("/proc/self/fd"))

    async def live(number: int) -> None:
        world = await jail.open_world(WorldSpec(limits=SMALL))
        await world.exec("sleep 7013 & echo x > f")
        if number % 3 == 0:
            await (await world.fork()).stop()
        await world.stop()
        await world.stop()

    for start in range(0, 40, 8):
        await asyncio.gather(*(live(number) for number in range(start, start + 8)))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert "rollout-gym-sandbox" not in Path("/proc/self/mountinfo").read_text()
    await jail.aclose()
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_when_the_host_is_killed_in_a_world(level: str, tmp_path: Path) -> None:
    script = f"""
import asyncio
from nemo_gym.sandbox.jail import Jail
async def main():
    world = await Jail({level!r}).open_world()
    await world.exec("sleep 7014 & (setsid sleep 7015 || sleep 7015) & echo")
    print("ready", flush=True)
    await world.exec("sleep 7016")
asyncio.run(main())
"""
    host = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (asyncio.run(running_sleeps(None)) or os.listdir(tmp_path)):  # type: ignore[arg-type]
        time.sleep(0.05)
    assert asyncio.run(running_sleeps(None)) == set()  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


async def test_a_pool_has_the_next_world_ready(jail: Jail) -> None:
    pool = WorldPool(jail, WorldSpec(limits=SMALL), size=2)
    taken = [await pool.take() for _ in range(3)]
    assert len({world.workdir if world.level == "landlock" else id(world) for world in taken}) == 3
    for world in taken:
        assert (await world.exec("ls; touch used")).text == ""
        await world.stop()
    await pool.aclose()
    with pytest.raises(SandboxError):
        await pool.take()


async def test_a_level_says_what_it_can_not_do(level: str, tmp_path: Path) -> None:
    jail = Jail(level)
    try:
        with pytest.raises(
            SandboxCreateError, match="no such folder or archive" if level == "namespaces" else "no roots"
        ):
            await jail.open_world(WorldSpec(root="python:3.12-slim"))
        if level == "landlock":
            for spec in (WorldSpec(loopback=True), WorldSpec(opening=("127.0.0.1", 80)), WorldSpec(workdir="/app")):
                with pytest.raises(SandboxCreateError, match="without namespaces"):
                    await jail.open_world(spec)
    finally:
        await jail.aclose()
    with pytest.raises(ConfigError):
        WorldSpec(workdir="../out")
    with pytest.raises(ConfigError):
        WorldSpec(user=0x10000)


# ---- what only namespaces have ---------------------------------------------------------------------------------------
@namespaces_only
async def test_one_address_can_be_reached_and_nothing_else(spaces: Jail) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
            await writer.drain()
        writer.close()

    open_server = await asyncio.start_server(answer, "127.0.0.1", 0)
    closed_server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port, other = (server.sockets[0].getsockname()[1] for server in (open_server, closed_server))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0world-test-{os.getpid()}")
    abstract.listen()
    program = f"""
import socket
with socket.create_connection(("127.0.0.1", {port})) as c:
    c.sendall(b"hello" * 50_000); c.shutdown(socket.SHUT_WR)
    got = b""
    while data := c.recv(1 << 16): got += data
print(got == b"HELLO" * 50_000)
for address in (("127.0.0.1", {other}), ("10.0.0.1", 80), ("192.0.2.1", 80), ("169.254.169.254", 80)):
    try: socket.create_connection(address, 2); print("ESCAPED", address)
    except OSError: pass
try: socket.socket(socket.AF_UNIX).connect("\\0world-test-{os.getpid()}"); print("ESCAPED abstract")
except OSError: pass
for family in set(range(64)) - {{1, 2, 10}}:
    try: socket.socket(family); print("ESCAPED family", family)
    except OSError: pass
try: socket.socket(2, socket.SOCK_RAW, 1); print("ESCAPED raw")
except OSError: pass
"""
    async with spaces.world(WorldSpec(limits=SMALL, opening=("127.0.0.1", port))) as world:
        assert world.opening == f"127.0.0.1:{port}"
        assert (await world.exec(["python3", "-c", program])).text == "True\n"
        inner = "import http.server, threading, urllib.request as u; s = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\nthreading.Thread(target=s.serve_forever, daemon=True).start()\nprint(u.urlopen(f'http://127.0.0.1:{s.server_port}/').status)"
        assert (await world.exec(["python3", "-c", inner])).text == "200\n"
    async with spaces.world(WorldSpec(limits=SMALL)) as world:
        assert "PermissionError" in (await world.exec(["python3", "-c", program])).stderr.decode()
    for server in (open_server, closed_server):
        server.close()
    abstract.close()


def busybox_root(folder: Path) -> Path:
    for name in ("bin", "etc", "usr/share/old"):
        (folder / name).mkdir(parents=True)
    (folder / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (folder / "bin/busybox").chmod(0o755)
    for name in ("sh", "cat", "ls", "mv", "rm", "mkdir", "touch", "id", "test"):
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "etc/motd").write_text("welcome\n")
    (folder / "usr/share/old/f").write_text("old")
    return folder


@namespaces_only
@pytest.mark.skipif(not Path("/bin/busybox").exists(), reason="needs a statically linked busybox in /bin")
@pytest.mark.parametrize("kind", ["folder", "tarball", "image"])
async def test_a_world_may_have_a_root_of_its_own(
    spaces: Jail, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = busybox_root(tmp_path / "root")
    source = root if kind == "folder" else tmp_path / "root.tar"
    if kind == "tarball":
        with tarfile.open(source, "w") as archive:
            archive.add(root, ".")
    elif kind == "image":
        subprocess.run([sys.executable, "-c", IMAGE, str(root), str(source)], check=True)
    spec = WorldSpec(root=source, workdir="/app", user=0, limits=SMALL)
    async with spaces.world(spec) as world:
        changed = "echo more >> /etc/motd; rm -r /usr/share/old; mkdir /usr/share/old; touch /usr/share/old/new; rm /bin/id; pwd"
        assert (await world.exec(changed)).text == "/app\n"
        other = await world.fork()
        assert (
            await other.exec("cat /etc/motd; ls /usr/share/old; ls /bin/id || echo gone")
        ).text == "welcome\nmore\nnew\ngone\n"
        await other.stop()
    async with spaces.world(spec) as world:
        assert (await world.exec("cat /etc/motd; ls /usr/share/old; echo $FROM_IMAGE")).text == (
            "welcome\nf\nyes\n" if kind == "image" else "welcome\nf\n\n"
        )
        assert (await world.exec("ls /root/.pyenv /usr/bin /home/*/*")).text == ""


# Writes an archive of an image with two layers, the second of which removes a file of the first.
IMAGE = """
import hashlib, io, json, pathlib, sys, tarfile
root, target = map(pathlib.Path, sys.argv[1:])
def layer(add):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive: add(archive)
    return data.getvalue()
def first(archive):
    archive.add(root, ".")
    archive.addfile(tarfile.TarInfo("etc/removed"))
def second(archive): archive.addfile(tarfile.TarInfo("etc/.wh.removed"))
blobs = {}
def blob(data):
    digest = hashlib.sha256(data).hexdigest()
    blobs["blobs/sha256/" + digest] = data
    return {"digest": "sha256:" + digest, "size": len(data)}
layers = [blob(layer(first)), blob(layer(second))]
config = blob(json.dumps({"config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "WorkingDir": "/app"}}).encode())
manifest = blob(json.dumps({"config": config, "layers": layers}).encode())
files = {"oci-layout": b"{}", "index.json": json.dumps({"manifests": [manifest]}).encode(), **blobs}
with tarfile.open(target, "w") as archive:
    for name, data in files.items():
        member = tarfile.TarInfo(name); member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
"""
