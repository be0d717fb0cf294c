"""Collects in a Gym: hosts the servers here or reaches those that run elsewhere, with workers if they are requested.

The commands and the Python interface both go through ``collect_in_gym``.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from omegaconf import DictConfig
from pydantic import BaseModel

from nemo_gym.config.instances import read_instances
from nemo_gym.errors import ConfigError, UnfinishedRunError, UsageError
from nemo_gym.executors.processes import worker_count, worker_pool
from nemo_gym.io.files import STORAGE_ERRORS
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper, with_default_trackers
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.run import RunListener, StopSwitch
from nemo_gym.rollouts.store.outcome import Completed, Outcome
from nemo_gym.rollouts.tally import Summary
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.server_client import GymClient
from nemo_gym.servers.supervision import FAILED_STARTS, ServerCrashedError

SERVE: Final = (
    "Whether to host the servers in this process (true) or to use those of a running ng_run (false). By default they"
    " are hosted if the configuration describes any."
)

Classes: TypeAlias = Mapping[str, type[BaseModel]]  # by instance name


async def collect_in_gym(
    config: DictConfig,
    parameters: RolloutCollectionConfig,
    *,
    stop: StopSwitch,
    serve: bool | None = None,
    classes: Classes = MappingProxyType({}),
) -> Summary:
    """Collect in the Gym of this process or in one that runs elsewhere.

    ``serve`` decides between the two; by default the Gym is hosted here if the configuration describes servers.
    """
    parameters = with_default_trackers(parameters)
    with saved_rollouts() as saved:
        async with (
            reach_gym(config, serve=serve, on_crash=stop.press, classes=classes) as client,
            _workers(config, parameters, serve=serve) as attempt,
        ):
            helper = RolloutCollectionHelper()
            return await helper.collect(parameters, client=client, attempt=attempt, stop=stop, listener=saved)


class SavedSomething(RunListener):
    """Notes whether a run has saved anything."""

    any: bool = False

    def outcomes_saved(self, outcomes: Sequence[Outcome]) -> None:
        """Note completed rollouts."""
        self.any = self.any or any(isinstance(outcome, Completed) for outcome in outcomes)


@contextlib.contextmanager
def saved_rollouts() -> Iterator[SavedSomething]:
    """Mark an error of the user's that ends a run which has saved rollouts: such a run did not do nothing."""
    saved = SavedSomething()
    try:
        yield saved
    except ConfigError as error:
        if not saved.any:
            raise
        raise UnfinishedRunError(str(error), hint=error.hint) from error
    except OSError as error:
        if not saved.any or error.errno not in STORAGE_ERRORS:
            raise
        raise UnfinishedRunError(
            f"{error.filename or 'storage'}: {error.strerror}",
            hint="make room or correct the permissions, then continue with +resume_from_cache=true",
        ) from error


@asynccontextmanager
async def _workers(
    config: DictConfig, parameters: RolloutCollectionConfig, *, serve: bool | None
) -> AsyncIterator[Attempt | None]:
    """The requested workers, or None to run rollouts in this process."""
    on_cluster = parameters.executor == "ray"
    number = 0 if on_cluster else worker_count(parameters.workers)
    if number == 1:  # a single worker would gain nothing, and cost the messages to it
        yield None
        return
    if serve is False or not read_instances(config):
        raise UsageError(
            "workers host the servers themselves, but the configuration describes no servers",
            hint="give +config_paths=[…], or leave out +workers and +executor to use the servers of ng_run",
        )
    timeout_s = parameters.rollout_timeout_s
    recording: dict[str, Any] = {"steps": parameters.steps, "trace_run": parameters.trace_run}
    if on_cluster:
        ray_gyms = await asyncio.to_thread(_ray_gyms)
        with redirect_stdout(sys.stderr):  # Ray prints what went wrong to stdout, which carries data
            async with ray_gyms(config, parameters, timeout_s=timeout_s, **recording) as gyms:
                yield gyms
    else:
        async with worker_pool(config, number, timeout_s=timeout_s, **recording) as pool:
            yield pool


def _ray_gyms() -> Any:
    """The function that hosts Gyms on a Ray cluster, imported only on demand, because Ray is large."""
    try:
        return import_module("nemo_gym.executors.ray_cluster").ray_gyms
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("executor=ray needs Ray", hint="pip install 'rollout-gym[ray]'") from None


@contextlib.asynccontextmanager
async def reach_gym(
    config: DictConfig,
    *,
    serve: bool | None,
    on_crash: Callable[[], None] = lambda: None,
    classes: Classes = MappingProxyType({}),
) -> AsyncIterator[GymClient]:
    """A client for the Gym. By default the Gym is hosted here if the configuration describes servers.

    If a server can't be kept running, ``on_crash`` is called at once, and the error is raised when the context ends.
    ``classes`` are servers that exist only in this process.
    """
    if serve if serve is not None else bool(read_instances(config)):
        with crashes_explained("what was saved before is intact; correct the cause and start again"):
            async with host_gym(config, classes=classes) as gym, _watched(gym, on_crash):
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
    except ServerCrashedError as crash:
        raise UnfinishedRunError(
            f"{crash}\n(it could not be started again, {FAILED_STARTS} times in a row)",
            hint="all servers were stopped; correct the cause and continue with +resume_from_cache=true",
        ) from None
    finally:
        watching.cancel()
        await asyncio.wait([watching])
