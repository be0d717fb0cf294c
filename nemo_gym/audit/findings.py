"""What all checkers share: a check yields findings about a subject, and a report gathers them with its figures.

A subject is any value: a configuration, a folder, an environment that is being played. A checker is a list of checks.
Only errors make a checker fail: a warning is for the author to judge.
"""

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeVar

from nemo_gym.errors import ExitCode

Severity = Literal["error", "warning"]
Subject = TypeVar("Subject")
Check = Callable[[Subject], Iterable["Finding"]]
LiveCheck = Callable[[Subject], AsyncIterable["Finding"]]
MAX_LISTED: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an author should know: how bad it is, where it is, what it is, and what to do about it."""

    severity: Severity
    place: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.message}" + (f"; {self.hint}" if self.hint else "")


def examine(subject: Subject, checks: Sequence[Check[Subject]]) -> list[Finding]:
    """What the checks find, in their order."""
    return [finding for check in checks for finding in check(subject)]


async def examine_live(subject: Subject, checks: Sequence[LiveCheck[Subject]]) -> list[Finding]:
    """What checks find that have to wait for their subject."""
    return [finding for check in checks async for finding in check(subject)]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a checker found out about its subject.

    ``summary`` is the first line of its text. ``figures`` are part of the JSON; those that are lists of records are
    tables in the text, too.
    """

    subject: str
    summary: str
    findings: Sequence[Finding]
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """1 if anything must be fixed."""
        return ExitCode.ERROR if count_errors(self.findings) else ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        findings = [asdict(finding) for finding in self.findings]
        return {"subject": self.subject, "valid": not self.exit_code, **self.figures, "findings": findings}


def count_errors(findings: Sequence[Finding]) -> int:
    """The number of findings that must be fixed."""
    return sum(finding.severity == "error" for finding in findings)


def counted(findings: Sequence[Finding]) -> str:
    """The number of errors and warnings, in words."""
    errors = count_errors(findings)
    warnings = len(findings) - errors
    return f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"


def listed(values: Sequence[Any]) -> str:
    """The first few of the values, and how many more there are."""
    shown = ", ".join(map(str, values[:MAX_LISTED]))
    return f"{shown} and {len(values) - MAX_LISTED} more" if len(values) > MAX_LISTED else shown
