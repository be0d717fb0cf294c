"""Reward profiles: what was planned beside what came back, for each task and each agent.

A plan says which rollouts were owed; results are matched to it by key. A result that was not planned is always an
error. A missing one is an error unless partial profiles are allowed: a mean over survivors misleads, so a gap has to be
accepted explicitly.

From files, the rollouts are read once, as numbers; of the plan only the place of each task is kept, because the profile
repeats its row. Both output files are replaced as a whole.

``profile_tasks`` writes the older form: each task with the average of its rewards, and how many passed a threshold.
There, tasks are matched by index: the one a row carries, else the number of the row among the distinct rows of the
file, which is how rollouts were numbered when they were planned.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import RunFiles, replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.aggregate import Entry, SampleOf, task_entries
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.statistics import describe, overall, passing
from nemo_gym.metrics.table import Column, RolloutTable
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import REWARD, Record, read_records
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, RolloutKey

_SHOWN: Final = 10
_INDICES: Final = frozenset({TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME})

Fields = Mapping[str, Any]


class ProfileError(ConfigError, ValueError):
    """Plan and results do not belong together."""


class Pair(NamedTuple):
    """A planned rollout and its result."""

    row: Fields
    result: Fields


class Profile(NamedTuple):
    """One entry per task and one per agent."""

    groups: list[Entry]
    agents: list[Entry]


def align(rows: Iterable[Fields], results: Iterable[Fields], *, allow_partial: bool = False) -> list[Pair]:
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


def profile(pairs: Sequence[Pair], rows: Iterable[Fields]) -> Profile:
    """Statistics per task, with the planned row as sample, and per agent."""
    builder = MetricsBuilder()
    for row, result in pairs:
        builder.add({**result, AGENT_REF_KEY_NAME: row.get(AGENT_REF_KEY_NAME)})
    samples: dict[int, Entry] = {}
    for row, _ in pairs:
        samples.setdefault(required_key(row, "materialized input").task, sample_of(row))
    expected = Counter(key.task for key in keys_of(rows, "materialized input"))
    groups = task_entries(builder.table(), sample_of=samples.__getitem__, expected=expected)
    return Profile(list(groups), agent_entries(builder))


def agent_entries(builder: MetricsBuilder) -> list[Entry]:
    """The statistics of every agent, sorted by name."""
    return [{**overall(builder.table_of(agent)), AGENT_REF_KEY_NAME: {"name": agent}} for agent in builder.agents]


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


def required_key(fields: Fields, kind: str) -> RolloutKey:
    """The key of a planned row or result; an error if it has none."""
    try:
        key = Record(fields).key
    except RolloutFormatError as error:
        raise ProfileError(f"a {kind} has no key: {error}") from None
    if key is None:
        found = fields.get(TASK_INDEX_KEY_NAME), fields.get(ROLLOUT_INDEX_KEY_NAME)
        raise ProfileError(f"a {kind} has no {TASK_INDEX_KEY_NAME} and {ROLLOUT_INDEX_KEY_NAME}: {found}")
    return key


def keys_of(rows: Iterable[Fields], kind: str) -> Iterator[RolloutKey]:
    """The keys of planned rows or results."""
    return (required_key(row, kind) for row in rows)


def sample_of(row: Fields) -> Entry:
    """The planned row without its indices."""
    return {name: value for name, value in row.items() if name not in _INDICES}


def _by_key(records: Iterable[Fields], kind: str) -> dict[RolloutKey, Fields]:
    by_key: dict[RolloutKey, Fields] = {}
    for record in records:
        key = required_key(record, kind)
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
    """The keys of a plan, and where in the file each task stands first: rows may be large, so they stay there."""

    path: Path
    keys: set[RolloutKey]
    places: dict[int, int]

    @contextmanager
    def samples(self) -> Iterator[SampleOf]:
        """The planned row of a task, read when it is needed."""
        with self.path.open("rb") as file:

            def read(task: int) -> Entry:
                file.seek(self.places[task])
                return sample_of(Record.parse(file.readline(), self.path).fields)

            yield read


def profile_files(plan: Path, rollouts: Path, *, allow_partial: bool = False) -> ProfileReport:
    """Profile a file of rollouts against the file of what was planned."""
    planned = _read_plan(plan)
    builder = read_numbers(rollouts)
    table = _table(builder, rollouts)
    check_keys(planned.keys, table.keys(), allow_partial=allow_partial)
    expected = Counter(key.task for key in planned.keys)
    # A generator: entries are written as they are made, because a profile repeats every task and may be large.
    with planned.samples() as read_sample:
        groups = task_entries(table, sample_of=read_sample, expected=expected)
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


def read_numbers(path: Path) -> MetricsBuilder:
    """The numbers of a rollout file; a line that cannot be read is an error."""
    _require(path, "rollouts")
    builder = MetricsBuilder()
    if bad := builder.add_file(path):
        raise ConfigError(
            f"{path}:{bad[0].line}: {bad[0].reason}" + (f" (and {len(bad) - 1} more lines)" if len(bad) > 1 else ""),
            hint="delete the line; its rollout can be collected again with +resume_from_cache=true",
        )
    return builder


def _table(builder: MetricsBuilder, path: Path) -> RolloutTable:
    try:
        return builder.table()
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from None


def _read_plan(path: Path) -> _Plan:
    plan = _Plan(path, set(), {})
    _require(path, "inputs")
    place = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                fields = Record.parse(line, path, number).fields
                key = required_key(fields, f"materialized input ({path}:{number})")
                if key in plan.keys:
                    raise ProfileError(f"{path}:{number}: two materialized inputs have the same key {tuple(key)}")
                plan.keys.add(key)
                plan.places.setdefault(key.task, place)
            place += len(line)
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
    table = _table(read_numbers(rollouts), rollouts)
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
    _require(path, "inputs")
    for _, text, record in read_records(path):
        index = record.task
        if index is None:
            index = numbers.setdefault(text, len(numbers))
        if index not in seen:
            seen.add(index)
            yield index, record.fields
