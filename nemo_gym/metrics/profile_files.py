"""Reward profiles from files to files.

The rollouts are read once, as numbers; of the plan one row per task is kept, because the profile repeats it. Both
output files are replaced as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.files import replacing
from nemo_gym.metrics.groups import Entry, task_entries
from nemo_gym.metrics.json_text import to_json
from nemo_gym.metrics.lines import parse_line
from nemo_gym.metrics.profile import ProfileError, agent_entries, check_keys, completion_summary, key_of, sample_of
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.schemas.rows import RolloutKey


class ProfileFiles(NamedTuple):
    """Where a profile is written."""

    groups: Path
    agents: Path

    @classmethod
    def of(cls, rollouts: Path) -> "ProfileFiles":
        """Next to the rollouts."""
        return cls(
            rollouts.with_name(f"{rollouts.stem}_reward_profiling.jsonl"),
            rollouts.with_name(f"{rollouts.stem}_agent_metrics.json"),
        )


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What was profiled, and where it is."""

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
