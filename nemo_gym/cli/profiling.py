"""``ng_reward_profile``: how the rewards of a run are distributed over its tasks.

It takes two sets of parameters. With the plan of a run it writes a profile per task and agent; with a task file it
writes the tasks again, each with what is known of its rewards. Either way it says how hard the tasks are.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit, UsageError
from nemo_gym.cli.settings import read_parameters
from nemo_gym.metrics.difficulty import SOLVED, solve_rates
from nemo_gym.metrics.difficulty_files import write_difficulty
from nemo_gym.metrics.profile_files import ProfileReport, profile_files
from nemo_gym.metrics.render import solve_rate_table
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.metrics.task_profile import profile_tasks


class ProfileConfig(BaseModel):
    """Parameters of ``ng_reward_profile``."""

    rollouts_jsonl_fpath: str = Field(description="The rollouts that were collected.")
    materialized_inputs_jsonl_fpath: str | None = Field(
        default=None, description="The plan of the run: *_materialized_inputs.jsonl."
    )
    allow_partial_rollouts: bool = Field(default=False, description="Profile what there is, although rollouts miss.")
    pass_threshold: float | None = Field(
        default=None, description="Reward from which on a rollout solves its task; 1 unless given."
    )
    input_jsonl_fpath: str | None = Field(default=None, description="In place of the plan: the task file …")
    output_jsonl_fpath: str | None = Field(
        default=None, description="… and the file for the tasks, each with the average of its rewards."
    )


def reward_profile(overrides: Sequence[str]) -> int:
    """Profile the rewards of a run and say how much of its plan is in the profile."""
    config = read_parameters(ProfileConfig, overrides)
    plan, tasks, output = config.materialized_inputs_jsonl_fpath, config.input_jsonl_fpath, config.output_jsonl_fpath
    rollouts = Path(config.rollouts_jsonl_fpath)
    if plan and not (tasks or output):
        report = profile_files(Path(plan), rollouts, allow_partial=config.allow_partial_rollouts)
        console.emit(as_text(report))
        console.emit(_difficulty(report.table, rollouts, config.pass_threshold))
        return Exit.OK
    if tasks and output and not plan:
        profile = profile_tasks(Path(tasks), rollouts, Path(output), pass_threshold=config.pass_threshold)
        console.emit(f"Tasks with rewards: {profile.tasks}\nProfile of each task: {output}")
        console.emit(_difficulty(profile.table, Path(output), config.pass_threshold))
        return Exit.OK
    raise UsageError(
        "what the rollouts were collected for must be given, in one of two ways",
        hint="add +materialized_inputs_jsonl_fpath=<plan>, or +input_jsonl_fpath=<tasks> +output_jsonl_fpath=<file>",
    )


def as_text(report: ProfileReport) -> str:
    """Coverage first: statistics of the rollouts that survived mislead without it."""
    summary = report.summary
    done, expected = summary["completed_rollout_rows"], summary["expected_rollout_rows"]
    complete, partial, missing = (summary[f"{kind}_input_rows"] for kind in ("complete", "partial", "missing"))
    return "\n".join(
        [
            f"Rollouts: {done} of {expected} ({summary['reward_profile_completion_pct']:.2f}%)",
            f"Tasks: {summary['total_input_rows']} ({complete} complete, {partial} partial, {missing} missing)",
            f"Profile of each task: {report.files.groups}",
            f"Metrics of each agent: {report.files.agents}",
        ]
    )


def _difficulty(table: RolloutTable, base: Path, pass_threshold: float | None) -> str:
    """Write how hard the tasks are, and show it."""
    threshold = SOLVED if pass_threshold is None else pass_threshold
    rates = solve_rates(table, threshold)
    files = write_difficulty(base, rates, threshold=threshold)
    return "\n".join(
        [
            f"Difficulty of each task: {files.tasks}",
            f"Picture: {files.picture}",
            f"Tasks by how often they were solved (reward of at least {threshold:g}):",
            solve_rate_table(rates),
            f"Sometimes solved: {len(rates.mixed())}",
        ]
    )
