"""Reaches the Gym that a command needs: hosts it here, or finds one that runs elsewhere."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from omegaconf import DictConfig

from nemo_gym.config.instances import read_instances
from nemo_gym.errors import ConfigError
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.children import ServerCrashedError
from nemo_gym.servers.client import GymClient
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.http import close_http_client


@contextlib.asynccontextmanager
async def reach_gym(
    config: DictConfig, *, serve: bool | None, on_crash: Callable[[], None] = lambda: None
) -> AsyncIterator[GymClient]:
    """A client for the Gym. Unless said otherwise it is hosted here if the configuration describes servers.

    A server process that ends meanwhile is told at once by ``on_crash`` and raised when the context ends.
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
    """Show the last lines of a server that crashed rather than where we noticed it."""
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
        if watching.done():
            await watching
    finally:
        watching.cancel()
        await asyncio.wait([watching])
