"""Gyms on a cluster: who is let in, where Gyms go, and that every rollout ends exactly once whatever breaks."""

import asyncio
import contextlib
import logging
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import LENGTHS, Frame
from nemo_gym.executors.handshake import Invitation, RefusedError, introduce
from nemo_gym.executors.placement import ClusterNode, Demand, Place, StartFailure
from nemo_gym.executors.remote_gyms import RemoteGyms, opening_frame, remote_gyms
from nemo_gym.executors.remote_worker import for_node, join
from nemo_gym.io.json import decode
from nemo_gym.rollouts.options import TlsFiles, WorkerOptions
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome, PlannedRollout
from nemo_gym.rollouts.stream import stream_groups, stream_outcomes
from nemo_gym.schemas.rows import FailureClass

sys.path.insert(0, str(Path(__file__).parent))
from stand_in import StandInCluster, answer, worker

CONFIG = OmegaConf.create({"policy_api_key": "sk-very-secret", "policy_base_url": "http://a:1/v1"})
TASKS = [{"responses_create_params": {"input": f"task {number}"}} for number in range(100)]


@contextlib.asynccontextmanager
async def gyms_on(cluster: StandInCluster, *, window: int = 256, **options: Any) -> AsyncIterator[RemoteGyms]:
    async with remote_gyms(cluster, CONFIG, WorkerOptions(executor="ray", **options), window=window) as gyms:
        yield gyms


def planned(task: int = 0) -> PlannedRollout:
    row = {"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}}
    return PlannedRollout.of(row, last_attempt=3)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


# ---- who is let in ---------------------------------------------------------------------------------------------------
async def read_frame(reader: asyncio.StreamReader) -> Frame:
    head, body = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
    return Frame(decode(await reader.readexactly(head)), await reader.readexactly(body))


@pytest.mark.parametrize(
    "said",
    [
        Frame({"challenge": "x", "proof": "0" * 64}, b"{}").encode(),
        Frame({"proof": None}).encode(),
        b"GET / HTTP/1.1\r\nHost: collector\r\n\r\n",
        LENGTHS.pack(1 << 30, 1 << 30),
        LENGTHS.pack(4, 0) + b"[1]\n",
        b"",
    ],
)
async def test_who_does_not_know_the_secret_is_told_nothing(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with gyms_on(StandInCluster(worker())) as gyms:
        assert gyms._invitation is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", gyms._invitation.port)
        assert set((await read_frame(reader)).head) == {"challenge"}
        writer.write(said)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: "refused" in caplog.text)
        assert isinstance(await gyms(planned()), Completed)


async def test_a_worker_takes_no_configuration_from_a_collector_that_does_not_know_the_secret() -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Frame({"challenge": "x"}).encode())
        await read_frame(reader)
        writer.write(Frame({"proof": "guessed"}).encode() + Frame({}, b"run: this").encode())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    from nemo_gym.executors.frames import Connection

    loop, port = asyncio.get_running_loop(), server.sockets[0].getsockname()[1]
    _, connection = await loop.create_connection(lambda: Connection(frames.put_nowait), "127.0.0.1", port)
    with pytest.raises(RefusedError, match="does not know the secret"):
        await introduce(connection, frames, b"secret", {})
    connection.close()
    await connection.closed
    server.close()
    await asyncio.sleep(0.05)  # for the other side to close, too


async def test_what_workers_are_told_can_be_encrypted(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gym")
    await asyncio.to_thread(
        subprocess.run, [openssl, *new, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    files = TlsFiles(certificate=str(cert), key=str(key))
    async with gyms_on(StandInCluster(worker()), executor_tls=files) as gyms:
        assert isinstance(await gyms(planned()), Completed)
        assert gyms._invitation is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", gyms._invitation.port)
        writer.write(b"no TLS at all, only text\n")
        with contextlib.suppress(ConnectionError):
            assert b"challenge" not in await reader.read()
        writer.close()
    with pytest.raises(ConfigError, match="can't use the certificate"):
        async with gyms_on(StandInCluster(worker()), executor_tls=TlsFiles(certificate=str(key), key=str(cert))):
            pytest.fail("that is not a certificate")


# ---- where Gyms go ---------------------------------------------------------------------------------------------------
def test_gyms_follow_the_nodes_or_are_spread() -> None:
    nodes = [
        ClusterNode("a", "a", {"CPU": 4.0, "gym": 2.0}),
        ClusterNode("b", "b", {"CPU": 1.0}),
        ClusterNode("h", "h", {}),
    ]
    nobody: Counter[str | None] = Counter()
    assert Counter(Demand(cpus=2.0).missing(nodes, nobody, ())) == {Place("a"): 2}
    assert Counter(Demand().missing(nodes, Counter({"a": 3}), ())) == {Place("a"): 1, Place("b"): 1}
    assert Demand(cpus=None).missing(nodes, nobody, ["a"]) == [Place("b")]
    assert Demand(resources={"gym": 1.0}).missing(nodes, nobody, ()) == [Place("a")] * 2
    spread = Demand(workers=3).missing(nodes, Counter({None: 1}), ["b"])
    assert spread == [Place(None, frozenset("b"))] * 2


async def test_a_node_that_joins_gets_its_gyms_and_works() -> None:
    cluster = StandInCluster(worker(), cpus=2)
    async with gyms_on(cluster) as gyms:
        await until(lambda: len(gyms) == 2)
        cluster.add_node()
        await until(lambda: len(gyms) == 4)
        await asyncio.gather(*(gyms(planned(number)) for number in range(40)))
        assert [each.finished for each in gyms] == [10] * 4


async def test_a_node_where_the_gym_cannot_start_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    well = worker()

    async def work(invitation: Invitation, node: str) -> StartFailure | None:
        return StartFailure("no such dataset") if node == "n0" else await well(invitation, node)

    cluster = StandInCluster(work, nodes=2)
    async with gyms_on(cluster) as gyms:
        assert isinstance(await gyms(planned()), Completed)
        await until(lambda: "node n0 gets no Gym: no such dataset" in caplog.text)
        assert gyms.describe()["excluded"] == {"node n0": "no such dataset"}
        assert [gym["name"] for gym in gyms.describe()["gyms"]] == ["node n1"]


@pytest.mark.parametrize("workers", [None, 2])
async def test_if_no_node_can_host_the_gym_the_error_is_its_own(workers: int | None) -> None:
    async def work(invitation: Invitation, node: str) -> StartFailure | None:
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        connection = await join(invitation, frames, {"number": invitation.number, "node_id": node})
        connection.close()
        return StartFailure("no such dataset", "download it")

    with pytest.raises(ConfigError, match="no such dataset") as caught:
        async with gyms_on(StandInCluster(work, nodes=2), workers=workers):
            pytest.fail("there is no Gym")
    assert caught.value.hint == "download it"


async def test_a_node_with_another_version_is_left_out() -> None:
    async def work(invitation: Invitation, node: str) -> StartFailure | None:
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        about = {"number": invitation.number, "node_id": node, "version": "0.0.1"}
        connection = await join(invitation, frames, about)
        await connection.closed
        return None

    with pytest.raises(ConfigError, match=r"rollout-gym 0\.0\.1 is installed on node n0, but") as caught:
        async with gyms_on(StandInCluster(work)):
            pytest.fail("there is no Gym")
    assert caught.value.hint == "install the same version on all nodes"


async def test_gyms_that_keep_dying_end_the_run() -> None:
    async def work(invitation: Invitation, node: str) -> StartFailure | None:
        raise RuntimeError("crash")

    with pytest.raises(ConfigError, match="Gyms on node n0 keep dying: killed"):
        async with gyms_on(StandInCluster(work)):
            pytest.fail("there is no Gym")


async def test_nodes_without_what_a_worker_takes_are_an_error() -> None:
    with pytest.raises(ConfigError, match="none of the 1 nodes has what a worker takes"):
        async with gyms_on(StandInCluster(worker()), worker_cpus=64):
            pytest.fail("there is no room")


def test_settings_of_a_node_are_filled_in_and_variables_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "k")
    config = OmegaConf.create(
        {"policy_base_url": "x", "model": {"url": "${policy_base_url}", "key": "${oc.env:SOME_KEY}"}}
    )
    options = WorkerOptions(worker_overrides={"policy_base_url": "http://{node_ip}:8000/v1", "names": ["{node_id}", 1]})
    opening = opening_frame(config, options, timeout_s=None)
    there = for_node(opening, {"node_ip": "10.0.0.7", "node_id": "abc"})
    assert there.model.url == "http://10.0.0.7:8000/v1"
    assert there.names == ["abc", 1]
    assert opening.head["environment"] == {"SOME_KEY": "k"}


# ---- leases ----------------------------------------------------------------------------------------------------------
async def test_a_lost_connection_costs_its_rollouts_one_more_attempt_and_late_results_are_dropped() -> None:
    release, connections, running = asyncio.Event(), [], []

    async def slow(planned: PlannedRollout) -> Outcome:
        running.append(planned.key)
        with contextlib.suppress(asyncio.CancelledError):
            await release.wait()
        return await answer(planned)

    work = worker(slow, on_connection=lambda node, connection: connections.append(connection))
    async with gyms_on(StandInCluster(work)) as gyms:
        first = asyncio.ensure_future(gyms(planned()))
        await until(lambda: running)
        connections[0].abort()
        outcome = await first
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind == FailureClass.WORKER_DIED
        await until(lambda: len(connections) == 2)
        late = Frame({"number": 0, "kind": "Completed", "seconds": 0.0, "reward": 1.0}, b"late").encode()
        connections[1].send(late)
        second = asyncio.ensure_future(gyms(outcome.planned.again()))
        await until(lambda: len(running) == 2)
        release.set()
        again = await second
        assert isinstance(again, Completed)
        assert again.line != b"late"


# Names and addresses of this process alone: a test that was killed leaves its network behind.
NETWORK = f"gym{os.getpid() % 10000}"
NEAR, FAR = (f"198.18.{os.getpid() % 16384 // 64}.{os.getpid() % 64 * 4 + end}" for end in (1, 2))


@pytest.fixture
def cable() -> Iterator[Callable[[], None]]:
    """A network of its own, joined to this one by a cable that can be pulled."""
    ip, name = shutil.which("ip"), NETWORK

    def run(*command: str) -> None:
        subprocess.run([str(ip), *command], check=True, capture_output=True)

    try:
        if ip is None:
            pytest.skip("there is no ip command")
        try:
            run("netns", "add", name)
            run("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
            run("addr", "add", f"{NEAR}/30", "dev", f"{name}a")
            run("link", "set", f"{name}a", "up")
            run("-n", name, "addr", "add", f"{FAR}/30", "dev", f"{name}b")
            run("-n", name, "link", "set", f"{name}b", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"networks can't be made here: {error.stderr.decode().strip()}")
        yield lambda: run("-n", name, "link", "set", f"{name}b", "down")
    finally:
        if ip is not None:
            subprocess.run([ip, "netns", "delete", name], check=False, capture_output=True)


class FarCluster(StandInCluster):
    """A node behind the cable."""

    host = NEAR

    async def start(self, place: Place, invitation: Invitation) -> Any:
        script, namespace = str(Path(__file__).parent / "stand_in.py"), NETWORK
        arguments = (invitation.host, str(invitation.port), invitation.secret.hex())
        return await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", namespace, sys.executable, script, *arguments)
        )

    async def ended(self, started: Any) -> None:
        await started.wait()

    async def end(self, started: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


async def test_a_pulled_cable_gives_the_leases_back(cable: Callable[[], None]) -> None:
    async with gyms_on(FarCluster(worker())) as gyms:
        running = asyncio.ensure_future(gyms(planned()))
        await until(lambda: any(each.leases for each in gyms))
        await asyncio.to_thread(cable)
        outcome = await running
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind == FailureClass.WORKER_DIED


async def test_a_worker_never_has_more_than_its_window_and_the_rest_waits() -> None:
    at_once: Counter[str] = Counter()
    most = 0

    async def count(planned: PlannedRollout) -> Outcome:
        nonlocal most
        at_once["now"] += 1
        most = max(most, at_once["now"])
        await asyncio.sleep(0.001)
        at_once["now"] -= 1
        return await answer(planned)

    async with gyms_on(StandInCluster(worker(count)), window=3) as gyms:
        outcomes = await asyncio.gather(*(gyms(planned(number)) for number in range(30)))
    assert most == 3
    assert sorted(outcome.planned.key.task for outcome in outcomes) == list(range(30))


async def test_whoever_stops_waiting_stops_the_rollout_on_its_node() -> None:
    states: list[str] = []

    async def endless(planned: PlannedRollout) -> Outcome:
        states.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            states.append("cancelled")
            raise
        raise AssertionError

    async with gyms_on(StandInCluster(worker(endless)), window=1) as gyms:
        call, waiting = asyncio.ensure_future(gyms(planned())), asyncio.ensure_future(gyms(planned(1)))
        await until(lambda: states == ["started"])
        call.cancel()
        await until(lambda: states[:2] == ["started", "cancelled"] and len(states) == 3)
        waiting.cancel()
        await asyncio.gather(call, waiting, return_exceptions=True)


async def test_every_rollout_ends_once_while_workers_nodes_and_connections_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    dice, connections = random.Random(7), []

    async def work_a_while(planned: PlannedRollout) -> Outcome:
        await asyncio.sleep(0.001 + 0.02 * dice.random())
        return await answer(planned)

    cluster = StandInCluster(worker(work_a_while, on_connection=lambda _, made: connections.append(made)), nodes=3)

    async def break_things() -> None:
        while True:
            await asyncio.sleep(0.02)
            names = list(cluster.alive)
            match dice.randrange(4):
                case 0:
                    connections[dice.randrange(len(connections))].abort()
                case 1:
                    cluster.kill_worker(dice.choice(names))
                case 2 if len(names) > 2:
                    cluster.remove_node(dice.choice(names))
                case _:
                    cluster.add_node()

    async with gyms_on(cluster, window=8) as gyms:
        chaos = asyncio.create_task(break_things())
        seen: Counter[Any] = Counter()
        async for outcome in stream_outcomes(
            TASKS, gyms, agent="a", repeats=6, limit=64, max_attempts=50, patience_s=60
        ):
            assert isinstance(outcome, Completed), outcome
            seen[outcome.planned.key] += 1
        chaos.cancel()
    assert len(seen) == 600
    assert set(seen.values()) == {1}


async def test_groups_of_a_trainer_come_whole_from_remote_gyms() -> None:
    async with gyms_on(StandInCluster(worker(), nodes=2)) as gyms:
        sizes = [len(group) async for group in stream_groups(TASKS[:10], gyms, agent="a", repeats=4)]
    assert sizes == [4] * 10


def test_a_process_takes_over_what_the_collector_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_gym.executors.remote_worker import prepare_process

    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("ALREADY", "here")
    monkeypatch.delenv("NOT_YET", raising=False)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    prepare_process({"folder": str(tmp_path), "environment": {"ALREADY": "there", "NOT_YET": "there"}})
    assert Path.cwd() == tmp_path
    assert (os.environ["ALREADY"], os.environ.pop("NOT_YET")) == ("here", "there")
    prepare_process({"folder": "/no/such/folder"})
    assert Path.cwd() == tmp_path
