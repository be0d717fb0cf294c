"""Merges the rollout files of several runs and computes the metrics of all of them together."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.metrics.profile_files import ProfileFiles
from nemo_gym.rollouts.aggregate import AgentMetrics, aggregate_shards
from nemo_gym.rollouts.attempt import AgentClient
from nemo_gym.rollouts.store.files import RunFiles, replacing
from nemo_gym.rollouts.store.shard_files import expand_globs
from nemo_gym.rollouts.store.shards import Shards

logger = logging.getLogger(__name__)


def find_shards(patterns: str, output: Path) -> list[Path]:
    """The rollout files that the patterns match.

    What else they match is left out: an earlier merge, which holds nothing new, and files that lie beside rollouts.
    """
    found = [path for path in map(Path, expand_globs(patterns)) if path.absolute() != output.absolute()]
    beside = {other for path in found for other in _beside(path)}
    paths = [path for path in found if path not in beside]
    if not paths:
        raise ConfigPathNotFoundError(
            f"no file matches {patterns!r}", hint="correct +input_glob=… (or --input-glob …); patterns need quotes"
        )
    return paths


def _beside(rollouts: Path) -> tuple[Path, ...]:
    files = RunFiles.of(rollouts)
    return files.plan, files.failures, ProfileFiles.of(rollouts).groups


def write_merged(shards: Shards, output: Path) -> None:
    """Write all rollouts into one file, in the order of their keys."""
    with replacing(output) as file:
        file.writelines(line + b"\n" for line in shards.lines())


async def merge_shards(
    shards: Shards, output: Path, client: AgentClient | None, *, keep_merged: bool = True
) -> Sequence[AgentMetrics]:
    """Merge, compute, save. Without a client the metrics are the default ones."""
    logger.info("Shards:\n%s", "\n".join(f"  {path}" for path in shards.paths))
    output.parent.mkdir(parents=True, exist_ok=True)
    if keep_merged:
        await asyncio.to_thread(write_merged, shards, output)
    return await aggregate_shards(shards, output, client) if shards.agents else ()
