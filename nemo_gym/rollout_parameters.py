"""Front door: the parameters of a collection of rollouts. ``rollout_collection`` offers these names too."""

import os
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.options import DEFAULT_WINDOW, CollectionOptions
from nemo_gym.rollouts.store.history import DEFAULT_MAX_ATTEMPTS, parse_max_attempts
from nemo_gym.rollouts.tasks import Shard
from nemo_gym.skills import SkillsConfig
from nemo_gym.steps.steps_file import read_steps
from nemo_gym.steps.trace_context import run_identity

MAX_ATTEMPTS_VARIABLE: Final = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
DEFAULT_MAX_ROLLOUT_ATTEMPTS: Final = DEFAULT_MAX_ATTEMPTS
OUTPUT_DESCRIPTION: Final = "File for the rollouts; the other files of the run go beside it."


def max_rollout_attempts() -> int:
    """How often a rollout is tried, over all runs, before it is abandoned."""
    return parse_max_attempts(os.environ.get(MAX_ATTEMPTS_VARIABLE, ""), DEFAULT_MAX_ROLLOUT_ATTEMPTS)


class SharedRolloutCollectionConfig(CollectionOptions, BaseNeMoGymCLIConfig):
    """The options that all ways of collecting rollouts share."""

    output_jsonl_fpath: str = Field(description=OUTPUT_DESCRIPTION)
    num_samples_in_parallel: int | Literal["auto"] | None = Field(
        None,
        description=f"Maximum rollouts at once, over all workers; auto: adapt to the endpoint, up to {DEFAULT_WINDOW}; "
        f"null or 0: {DEFAULT_WINDOW}.",
    )
    responses_create_params: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the model request that override those of the rows."
    )
    upload_rollouts_to_wandb: bool = Field(True, description="Upload the rollouts if a W&B run is configured.")
    upload_rollouts: bool = Field(True, exclude=True, description="The same, under the name of newer releases.")
    disable_aggregation: bool = Field(
        False, description="Do not compute metrics; for shards that are aggregated later."
    )
    rollout_collection_driver: str | None = Field(
        None, description="module.path:function that replaces the built-in collection."
    )

    @property
    def output(self) -> Path:
        """The file for the rollouts: the one that was named, or this shard's part of it."""
        named = Path(self.output_jsonl_fpath)
        return Shard.parse(self.shard).output(named) if self.shard else named


class E2ERolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Prepare the configured datasets, host the servers, collect, aggregate, stop."""

    split: Literal["train", "validation", "benchmark", "example"] = Field(
        description="Which of the prepared files to run."
    )
    reuse_existing_data_preparation: bool = Field(False, description="Reuse a prepared file that already exists.")


class RolloutCollectionConfig(SharedRolloutCollectionConfig):
    """Run every task of a file through an agent and save the scored rollouts."""

    agent_name: str | None = Field(None, description="Agent for rows without an agent_ref.")
    input_jsonl_fpath: str = Field(description="File with one task per line.")
    limit: int | None = Field(None, description="Use only this many tasks, the first ones; null or 0: all.")
    num_repeats: int | dict[str, int] = Field(
        1, description="Rollouts per task, or a number for each agent: {agent: 4, _default: 1}."
    )
    num_repeats_add_seed: bool = Field(False, description="Give each rollout of a task a different seed.")
    resume_from_cache: bool = Field(False, description="Continue an earlier run with the same output.")
    prompt_config: str | None = Field(None, description="YAML file with a prompt template for the input.")
    skills: SkillsConfig | None = Field(None, description="Folder of skills for the agents: {path: …}.")

    @model_validator(mode="after")
    def _starts_over_or_continues(self) -> Self:
        if self.overwrite and self.resume_from_cache:
            raise ValueError("overwrite starts over and resume_from_cache continues an earlier run: choose one of them")
        return self

    @field_validator("num_repeats", mode="before")
    @classmethod
    def _none_is_once(cls, value: Any) -> Any:
        return 1 if value is None else value

    @field_validator("num_repeats")
    @classmethod
    def _at_least_once(cls, value: int | dict[str, int]) -> int | dict[str, int]:
        low = {name: times for name, times in value.items() if times < 1} if isinstance(value, dict) else value < 1
        if low:
            raise ValueError(f"num_repeats must be at least 1, got {low if isinstance(low, dict) else value}")
        return value

    @cached_property
    def trace_run(self) -> str:
        """The id of the run in its traces, which a resumed run keeps; empty if it sends none."""
        if self.otel_endpoint is None:
            return ""
        first = next(iter(read_steps(RunFiles.of(self.output).steps)), None) if self.resume_from_cache else None
        return run_identity(first) if first is not None else token_hex(8)

    @property
    def materialized_jsonl_fpath(self) -> Path:
        """The file that holds the plan."""
        return RunFiles.of(self.output).plan
