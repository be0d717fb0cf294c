"""Front door: the metrics of rollouts that several runs collected. ``rollout_collection`` offers these names too."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig, BaseServerConfig
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.agents import AgentClient
from nemo_gym.rollouts.store.saved_lines import OnConflict
from nemo_gym.rollouts.tally import AgentMetrics
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.server_client import GymClient, HeadServerUnreachableError

logger = logging.getLogger(__name__)


class RolloutAggregationConfig(BaseNeMoGymCLIConfig):
    """Merge the rollout files of several runs and compute their metrics."""

    input_glob: str = Field(description="Rollout files: paths or patterns, separated by commas.")
    output_jsonl_fpath: str = Field(description="File for all rollouts together; the metrics go beside it.")
    merge_shards: bool = Field(True, description="Write that file; false: write only the metrics.")
    on_conflict: OnConflict = Field(
        OnConflict.ERROR,
        exclude=True,
        description="If two files have the same rollout with different content: refuse (error), take the first or the "
        "last, or count those of later files as further repeats of the task (repeat).",
    )
    strict: bool = Field(True, exclude=True, description="Fail on unreadable lines instead of skipping them.")


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The metrics, and the number of rollouts that they cover."""

    files: RunFiles
    metrics: Sequence[AgentMetrics]
    rollouts: int
    unreadable: int  # lines that were left out


class RolloutAggregationHelper(BaseModel):
    """Computes the metrics of rollouts that several runs collected."""

    async def run_from_config(
        self, config: RolloutAggregationConfig, *, client: AgentClient | None = None
    ) -> Path | None:
        """Merge the shards and have the agents compute the metrics; returns the path of the metrics, if any."""
        try:
            done = await self.aggregate(config, client=client, find_client=client is None)
        finally:
            if client is None:
                await close_http_client()
        return done.files.metrics if done.metrics else None

    async def aggregate(
        self, config: RolloutAggregationConfig, *, client: AgentClient | None = None, find_client: bool = False
    ) -> Aggregation:
        """Merge and compute. Without a client the default metrics are computed, unless ``find_client`` finds a Gym."""
        from nemo_gym.rollouts.run_metrics import find_shards, merge_shards
        from nemo_gym.rollouts.store.shards import Shards

        output = Path(config.output_jsonl_fpath)
        paths = find_shards(config.input_glob, output)
        shards = await asyncio.to_thread(Shards, paths, on_conflict=config.on_conflict, strict=config.strict)
        if find_client and client is None and shards.agents:
            client = find_gym()
        metrics = await merge_shards(shards, output, client, keep_merged=config.merge_shards)
        return Aggregation(RunFiles.of(output), metrics, len(shards), len(shards.unreadable))


def connect(head: BaseServerConfig | None = None) -> GymClient:
    """A client for the servers that run elsewhere, found through their head server."""
    from nemo_gym.server_utils import ServerClient  # imports FastAPI, which nothing else here needs

    return ServerClient.load_from_global_config(head)


def find_gym() -> GymClient | None:
    """A client for the Gym that is running, if one is."""
    try:
        return connect()
    except HeadServerUnreachableError:
        logger.warning(
            "No Gym is running and no configuration is given, so these are the default metrics, without those of the "
            "environment. To get these too, start it with ng_run or give +config_paths=[…]"
        )
        return None
