"""Runs the asynchronous part of a command, and gives it the Gym it needs: hosted here or running elsewhere.

The first SIGINT or SIGTERM cancels the work, which then cleans up after itself. The second one ends the process at
once; server processes notice that their parent is gone and end too.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from omegaconf import DictConfig

from nemo_gym.cli import console
from nemo_gym.config.instances import read_instances
from nemo_gym.errors import ConfigError, ExitCode
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.isolation import ServerCrashedError
from nemo_gym.servers.server_client import GymClient

Result = TypeVar("Result")
GC_THRESHOLD = 20_000  # new objects between two collections; the default (700 in Python 3.11) suits small programs


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end on a new event loop."""
    # What is loaded by now stays alive, and so do rollouts in flight: frequent collections would find no garbage.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


@contextlib.contextmanager
def cancelled_by_signals(task: asyncio.Task[Any], *, announcement: str) -> Iterator[None]:
    """Announce the first signal and cancel the task; end the process on the second."""
    received = 0
    loop = asyncio.get_running_loop()

    def on_signal(*_: Any) -> None:
        # A Python handler rather than one of the event loop, because code of an environment may block the loop.
        nonlocal received
        received += 1
        if received > 1:
            # Not sys.exit, which would wait for threads and for cleaning up that hangs.
            os._exit(ExitCode.INTERRUPTED)
        with contextlib.suppress(RuntimeError):  # the signal interrupted another message
            console.note(f"\n{announcement}")
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def reach_gym(
    config: DictConfig, *, serve: bool | None, on_crash: Callable[[], None] = lambda: None
) -> AsyncIterator[GymClient]:
    """A client for the Gym. By default the Gym is hosted here if the configuration describes servers.

    If a server process ends meanwhile, ``on_crash`` is called at once, and the error is raised when the context ends.
    """
    if serve if serve is not None else bool(read_instances(config)):
        with crashes_explained("what was saved before is intact; correct the cause and start again"):
            async with host_gym(config) as gym, _watched(gym, on_crash):
                yield gym.client
    else:
        try:
            yield ServerClient.load_from_global_config()
        finally:
            await close_http_client()


@contextlib.contextmanager
def crashes_explained(hint: str) -> Iterator[None]:
    """Show the last lines of a crashed server rather than our own traceback."""
    try:
        yield
    except ServerCrashedError as crash:
        raise ConfigError(str(crash), hint=f"all servers were stopped; {hint}") from None


@contextlib.asynccontextmanager
async def _watched(gym: Gym, on_crash: Callable[[], None]) -> AsyncIterator[None]:
    async def watch() -> None:
        try:
            await gym.watch()
        except ServerCrashedError:
            on_crash()
            raise

    watching = asyncio.create_task(watch())
    try:
        yield
        if watching.done():  # raises the crash, which is more important than the end of the work
            await watching
    finally:
        watching.cancel()
        await asyncio.wait([watching])
