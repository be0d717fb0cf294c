"""Front door: aggregate metrics, pass@k and reward profiles, under the names that environments import."""

from pydantic import Field

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.metrics.aggregate import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.metrics.aggregate import group_by_task as _group_by_task
from nemo_gym.metrics.pass_majority import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
from nemo_gym.metrics.profiler import RewardProfiler

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
    output_jsonl_fpath: str = Field(description="File to write: the tasks, each with what is known of its rewards")
    pass_threshold: float | None = Field(default=None, description="Reward from which on a rollout passes")


class RewardProfileConfig(BaseNeMoGymCLIConfig):
    """Profile the rewards of a run per task and per agent, beside what was planned."""

    materialized_inputs_jsonl_fpath: str = Field(description="The plan of the run: *_materialized_inputs.jsonl")
    rollouts_jsonl_fpath: str = Field(description="The rollouts that were collected")
    allow_partial_rollouts: bool = Field(default=False, description="Profile what there is, although rollouts miss")
