"""``ng_reward_profile``: how the rewards of a run are distributed over its tasks."""

from collections.abc import Sequence
from pathlib import Path

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.settings import read_parameters
from nemo_gym.metrics.profile_files import ProfileReport, profile_files
from nemo_gym.reward_profile import RewardProfileConfig


def reward_profile(overrides: Sequence[str]) -> int:
    """Profile the rewards of a run and say how much of its plan is in the profile."""
    config = read_parameters(RewardProfileConfig, overrides)
    report = profile_files(
        Path(config.materialized_inputs_jsonl_fpath),
        Path(config.rollouts_jsonl_fpath),
        allow_partial=config.allow_partial_rollouts,
    )
    console.emit(as_text(report))
    return Exit.OK


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
