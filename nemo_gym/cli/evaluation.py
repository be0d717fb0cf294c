"""The commands that compute numbers from saved rollouts.

``ng_aggregate_rollouts``  the metrics of all rollouts of several files, each counted once. The Gym that knows what the
                           metrics mean is hosted here if the configuration describes it, else a running one is asked;
                           if there is neither, the default metrics are computed, and that is said.
``ng_compare``             two runs over the same tasks, and which of them is better.
``ng_reward_profile``      how the rewards of a run are distributed over its tasks. With the plan of a run it writes a
                           profile per task and agent; with a task file it writes the tasks again, each with what is
                           known of its rewards. Either way it says how hard the tasks are.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from pydantic import BaseModel, Field

from nemo_gym.cli import console
from nemo_gym.cli.collection import SERVE, show_metrics
from nemo_gym.cli.command import Exit, UsageError, path_overrides
from nemo_gym.cli.gyms import reach_gym, run_async
from nemo_gym.cli.parameters import build, read_configuration, read_parameters
from nemo_gym.config.instances import read_instances
from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.export.trackers import tracking
from nemo_gym.global_config import get_wandb_run
from nemo_gym.io.json import to_json
from nemo_gym.metrics.compare import PairBy, Run, read_contents
from nemo_gym.metrics.compare import compare as compare_tables
from nemo_gym.metrics.coverage import coverage
from nemo_gym.metrics.difficulty import solve_rates, write_difficulty
from nemo_gym.metrics.fields import PASS_THRESHOLD, REWARD
from nemo_gym.metrics.profile import ProfileReport, profile_files
from nemo_gym.metrics.report import comparison_text, details_path, solve_rate_table
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.metrics.task_profile import profile_tasks
from nemo_gym.rollout_aggregation import Aggregation, RolloutAggregationConfig, RolloutAggregationHelper
from nemo_gym.rollouts.run_metrics import PlannedKeys
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.servers.http.session import close_http_client


class AggregateRolloutsConfig(RolloutAggregationConfig):
    """Parameters of ``ng_aggregate_rollouts``."""

    strict: bool = Field(default=False, description="Refuse lines that can't be read instead of leaving them out.")
    serve: bool | None = Field(default=None, description=SERVE)


def aggregate_rollouts(overrides: Sequence[str]) -> int:
    """Merge rollout files and show the metrics of all of them together."""
    config = read_configuration(AggregateRolloutsConfig, path_overrides(overrides, "input_glob", as_list=False))
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


class CompareConfig(BaseModel):
    """Parameters of ``ng_compare``."""

    a: str = Field(description="Rollouts of the first run.")
    b: str = Field(description="Rollouts of the second run.")
    field: str = Field(default=REWARD, description="The metric to compare.")
    pass_threshold: float = Field(
        default=PASS_THRESHOLD, description="A rollout solves its task if its value is at least this."
    )
    pair_by: PairBy = Field(
        default="content",
        description="Which tasks belong together: those that ask the same, or `index` for those with the same number "
        "(for runs with different prompts for the same tasks).",
    )
    json_: bool = Field(default=False, alias="json", description="Print a JSON object instead of text.")


def compare(overrides: Sequence[str]) -> int:
    """Pair the tasks of two runs and say by how much they differ."""
    config = read_parameters(CompareConfig, overrides)
    by_content = config.pair_by == "content"
    a, b = (_read(name, Path(path), by_content=by_content) for name, path in (("a", config.a), ("b", config.b)))
    found = compare_tables(a, b, field=config.field, threshold=config.pass_threshold)
    console.emit(json.dumps(json.loads(to_json(found.as_dict())), indent=4) if config.json_ else comparison_text(found))
    if by_content and not found.tasks:
        console.note("+pair_by=index compares tasks with the same number instead")
    return Exit.OK


def _read(name: str, path: Path, *, by_content: bool) -> Run:
    if not path.is_file():
        raise ConfigPathNotFoundError(f"{path}: no such file", hint=f"correct +{name}=<rollout file>")
    table = Shards([path], strict=False).table()
    planned = PlannedKeys.of([path])
    known = (
        coverage(planned.plan.keys(), table.key_columns(), planned.failures) if planned else f"{len(table)} rollouts"
    )
    console.note(f"{name}: {path}, {known}")
    return Run(table, read_contents(path) if by_content else None)


class ProfileConfig(BaseModel):
    """Parameters of ``ng_reward_profile``."""

    rollouts_jsonl_fpath: str = Field(description="The rollouts that were collected.")
    materialized_inputs_jsonl_fpath: str | None = Field(
        default=None, description="The plan of the run: *_materialized_inputs.jsonl."
    )
    allow_partial_rollouts: bool = Field(
        default=False, description="Profile what there is, although rollouts are missing."
    )
    pass_threshold: float | None = Field(
        default=None, description="A rollout solves its task if its reward is at least this; 1 unless given."
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
        console.emit(profile_as_text(report))
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


def profile_as_text(report: ProfileReport) -> str:
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
    threshold = PASS_THRESHOLD if pass_threshold is None else pass_threshold
    rates = solve_rates(table, threshold)
    files = write_difficulty(base, rates, threshold=threshold)
    return "\n".join(
        [
            f"Difficulty of each task: {files.tasks}",
            f"Chart: {files.chart}",
            f"Tasks by how often they were solved (reward of at least {threshold:g}):",
            solve_rate_table(rates),
            f"Sometimes solved: {len(rates.mixed())}",
        ]
    )
