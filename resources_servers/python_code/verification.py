"""From a row and a solution to a verdict: runs the judge in the sandbox and reads what it says.

A solution that is wrong, slow, too large or hostile fails, with a reason. A sandbox or a test that does not work
raises, so that the rollout is a failure and not a reward of 0.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, model_validator

from nemo_gym.sandbox import ProgramEnding, Result, Runner, SandboxLimits

_FOLDER: Final = Path(__file__).parent
_IN_THE_BOX: Final = ("plain", "solver", "judge")
_PACKAGE: Final = "resources_servers.python_code"
_PROGRAM: Final = f"from {_PACKAGE}.judge import main\nmain()\n"
_ENDINGS: Final = {
    ProgramEnding.CPU_TIME: "takes too much CPU time",
    ProgramEnding.WALL_TIME: "takes too long",
    ProgramEnding.MEMORY: "takes too much memory",
    ProgramEnding.DISK: "writes too many files",
    ProgramEnding.OUTPUT: "prints too much",
}


class Case(BaseModel):
    """Arguments and the value they give, or an input and the output it gives."""

    args: list[Any] | None = None
    expected: Any = None
    stdin: str | None = None
    stdout: str | None = None


class HiddenTests(BaseModel):
    """How a solution is tested: a function by ``check(candidate)`` or by cases, a program by cases.

    ``setup`` is code that the task gives, to which the solution is added; ``after`` is code that a program ends with.
    """

    kind: Literal["function", "program"]
    entry_point: str | None = None
    setup: str = ""
    after: str = ""
    test: str | None = None
    cases: Annotated[list[Case], Field(max_length=1000)] = []
    tolerance: float | None = None

    @model_validator(mode="after")
    def _check(self) -> "HiddenTests":
        if self.kind == "program":
            if not self.cases or any(case.stdin is None or case.stdout is None for case in self.cases):
                raise ValueError("a program is tested by cases with stdin and stdout")
        elif self.after:
            raise ValueError("only a program can have code after it")
        elif not self.entry_point or bool(self.test) == bool(self.cases):
            raise ValueError("a function is tested by an entry_point with either a test or cases")
        elif any(case.args is None for case in self.cases):
            raise ValueError("a case of a function has args and expected")
        return self

    @property
    def count(self) -> int:
        """How many verdicts there are."""
        return len(self.cases) or 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many tests passed, and why the first of the others failed."""

    passed: int
    total: int
    reason: str | None
    cpu_s: float = 0.0


def modules_in_the_box() -> dict[str, str]:
    """The judge, for the sandbox to have it ready."""
    return {f"{_PACKAGE}.{name}": (_FOLDER / f"{name}.py").read_text("utf-8") for name in _IN_THE_BOX}


async def verify_solution(runner: Runner, solution: str, tests: HiddenTests, *, limits: SandboxLimits) -> Verdict:
    """Test a solution in the sandbox."""
    kind = "cases" if tests.kind == "function" and tests.cases else tests.kind
    request = {
        **tests.model_dump(exclude={"cases", "kind", "after"}),
        "kind": kind,
        "cases": [case.model_dump() for case in tests.cases],
        "solution": solution,
        "case_s": limits.wall_s / 2,  # one slow case must leave time for a verdict on the others
    }
    result = await runner.run(_PROGRAM, stdin=json.dumps(request).encode(), limits=limits)
    return read_verdict(result, total=tests.count)


def read_verdict(result: Result, *, total: int) -> Verdict:
    """The judge's verdict; if there is none, the solution ended the program or exceeded a limit."""
    if result.ending is not ProgramEnding.EXITED:
        return Verdict(0, total, _ENDINGS[result.ending], result.cpu_s)
    try:
        report = json.loads(result.stdout)
    except ValueError:
        return Verdict(0, total, f"ends the judge with exit code {result.exit_code}", result.cpu_s)
    if "untestable" in report:
        raise ValueError(f"the row's tests do not work: {report['untestable']}")
    passed = report["passed"]
    if len(passed) != total:
        raise ValueError(f"the judge gave {len(passed)} verdicts on {total} tests")
    return Verdict(sum(passed), total, report["reason"], result.cpu_s)


def complete(setup: str, code: str, after: str = "") -> str:
    """The task's own beginning, the model's code (which continues or repeats it), and the task's own end."""
    whole = f"{setup.rstrip()}\n{code}" if setup.strip() else code
    return f"{whole}\n\n{after}\n" if after else whole
