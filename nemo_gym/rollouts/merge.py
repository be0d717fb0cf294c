"""Merges the rollout files of several runs and computes the metrics of all of them together."""

import logging
from collections.abc import Callable
from pathlib import Path

from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.rollouts.aggregate import ask_for_metrics, by_agent, write_metrics
from nemo_gym.rollouts.attempt import AgentClient
from nemo_gym.rollouts.store.files import RunFiles, replacing
from nemo_gym.rollouts.store.shards import Shards, expand_globs

logger = logging.getLogger(__name__)


def find_shards(patterns: str, output: Path) -> list[Path]:
    """The files that the patterns match. An earlier merge may match them too; it holds nothing that they do not."""
    paths = [path for path in map(Path, expand_globs(patterns)) if path.absolute() != output.absolute()]
    if not paths:
        raise ConfigPathNotFoundError(
            f"no file matches {patterns!r}", hint="correct +input_glob=… (or --input-glob …); patterns need quotes"
        )
    return paths


async def merge_shards(
    paths: list[Path], output: Path, connect: Callable[[], AgentClient], *, keep_merged: bool = True
) -> Path | None:
    """Merge, compute, save; return the path of the metrics, or None if there are none."""
    logger.info("Shards:\n%s", "\n".join(f"  {path}" for path in paths))
    shards, files = Shards(paths), RunFiles.of(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    if keep_merged:
        with replacing(output) as file:
            file.writelines(line + b"\n" for line in shards.lines())
    groups = by_agent(shards.records())
    metrics = await ask_for_metrics(groups, connect()) if groups else []
    if not metrics:
        return None
    write_metrics(files.metrics, metrics)
    return files.metrics
