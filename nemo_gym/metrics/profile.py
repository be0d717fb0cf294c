"""Reward profiles: what was planned beside what came back, for each task and each agent.

A plan says which rollouts were owed; results are matched to it by key. A result that was not planned is always an
error. A missing one is an error unless partial profiles are allowed: a mean over survivors misleads, so a gap has to be
accepted explicitly.

From files, the rollouts are read once, as numbers; of the plan one row per task is kept, because the profile repeats
it. Both output files are replaced as a whole.

``profile_tasks`` writes the older form: each task with the average of its rewards, and how many passed a threshold.
There, tasks are matched by index: the one a row carries, else the number of the row among the distinct rows of the
file, which is how rollouts were numbered when they were planned.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import RunFiles, replacing
from nemo_gym.io.json import parse_line, to_json
from nemo_gym.metrics.aggregate import Entry, task_entries
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.statistics import describe, overall, passing
from nemo_gym.metrics.table import Column, RolloutTable
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, RolloutKey

_SHOWN: Final = 10
_INDICES: Final = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})

Record = Mapping[str, Any]


class ProfileError(ConfigError, ValueError):
    """Plan and results do not belong together."""


class Pair(NamedTuple):
    """A planned rollout and its result."""

    row: Record
    result: Record


class Profile(NamedTuple):
    """One entry per task and one per agent."""

    groups: list[Entry]
    agents: list[Entry]


def align(rows: Iterable[Record], results: Iterable[Record], *, allow_partial: bool = False) -> list[Pair]:
    """Match results to the plan, in the order of the keys."""
    planned = _by_key(rows, "materialized input")
    done = _by_key(results, "result")
    check_keys(planned.keys(), done.keys(), allow_partial=allow_partial)
    return [Pair(planned[key], done[key]) for key in sorted(done)]


def check_keys(planned: Iterable[RolloutKey], done: Iterable[RolloutKey], *, allow_partial: bool) -> None:
    """Raise if there are results that were not planned, or too few of them."""
    planned, done = set(planned), set(done)
    if extra := sorted(done - planned):
        raise ProfileError(
            f"{len(extra)} results have no materialized input: {_shown(extra)}",
            hint="profile the rollouts with the materialized inputs of the same run",
        )
    if not allow_partial and (missing := sorted(planned - done)):
        raise ProfileError(
            f"{len(missing)} materialized inputs have no result: {_shown(missing)}",
            hint="collect the rest with +resume_from_cache=true, or profile what there is with "
            "+allow_partial_rollouts=true",
        )


def profile(pairs: Sequence[Pair], rows: Iterable[Record]) -> Profile:
    """Statistics per task, with the planned row as sample, and per agent."""
    builder = MetricsBuilder()
    for row, result in pairs:
        builder.add({**result, AGENT_REF_KEY_NAME: row.get(AGENT_REF_KEY_NAME)})
    samples: dict[int, Entry] = {}
    for row, _ in pairs:
        samples.setdefault(key_of(row, "materialized input").task, sample_of(row))
    expected = Counter(key_of(row, "materialized input").task for row in rows)
    groups = task_entries(builder.table(), sample_of=samples.__getitem__, expected=expected)
    return Profile(list(groups), agent_entries(builder))


def agent_entries(builder: MetricsBuilder) -> list[Entry]:
    """The statistics of every agent, sorted by name."""
    return [agent_entry(agent, builder.table_of(agent)) for agent in builder.agents]


def agent_entry(agent: str, table: RolloutTable) -> Entry:
    """The statistics of one agent."""
    return {**overall(table), AGENT_REF_KEY_NAME: {"name": agent}}


def completion_summary(planned: Iterable[RolloutKey], done: Iterable[RolloutKey]) -> dict[str, int | float]:
    """How much of the plan is done, in rollouts and in tasks."""
    planned, done = set(planned), set(done)
    owed = Counter(key.task for key in planned)
    have = Counter(key.task for key in planned & done)
    complete = sum(have[task] == count for task, count in owed.items())
    missing = sum(have[task] == 0 for task in owed)
    return {
        "expected_rollout_rows": len(planned),
        "completed_rollout_rows": len(planned & done),
        "missing_rollout_rows": len(planned - done),
        "extra_rollout_rows": len(done - planned),
        "reward_profile_completion_pct": 100.0 * len(planned & done) / len(planned) if planned else 100.0,
        "total_input_rows": len(owed),
        "complete_input_rows": complete,
        "partial_input_rows": len(owed) - complete - missing,
        "missing_input_rows": missing,
    }


def key_of(record: Record, kind: str) -> RolloutKey:
    """The key of a planned row or result; an error if it has none."""
    if key := RolloutKey.of(record):
        return key
    found = record.get(TASK_INDEX_KEY_NAME), record.get(ROLLOUT_INDEX_KEY_NAME)
    raise ProfileError(f"a {kind} has no {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME}: {found}")


def keys_of(records: Iterable[Record], kind: str) -> Iterator[RolloutKey]:
    """The keys of planned rows or results."""
    return (key_of(record, kind) for record in records)


def sample_of(row: Record) -> Entry:
    """The planned row without its indices."""
    return {name: value for name, value in row.items() if name not in _INDICES}


def _by_key(records: Iterable[Record], kind: str) -> dict[RolloutKey, Record]:
    by_key: dict[RolloutKey, Record] = {}
    for record in records:
        key = key_of(record, kind)
        if key in by_key:
            raise ProfileError(f"two {kind} rows have the same key {tuple(key)}")
        by_key[key] = record
    return by_key


def _shown(keys: Sequence[RolloutKey]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{[tuple(key) for key in keys[:_SHOWN]]}{more}"


class ProfileFiles(NamedTuple):
    """Where a profile is written."""

    groups: Path
    agents: Path

    @classmethod
    def of(cls, rollouts: Path) -> "ProfileFiles":
        """Next to the rollouts."""
        files = RunFiles.of(rollouts)
        return cls(files.profile, files.agent_metrics)


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What was profiled, and where the files are."""

    summary: dict[str, int | float]
    files: ProfileFiles
    table: RolloutTable


@dataclass(frozen=True, slots=True)
class _Plan:
    keys: set[RolloutKey]
    samples: dict[int, Entry]


def profile_files(plan: Path, rollouts: Path, *, allow_partial: bool = False) -> ProfileReport:
    """Profile a file of rollouts against the file of what was planned."""
    planned = _read_plan(plan)
    builder = read_rollouts(rollouts)
    table = _table(builder, rollouts)
    check_keys(planned.keys, table.keys(), allow_partial=allow_partial)
    expected = Counter(key.task for key in planned.keys)
    # A generator: entries are written as they are made, because a profile repeats every task and may be large.
    groups = task_entries(table, sample_of=planned.samples.__getitem__, expected=expected)
    files = write_profile(groups, agent_entries(builder), rollouts)
    return ProfileReport(completion_summary(planned.keys, table.keys()), files, table)


def write_profile(groups: Iterable[Entry], agents: list[Entry], base: Path) -> ProfileFiles:
    """Write one group per line, and the agents as a list."""
    files = ProfileFiles.of(base)
    with replacing(files.groups) as file:
        for group in groups:
            file.write(to_json(group) + b"\n")
    with replacing(files.agents) as file:
        file.write(to_json(agents))
    return files


def read_rollouts(path: Path) -> MetricsBuilder:
    """The numbers of a rollout file; a line that cannot be read is an error."""
    _require(path, "rollouts")
    builder = MetricsBuilder()
    if bad := builder.add_file(path):
        raise ConfigError(
            f"{path}:{bad[0].line}: {bad[0].reason}" + (f" (and {len(bad) - 1} more lines)" if len(bad) > 1 else ""),
            hint="delete the line; its rollout can be collected again with +resume_from_cache=true",
        )
    return builder


def read_table(path: Path) -> RolloutTable:
    """The numbers of a rollout file as a table."""
    return _table(read_rollouts(path), path)


def _table(builder: MetricsBuilder, path: Path) -> RolloutTable:
    try:
        return builder.table()
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from None


class RecordLine(NamedTuple):
    """A line of a file: its number, its text without the line end, and the object it holds."""

    number: int
    text: bytes
    record: dict[str, Any]


def read_records(path: Path, what: str) -> Iterator[RecordLine]:
    """The objects of a JSONL file; blank lines are skipped."""
    _require(path, what)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = parse_line(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}", hint="repair or delete that line") from None
            if not isinstance(record, dict):
                raise ConfigError(f"{path}:{number}: not an object", hint="repair or delete that line")
            yield RecordLine(number, line.rstrip(b"\r\n"), record)


def _read_plan(path: Path) -> _Plan:
    plan = _Plan(set(), {})
    for number, _, row in read_records(path, "inputs"):
        key = key_of(row, f"materialized input ({path}:{number})")
        if key in plan.keys:
            raise ProfileError(f"{path}:{number}: two materialized inputs have the same key {tuple(key)}")
        plan.keys.add(key)
        plan.samples.setdefault(key.task, sample_of(row))
    return plan


def _require(path: Path, flag: str) -> None:
    if not path.is_file():
        raise ConfigPathNotFoundError(f"{path}: no such file (--{flag})", hint=f"check the path given with --{flag}")


class TaskProfile(NamedTuple):
    """How many tasks were written, and the numbers of the rollouts."""

    tasks: int
    table: RolloutTable


def profile_tasks(tasks: Path, rollouts: Path, output: Path, *, pass_threshold: float | None = None) -> TaskProfile:
    """Write every task that has rewards, with their statistics."""
    table = read_table(rollouts)
    rewards = task_rewards(table, pass_threshold)
    written = 0
    with replacing(output) as file:
        for index, row in _numbered(tasks):
            if index in rewards:
                file.write(to_json({**row, **rewards[index]}) + b"\n")
                written += 1
    return TaskProfile(written, table)


def task_rewards(table: RolloutTable, pass_threshold: float | None = None) -> dict[int, Entry]:
    """The statistics of the rewards of each task that has any."""
    reward = table.top.get(REWARD)
    starts = table.task_starts()
    if reward is None:
        return {}
    known = reward.known
    # Without a threshold only the counts are used, which do not depend on it.
    count, passed = passing(reward, starts, 0.0 if pass_threshold is None else pass_threshold)
    stats = describe(Column(reward.values, known), starts)
    entries = {
        task: {"avg_reward": mean, "std_reward": 0.0 if isnan(std) else std, "min_reward": low, "max_reward": high}
        | {"total_samples": total}
        for task, mean, std, low, high, total in zip(
            *(part.tolist() for part in (table.task[starts], stats.mean, stats.std, stats.min, stats.max, count)),
            strict=True,
        )
        if total
    }
    if pass_threshold is not None:
        for task, number in zip(table.task[starts].tolist(), passed.tolist(), strict=True):
            if task in entries:
                entries[task] |= _pass_rate(number, entries[task]["total_samples"], pass_threshold)
    return entries


def _pass_rate(passed: int, total: int, threshold: float) -> Entry:
    return {
        "pass_rate": passed / total,
        "pass_rate_total": total,
        "pass_rate_passed": passed,
        "pass_threshold": threshold,
    }


def _numbered(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each distinct task once, with its index."""
    numbers: dict[bytes, int] = {}
    seen: set[int] = set()
    for _, text, row in read_records(path, "inputs"):
        index = row.get(TASK_INDEX_KEY_NAME)
        if not isinstance(index, int):
            index = numbers.setdefault(text, len(numbers))
        if index not in seen:
            seen.add(index)
            yield index, row
