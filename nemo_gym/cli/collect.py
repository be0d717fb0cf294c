"""``ng_collect_rollouts`` and ``ng_aggregate_rollouts``: reach a Gym, let the library do the work, say how it went.

Ctrl-C before the first rollout ends the command; during the collection it stops new rollouts and saves those that run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli import console
from nemo_gym.cli.gyms import reach_gym
from nemo_gym.cli.loop import run_async
from nemo_gym.cli.outcome import Exit, UsageError
from nemo_gym.cli.prompts import check_prompt
from nemo_gym.cli.settings import build, read_configuration
from nemo_gym.rollout_collection import (
    RolloutAggregationConfig,
    RolloutAggregationHelper,
    RolloutCollectionConfig,
    RolloutCollectionHelper,
)
from nemo_gym.rollouts.stopping import StopSwitch, on_signals
from nemo_gym.rollouts.summary import Summary

_SERVE = (
    "Whether to host the servers in this process (true) or to use those of a running ng_run (false). Unless given, they"
    " are hosted if the configuration describes any."
)


class CollectRolloutsConfig(RolloutCollectionConfig):
    """Parameters of ``ng_collect_rollouts``."""

    serve: bool | None = Field(default=None, description=_SERVE)


class AggregateRolloutsConfig(RolloutAggregationConfig):
    """Parameters of ``ng_aggregate_rollouts``."""

    serve: bool | None = Field(default=None, description=_SERVE)


def collect_rollouts(overrides: Sequence[str]) -> int:
    """Collect rollouts, show their metrics, and tell by the exit code whether all of them are there."""
    config = read_configuration(CollectRolloutsConfig, overrides)
    parameters = build(CollectRolloutsConfig, config)
    if parameters.workers not in {None, 1}:
        raise UsageError("rollouts are collected in one process only", hint="leave out +workers")
    check_prompt(parameters.prompt_config)
    summary = run_async(_collect(config, parameters))
    show_metrics(agent.entry() for agent in summary.metrics)
    console.note(summary.text())
    return summary.exit_code


def aggregate_rollouts(overrides: Sequence[str]) -> int:
    """Merge rollout files and show the metrics of all of them together."""
    config = read_configuration(AggregateRolloutsConfig, overrides)
    path = run_async(_aggregate(config, build(AggregateRolloutsConfig, config)))
    if path is None:
        console.note("no metrics: no rollout names an agent that could compute them")
        return Exit.OK
    show_metrics(json.loads(path.read_bytes()))
    console.note(f"metrics: {path}")
    return Exit.OK


def show_metrics(entries: Iterable[Mapping[str, Any]]) -> None:
    """Print the key metrics of each agent, from entries as they stand in the metrics file."""
    for entry in entries:
        console.emit(f"Key metrics for {entry['agent_ref']['name']}:")
        console.emit(json.dumps(entry["key_metrics"], indent=4))


async def _collect(config: DictConfig, parameters: CollectRolloutsConfig) -> Summary:
    stop = StopSwitch(drain_s=parameters.drain_timeout_s)
    async with reach_gym(config, serve=parameters.serve, on_crash=stop.press) as client:
        with on_signals(stop, console.note):
            return await RolloutCollectionHelper().collect(parameters, client=client, stop=stop)


async def _aggregate(config: DictConfig, parameters: AggregateRolloutsConfig) -> Path | None:
    async with reach_gym(config, serve=parameters.serve) as client:
        return await RolloutAggregationHelper().run_from_config(parameters, client=client)
