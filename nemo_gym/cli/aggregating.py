"""``ng_aggregate_rollouts``: the metrics of all rollouts of several files, each counted once.

The Gym that knows what the metrics mean is hosted here if the configuration describes it, else the running one is
asked; if there is neither, the default metrics are computed, and that is said.
"""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli import console
from nemo_gym.cli.collect import SERVE
from nemo_gym.cli.gyms import reach_gym
from nemo_gym.cli.loop import run_async
from nemo_gym.cli.numbers import show_metrics
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.settings import build, read_configuration
from nemo_gym.config.instances import read_instances
from nemo_gym.export.trackers import tracking
from nemo_gym.global_config import get_wandb_run
from nemo_gym.metrics.details import details_path
from nemo_gym.rollout_aggregation import Aggregation, RolloutAggregationConfig, RolloutAggregationHelper
from nemo_gym.servers.http import close_http_client


class AggregateRolloutsConfig(RolloutAggregationConfig):
    """Parameters of ``ng_aggregate_rollouts``."""

    strict: bool = Field(default=False, description="Refuse lines that can't be read instead of leaving them out.")
    serve: bool | None = Field(default=None, description=SERVE)


def aggregate_rollouts(overrides: Sequence[str]) -> int:
    """Merge rollout files and show the metrics of all of them together."""
    config = read_configuration(AggregateRolloutsConfig, overrides)
    parameters = build(AggregateRolloutsConfig, config)
    with tracking(get_wandb_run) as trackers:
        done = run_async(_aggregate(config, parameters))
        trackers.log(done.metrics)
    show_metrics(done.metrics)
    console.note(as_text(done, merged=parameters.merge_shards))
    return Exit.OK


def as_text(done: Aggregation, *, merged: bool) -> str:
    """What was counted, and where everything is."""
    left_out = f", {done.unreadable} unreadable lines left out" if done.unreadable else ""
    lines = [f"{done.rollouts} rollouts{left_out}"]
    if merged:
        lines.append(f"rollouts: {done.files.rollouts}")
    if done.metrics:
        lines += [f"metrics: {done.files.metrics}", f"details: {details_path(Path(done.files.rollouts))}"]
    else:
        lines.append("no metrics: no rollout names an agent that could compute them")
    return "\n".join(lines)


async def _aggregate(config: DictConfig, parameters: AggregateRolloutsConfig) -> Aggregation:
    helper = RolloutAggregationHelper()
    if parameters.serve is not None or read_instances(config):
        async with reach_gym(config, serve=parameters.serve) as client:
            return await helper.aggregate(parameters, client=client)
    try:
        return await helper.aggregate(parameters, find_client=True)
    finally:
        await close_http_client()
