"""``ng_collect_rollouts``: reach a Gym, let the library do the work, say how it went.

Ctrl-C before the first rollout ends the command; during the collection it stops new rollouts and saves those that run.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli import console
from nemo_gym.cli.gyms import reach_gym
from nemo_gym.cli.loop import run_async
from nemo_gym.cli.numbers import show_metrics
from nemo_gym.cli.outcome import UsageError
from nemo_gym.cli.prompts import check_prompt
from nemo_gym.cli.settings import build, read_configuration
from nemo_gym.config.instances import read_instances
from nemo_gym.executors.processes import worker_count, worker_pool
from nemo_gym.export.trackers import tracking
from nemo_gym.global_config import get_wandb_run
from nemo_gym.metrics.details import details_path
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.stopping import StopSwitch, on_signals
from nemo_gym.rollouts.summary import Summary

SERVE = (
    "Whether to host the servers in this process (true) or to use those of a running ng_run (false). Unless given, they"
    " are hosted if the configuration describes any."
)


class CollectRolloutsConfig(RolloutCollectionConfig):
    """Parameters of ``ng_collect_rollouts``."""

    serve: bool | None = Field(default=None, description=SERVE)


def collect_rollouts(overrides: Sequence[str]) -> int:
    """Collect rollouts, show their metrics, and tell by the exit code whether all of them are there.

    Whoever names a split instead of a task file wants it to be prepared first.
    """
    if any(re.match(r"\+*split=", override) for override in overrides):
        end_to_end: int = import_module("nemo_gym.cli.end_to_end").e2e_collect_rollouts(overrides)
        return end_to_end
    config = read_configuration(CollectRolloutsConfig, overrides)
    parameters = build(CollectRolloutsConfig, config)
    check_prompt(parameters.prompt_config)
    return report(run_async(collect(config, parameters)))


def report(summary: Summary) -> int:
    """Show the metrics of a collection and how it went; return the exit code."""
    show_metrics(summary.metrics)
    console.note(summary.text())
    if summary.metrics:
        console.note(f"details:  {details_path(summary.files.rollouts)}")
    return summary.exit_code


async def collect(config: DictConfig, parameters: CollectRolloutsConfig) -> Summary:
    """Collect in the Gym of this process or in one that runs elsewhere; tell the trackers."""
    stop = StopSwitch(drain_s=parameters.drain_timeout_s)
    async with (
        reach_gym(config, serve=parameters.serve, on_crash=stop.press) as client,
        _workers(config, parameters) as attempt,
    ):
        with on_signals(stop, console.note), tracking(get_wandb_run) as trackers:
            summary = await RolloutCollectionHelper().collect(parameters, client=client, attempt=attempt, stop=stop)
            trackers.log(summary.metrics, rollouts=uploaded(summary.files.rollouts, parameters))
            return summary


def uploaded(rollouts: Path, parameters: RolloutCollectionConfig) -> Path | None:
    """The rollouts that trackers get."""
    return rollouts if parameters.upload_rollouts_to_wandb else None


@asynccontextmanager
async def _workers(config: DictConfig, parameters: CollectRolloutsConfig) -> AsyncIterator[Attempt | None]:
    """The worker processes that are asked for; none means that rollouts run in this process."""
    number = worker_count(parameters.workers)
    if number == 1:
        yield None
        return
    if parameters.serve is False or not read_instances(config):
        raise UsageError(
            "worker processes host the servers themselves, so they need to know them",
            hint="give +config_paths=[…], or leave out +workers to use the servers of ng_run",
        )
    async with worker_pool(config, number, timeout_s=parameters.rollout_timeout_s) as pool:
        yield pool
