"""The commands that compute numbers from saved rollouts.

``ng_aggregate_rollouts``  computes metrics over several files, counting each rollout once. The Gym that defines the
                           metrics is hosted here if the configuration describes it; otherwise a running one is used.
                           If there is neither, the default metrics are computed, with a note that says so.
``ng_compare``             compares two runs over the same tasks.
``ng_profile``             says where the time of a run went, and what limited it.
``ng_reward_profile``      shows how the rewards of a run are distributed over its tasks. With the plan of a run it
                           writes a profile for each task and agent; with a task file it writes the tasks again, each
                           with its reward statistics. Either way it shows how difficult the tasks are.
"""

import json
from dataclasses import asdict
from pathlib import Path

import msgspec
from omegaconf import DictConfig
from pydantic import BaseModel, Field

from nemo_gym.api.gyms import SERVE, reach_gym
from nemo_gym.audit.rollout_audit import audit_rollouts
from nemo_gym.cli import console
from nemo_gym.cli.collection import show_metrics
from nemo_gym.cli.command import Arguments, is_path, with_files
from nemo_gym.cli.parameters import build, read_configuration, read_parameters
from nemo_gym.cli.signals import run_async
from nemo_gym.config.instances import read_instances
from nemo_gym.errors import ConfigPathNotFoundError, ExitCode, UsageError, counted
from nemo_gym.global_config import get_global_config_dict
from nemo_gym.io.files import RunFiles, find_files, split_patterns
from nemo_gym.io.json import to_json
from nemo_gym.metrics.compare import ComparedRun, PairBy, compare_runs, read_contents
from nemo_gym.metrics.difficulty import solve_rates, write_difficulty
from nemo_gym.metrics.profile import ProfileReport, profile_files, profile_tasks
from nemo_gym.metrics.report import coverage, solve_rate_table
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.rollout_aggregation import Aggregation, RolloutAggregationConfig, RolloutAggregationHelper
from nemo_gym.rollouts.options import TelemetryOptions
from nemo_gym.rollouts.run_metrics import PlannedKeys
from nemo_gym.rollouts.store.output import check_derived
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.schemas.record import PASS_THRESHOLD, REWARD
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.steps.screen import RunProfile, profile_of, screen_lines
from nemo_gym.telemetry.listeners import import_extra, telemetry
from nemo_gym.telemetry.trackers import TrackedRun
from nemo_gym.telemetry.wandb_tracker import default_trackers


class AggregateRolloutsConfig(RolloutAggregationConfig):
    strict: bool = Field(default=False, description="Fail on unreadable lines instead of skipping them.")
    serve: bool | None = Field(default=None, description=SERVE)


def aggregate_rollouts(arguments: Arguments) -> int:
    """Merge rollout files and show the metrics of all of them together."""
    config = read_configuration(AggregateRolloutsConfig, with_files(arguments, "input_glob", as_list=False))
    parameters = build(AggregateRolloutsConfig, config)
    done = run_async(_tracked_aggregation(config, parameters))
    show_metrics(done.metrics)
    console.note(aggregation_text(done, merged=parameters.merge_shards))
    return ExitCode.OK


def aggregation_text(done: Aggregation, *, merged: bool) -> str:
    """What was counted, and where the files are."""
    left_out = f", {counted(done.unreadable, 'unreadable line')} left out" if done.unreadable else ""
    lines = [f"{counted(done.rollouts, 'rollout')}{left_out}"]
    if merged:
        lines.append(f"rollouts: {done.files.rollouts}")
    if done.metrics:
        lines += [f"metrics: {done.files.metrics}", f"details: {done.files.details}"]
    else:
        lines.append("no metrics: the rollouts do not name an agent that could compute them")
    return "\n".join(lines)


async def _tracked_aggregation(config: DictConfig, parameters: AggregateRolloutsConfig) -> Aggregation:
    run = TrackedRun(
        files=RunFiles.of(Path(parameters.output_jsonl_fpath)),
        options=TelemetryOptions(trackers=default_trackers(get_global_config_dict)),
        configuration=get_global_config_dict,
    )
    async with telemetry(run) as listeners:
        done = await _aggregate(config, parameters)
        for listener in listeners:
            listener.metrics_computed(done.metrics)
    return done


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
    a: str = Field(description="Rollouts of the first run.")
    b: str = Field(description="Rollouts of the second run.")
    field: str = Field(default=REWARD, description="The metric to compare.")
    pass_threshold: float = Field(
        default=PASS_THRESHOLD, description="A rollout solves its task if its value is at least this."
    )
    pair_by: PairBy = Field(
        default="content",
        description="How tasks are paired: by identical content, or with `index` by number (for runs that use different"
        " prompts for the same tasks).",
    )
    json_: bool = Field(default=False, alias="json", description="Print a JSON object instead of text.")


def show_comparison(arguments: Arguments) -> int:
    """Pair the tasks of two runs and show by how much they differ."""
    config = read_parameters(CompareConfig, _both_runs(arguments))
    by_content = config.pair_by == "content"
    a, b = (_read(name, Path(path), by_content=by_content) for name, path in (("a", config.a), ("b", config.b)))
    found = compare_runs(a, b, field=config.field, threshold=config.pass_threshold)
    console.emit(json.dumps(json.loads(to_json(found.as_dict())), indent=4) if config.json_ else found.text())
    if by_content and not found.tasks:
        console.note("+pair_by=index compares tasks with the same number instead")
    return ExitCode.OK


def _both_runs(arguments: Arguments) -> Arguments:
    """Read two bare files as the first and the second run."""
    files, names = [word for word in arguments.overrides if is_path(word)], ("a", "b")
    if len(files) > len(names):
        raise UsageError(f"{len(files)} files are given, but two runs are compared", hint="name two of them")
    return arguments.with_pairs(dict(zip(names, files, strict=False)), without=files)


def _read(name: str, path: Path, *, by_content: bool) -> ComparedRun:
    if not path.is_file():
        raise ConfigPathNotFoundError(f"{path}: no such file", hint=f"correct +{name}=<rollout file>")
    table = Shards([path], strict=False).table()
    planned = PlannedKeys.of([path])
    known = (
        coverage(planned.keys(), table.key_columns(), planned.failures, table.masked)
        if planned
        else counted(len(table), "rollout")
    )
    console.note(f"{name}: {path}, {known}")
    return ComparedRun(table, read_contents(path) if by_content else None)


class ProfileConfig(BaseModel):
    rollouts_jsonl_fpath: str = Field(description="The rollouts that were collected.")
    materialized_inputs_jsonl_fpath: str | None = Field(
        default=None, description="The plan of the run; by default *_materialized_inputs.jsonl beside the rollouts."
    )
    allow_partial_rollouts: bool = Field(
        default=False, description="Profile the rollouts that exist even if some are missing."
    )
    pass_threshold: float | None = Field(
        default=None, description="A rollout solves its task if its reward is at least this; by default 1."
    )
    input_jsonl_fpath: str | None = Field(default=None, description="Instead of the plan: the task file.")
    output_jsonl_fpath: str | None = Field(
        default=None, description="With input_jsonl_fpath: where to write the tasks with their average rewards."
    )


def reward_profile(arguments: Arguments) -> int:
    """Profile the rewards of a run and show how much of its plan the profile covers."""
    config = read_parameters(ProfileConfig, with_files(arguments, "rollouts_jsonl_fpath", as_list=False))
    plan, tasks, output = config.materialized_inputs_jsonl_fpath, config.input_jsonl_fpath, config.output_jsonl_fpath
    rollouts = Path(config.rollouts_jsonl_fpath)
    if not (plan or tasks or output) and RunFiles.of(rollouts).plan.is_file():
        plan = str(RunFiles.of(rollouts).plan)
    if plan and not (tasks or output):
        report = profile_files(Path(plan), rollouts, allow_partial=config.allow_partial_rollouts)
        console.emit(profile_as_text(report))
        console.emit(_difficulty(report.table, rollouts, config.pass_threshold))
        return ExitCode.OK
    if tasks and output and not plan:
        check_derived(Path(output), [Path(tasks), rollouts])
        profile = profile_tasks(Path(tasks), rollouts, Path(output), pass_threshold=config.pass_threshold)
        console.emit(f"Tasks with rewards: {profile.tasks}\nProfile of each task: {output}")
        console.emit(_difficulty(profile.table, Path(output), config.pass_threshold))
        return ExitCode.OK
    raise UsageError(
        "the tasks of the rollouts are missing; give either the plan or the task file",
        hint="add +materialized_inputs_jsonl_fpath=<plan>, or +input_jsonl_fpath=<tasks> +output_jsonl_fpath=<file>",
    )


def profile_as_text(report: ProfileReport) -> str:
    """Coverage comes first, because statistics of the completed rollouts alone would mislead."""
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
    """Write the difficulty of the tasks to files and return it as text."""
    threshold = PASS_THRESHOLD if pass_threshold is None else pass_threshold
    rates = solve_rates(table, threshold)
    files = write_difficulty(base, rates, threshold=threshold)
    return "\n".join(
        [
            f"Difficulty of each task: {files.difficulty}",
            f"Chart: {files.solve_rates}",
            f"Tasks by how often they were solved (reward of at least {threshold:g}):",
            solve_rate_table(rates),
            f"Sometimes solved: {len(rates.mixed())}",
        ]
    )


class AuditConfig(BaseModel):
    input: str = Field(description="Rollout files: paths or patterns, separated by commas.")
    json_: bool = Field(default=False, alias="json", description="Print a JSON object instead of text.")


def audit(arguments: Arguments) -> int:
    """Look for rewards that were not earned, and write what was found beside each file."""
    config = read_parameters(AuditConfig, with_files(arguments, "input", as_list=False))
    paths = find_files(split_patterns(config.input))
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ConfigPathNotFoundError(
            f"{missing[0] if missing else config.input}: no such file", hint="correct +input=<rollout files>"
        )
    found = audit_rollouts(paths)
    console.emit_report(found, as_json=config.json_)
    return found.exit_code


class TimeProfileConfig(BaseModel):
    rollouts: str = Field(description="The rollouts of a run; its steps are in a file beside them.")
    json_: bool = Field(default=False, alias="json", description="Print a JSON object instead of text.")


def time_profile(arguments: Arguments) -> int:
    """Read the steps of a run and say what limited it."""
    config = read_parameters(TimeProfileConfig, with_files(arguments, "rollouts", as_list=False))
    files = RunFiles.of(Path(config.rollouts))
    if not files.rollouts.is_file() and not files.steps.is_file():
        raise ConfigPathNotFoundError(f"{files.rollouts}: no such file", hint="correct +rollouts=<rollout file>")
    found = profile_of(files, check=True)
    if config.json_:
        console.emit(to_json(_plain(found), indent=True).decode())
    else:
        console.emit("\n".join(screen_lines(found, files)))
    return ExitCode.OK


def _plain(found: RunProfile) -> dict[str, object]:
    return {
        "finding": asdict(found.finding),
        "shares": found.summary.shares(),
        "summary": asdict(found.summary),
        "session": msgspec.to_builtins(found.facts),
    }


class ExportTracesConfig(BaseModel):
    rollouts: str = Field(description="The rollouts of a run; its steps are in a file beside them.")
    endpoint: str = Field(description="Where to send the spans, in OTLP over HTTP: http://localhost:4318/v1/traces.")


def export_traces(arguments: Arguments) -> int:
    """Make spans of the steps of a run and send them."""
    config = read_parameters(ExportTracesConfig, with_files(arguments, "rollouts", as_list=False))
    files = RunFiles.of(Path(config.rollouts))
    if not files.steps.is_file():
        raise ConfigPathNotFoundError(f"{files.steps}: no such file", hint="collect with +steps=true to have steps")
    sender = import_extra("nemo_gym.telemetry.span_sender", "ng_export_traces", extra="otel")
    sent = sender.send_all(config.endpoint, files)
    console.note(f"{counted(sent.attempts, 'attempt')} sent as {counted(sent.spans, 'span')}")
    return ExitCode.OK
