"""Front door: aggregate metrics, pass@k and reward profiles, under the names that environments import.

Where the interface says data frame, a mapping from fields to values or a list of records will do; a real data frame is
such a mapping, but is not needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.metrics.aggregate import AggregateMetricsMixin, Entry, compute_aggregate_metrics, rollout_infos
from nemo_gym.metrics.aggregate import group_by_task as _group_by_task
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
from nemo_gym.metrics.profile import (
    Pair,
    Profile,
    ProfileFiles,
    align,
    completion_summary,
    keys_of,
    profile,
    write_profile,
)
from nemo_gym.metrics.statistics import STATISTICS, overall

Record = Mapping[str, Any]
Frame = Mapping[str, Iterable[Any]] | Sequence[Record]


class RewardProfiler:
    """Profiles results against the rows that were planned."""

    def align_rows_and_results(
        self,
        rows: Sequence[Record],
        results: Sequence[Record],
        allow_partial_rollouts: bool = False,  # noqa: FBT001, FBT002  # the interface's signature
    ) -> list[Pair]:
        """Pairs of row and result in the order of their keys."""
        return align(rows, results, allow_partial=allow_partial_rollouts)

    def profile_from_data(
        self,
        rows: Sequence[Record],
        results: Sequence[Record],
        allow_partial_rollouts: bool = False,  # noqa: FBT001, FBT002  # the interface's signature
    ) -> Profile:
        """The entries for each task and for each agent."""
        return profile(align(rows, results, allow_partial=allow_partial_rollouts), rows)

    def profile_completion_summary(self, rows: Sequence[Record], results: Sequence[Record]) -> dict[str, int | float]:
        """How much of the plan is done."""
        return completion_summary(keys_of(rows, "materialized input"), keys_of(results, "result"))

    def rollout_info_from_result(self, result: Record) -> Entry:
        builder = MetricsBuilder()
        builder.add(result)
        return rollout_infos(builder.table(), 0, 1)[0]

    def histogram(self, data: Iterable[Any], bins: int = 10) -> tuple[list[int], list[float]]:
        """Counts and bin edges; values that are not finite numbers are left out."""
        values = np.array([value for value in data if value is not None], dtype=np.float64)
        counts, edges = np.histogram(values[np.isfinite(values)], bins=bins)
        return counts.tolist(), edges.tolist()

    def calculate_metrics_single_df(self, frame: Frame) -> dict[str, float]:
        """Statistics such as ``mean/reward`` of every numeric field."""
        builder = MetricsBuilder()
        for number, record in enumerate(_records(frame)):
            builder.add({**record, "_ng_task_index": 0, "_ng_rollout_index": number})
        return overall(builder.table())

    def describe_dataframe(self, frame: Frame) -> dict[str, dict[str, float]]:
        """The same statistics, by statistic and then by field."""
        described: dict[str, dict[str, float]] = {statistic: {} for statistic in STATISTICS}
        for name, value in self.calculate_metrics_single_df(frame).items():
            statistic, _, field = name.partition("/")
            described[statistic][field] = value
        return described

    def prepare_for_serialization(self, metrics: Iterable[Record]) -> list[Entry]:
        """The entries without histograms, which are for charts only."""
        return [
            {name: value for name, value in entry.items() if not name.startswith("histogram/")} for entry in metrics
        ]

    def write_to_disk(self, groups: Sequence[Record], agents: Sequence[Record], base: Path) -> ProfileFiles:
        """Write both beside the rollouts; returns the two paths."""
        return write_profile(self.prepare_for_serialization(groups), self.prepare_for_serialization(agents), Path(base))


def _records(frame: Frame) -> Iterable[Record]:
    if isinstance(frame, Sequence):
        return frame
    names = list(frame)
    return (dict(zip(names, row, strict=True)) for row in zip(*(frame[name] for name in names), strict=True))


__all__ = [
    "AggregateMetricsMixin",
    "RewardProfileConfig",
    "RewardProfiler",
    "TaskRewardProfileConfig",
    "_group_by_task",
    "add_avg_sample_std_dev",
    "compute_aggregate_metrics",
    "compute_pass_majority_metrics",
    "compute_subset_metrics",
    "highest_k_metrics",
]


class TaskRewardProfileConfig(BaseNeMoGymCLIConfig):
    """The older form of a profile: each task with the average of its rewards."""

    input_jsonl_fpath: str = Field(description="The tasks")
    rollouts_jsonl_fpath: str = Field(description="The rollouts that were collected")
    output_jsonl_fpath: str = Field(description="File to write: the tasks, each with its reward statistics")
    pass_threshold: float | None = Field(default=None, description="Lowest reward with which a rollout passes")


class RewardProfileConfig(BaseNeMoGymCLIConfig):
    """Profile the rewards of a run for each task and each agent, compared with the plan."""

    materialized_inputs_jsonl_fpath: str = Field(description="The plan of the run: *_materialized_inputs.jsonl")
    rollouts_jsonl_fpath: str = Field(description="The rollouts that were collected")
    allow_partial_rollouts: bool = Field(default=False, description="Profile even if rollouts are missing")
