"""Calls in processes that can be ended: limits, crashes, and nothing left behind."""

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.process_pool import CallLimitError, ProcessPool, WorkerError


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def any_alive(pids: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_a_call_returns_what_the_function_returns() -> None:
    async with ProcessPool("math:hypot") as pool:
        assert await pool.call(3, 4) == 5.0
        assert await asyncio.gather(*(pool.call(0, n) for n in range(20))) == [float(n) for n in range(20)]


async def test_an_exception_is_told_and_the_process_goes_on() -> None:
    async with ProcessPool("math:sqrt", size=1) as pool:
        with pytest.raises(WorkerError, match="ValueError: "):
            await pool.call(-1)
        assert await pool.call(4) == 2.0


async def test_computing_without_end_is_ended_and_the_next_call_works() -> None:
    async with ProcessPool("builtins:pow", size=1, time_limit_s=0.2) as pool:
        with pytest.raises(CallLimitError, match=r"took longer than 0\.2 s"):
            await pool.call(7, 10**9)
        assert await pool.call(2, 5) == 32


async def test_a_call_is_ended_although_its_signal_is_ignored_where_the_pool_was_made() -> None:
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        async with ProcessPool("builtins:pow", size=1, time_limit_s=0.2) as pool:
            with pytest.raises(CallLimitError):
                await pool.call(7, 10**9)
    finally:
        signal.signal(signal.SIGPROF, before)


async def test_memory_is_limited() -> None:
    async with ProcessPool("builtins:bytearray", size=1, memory_mb=64) as pool:
        with pytest.raises(CallLimitError, match="needed more than 64 MB of memory"):
            await pool.call(1 << 30)


async def test_a_process_that_dies_fails_the_call_alone() -> None:
    async with ProcessPool("os:_exit", size=1) as pool:
        for code in (3, 4):
            with pytest.raises(WorkerError, match=rf"died \(exit code {code}\)"):
                await pool.call(code)


async def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    async with ProcessPool("no_such_package.x:f", install="pip install it") as pool:
        with pytest.raises(ConfigError, match="'no_such_package' is not installed") as caught:
            await pool.call()
    assert caught.value.hint == "pip install it"


async def test_a_function_that_can_not_be_imported_is_a_failure() -> None:
    async with ProcessPool("math:no_such_name") as pool:
        with pytest.raises(WorkerError, match="can't be started: AttributeError"):
            await pool.call()


async def test_secrets_of_the_caller_stay_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_API_KEY", "secret")
    async with ProcessPool("os:getenv") as pool:
        assert await pool.call("POLICY_API_KEY") is None


async def test_files_can_not_be_written(tmp_path: Path) -> None:
    async with ProcessPool("shutil:copyfile") as pool:
        with pytest.raises(WorkerError):
            await pool.call(__file__, str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_size == 0


async def test_nothing_is_left_behind() -> None:
    before = set(children(os.getpid()))
    pool = ProcessPool("math:sqrt", size=2)
    await asyncio.gather(pool.call(1), pool.call(2))
    (server,) = set(children(os.getpid())) - before
    assert os.getsid(server) != os.getsid(0)  # out of reach of Ctrl-C
    workers = children(server)
    assert workers
    await pool.close()
    assert set(children(os.getpid())) <= before
    for _ in range(500):  # they end by themselves when the connection closes
        if not any_alive(workers):
            break
        await asyncio.sleep(0.01)
    assert not any_alive(workers)


async def test_a_pool_that_nobody_holds_any_more_ends_its_processes() -> None:
    before = set(children(os.getpid()))
    pool = ProcessPool("math:sqrt", size=1)
    await pool.call(1)
    del pool
    for _ in range(500):  # the thread that made the call lets go of it in its own time
        gc.collect()
        if set(children(os.getpid())) <= before:
            break
        await asyncio.sleep(0.01)
    assert set(children(os.getpid())) <= before
