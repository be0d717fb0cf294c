"""Audits files of rollouts: applies the rules to every line and writes what they find beside each file.

Each file is read twice: once for the survey, once for the rules. Memory holds the surveys, which are bounded, and the
first findings. ``<stem>_audit.jsonl`` has a line for each suspicion; a file without any has an empty one, which says
that it was audited. It is replaced as a whole.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.audit.findings import CheckReport, Finding, counted
from nemo_gym.audit.rollout_rules import RULES, Deed, StepSums, Survey, Suspicion
from nemo_gym.io.files import RunFiles, replacing
from nemo_gym.io.json import decode, encode_json
from nemo_gym.schemas.record import read_records

SHOWN: Final = 20  # findings in a report; all of them are in the files beside the rollouts
JUMPED: Final = "reward jump"


class AuditedLine(NamedTuple):
    """A suspicion and the line of the file that it is about."""

    line: int
    rule: str
    message: str
    quote: str
    reward: float | None = None
    task: int | None = None
    rollout: int | None = None


@dataclass(slots=True)
class _Counts:
    rows: int = 0
    suspicious: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    rewarded: Counter[str] = field(default_factory=Counter)
    shown: list[Finding] = field(default_factory=list)


def audit_rollouts(paths: Sequence[Path]) -> CheckReport:
    """Audit files of one or several runs; with several and no step in the rows, each file is a training step."""
    surveys: dict[str, Survey] = {}
    sums: dict[str, StepSums] = {}
    for number, path in enumerate(paths):
        for line in read_records(path):
            deed = Deed.of(line.record)
            surveys.setdefault(deed.group, Survey()).add(deed)
            step = deed.step
            sums.setdefault(deed.group, StepSums()).add(number if step is None else step, deed)
    counts = _Counts()
    for path in paths:
        _audit_file(path, surveys, counts)
    for step, text in (jump for each in sums.values() for jump in each.jumps()):
        counts.rules[JUMPED] += 1
        counts.shown.insert(0, Finding("warning", JUMPED, f"step {step}: {text}", "read some rollouts of both steps"))
    return _report(paths, counts)


def _audit_file(path: Path, surveys: Mapping[str, Survey], counts: _Counts) -> None:
    with replacing(RunFiles.of(path).audit) as file:
        for line in read_records(path):
            deed = Deed.of(line.record)
            found = [each for rule in RULES for each in rule(deed, surveys[deed.group])]
            counts.rows += 1
            counts.suspicious += bool(found)
            for suspicion in found:
                record = line.record
                entry = AuditedLine(line.number, *suspicion, record.reward, record.task, record.rollout)
                file.write(encode_json(entry._asdict()) + b"\n")
                _count(counts, path, entry, suspicion, is_rewarded=deed.is_rewarded)


def _count(counts: _Counts, path: Path, entry: AuditedLine, suspicion: Suspicion, *, is_rewarded: bool) -> None:
    counts.rules[suspicion.rule] += 1
    counts.rewarded[suspicion.rule] += is_rewarded
    if len(counts.shown) < SHOWN:
        place = f"{path}:{entry.line}"
        text = f"{suspicion.rule}: {suspicion.message}: {suspicion.quote!r}"
        counts.shown.append(Finding("error" if is_rewarded else "warning", place, text))


def _report(paths: Sequence[Path], counts: _Counts) -> CheckReport:
    name = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
    table = [
        {"rule": rule, "found": found, "rewarded": counts.rewarded[rule]} for rule, found in counts.rules.most_common()
    ]
    share = counts.suspicious / counts.rows if counts.rows else 0.0
    more = sum(counts.rules.values()) - len(counts.shown)
    summary = f"{name}: {counts.suspicious} of {counts.rows} rollouts are suspicious ({share:.1%})"
    summary += f"; {counted(counts.shown)}" + (f" and {more} more in the files beside them" if more > 0 else "")
    figures: dict[str, Any] = {"rollouts": counts.rows, "suspicious": counts.suspicious, "rules": table}
    figures["files"] = [str(RunFiles.of(path).audit) for path in paths]
    return CheckReport(name, summary, counts.shown, figures)


def read_audit(path: Path) -> Iterator[AuditedLine]:
    """What an audit found in a rollout file; nothing if there was none, or if its lines can't be read."""
    try:
        lines = RunFiles.of(path).audit.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield AuditedLine(**decode(line))
        except (ValueError, TypeError):
            continue


def rules_by_line(path: Path) -> dict[int, str]:
    """The rules that found something in each line of a rollout file, separated by commas."""
    found: dict[int, list[str]] = {}
    for entry in read_audit(path):
        found.setdefault(entry.line, []).append(entry.rule)
    return {line: ", ".join(dict.fromkeys(rules)) for line, rules in found.items()}
