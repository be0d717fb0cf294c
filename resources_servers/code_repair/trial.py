"""Runs a package's tests in a sandbox of their own, and judges a repair by how they ended."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from nemo_gym.sandbox import Runner, SandboxLimits
from resources_servers.code_repair.packages import Package, files_of, package_named, pytest_folder
from resources_servers.code_repair.tasks import Files, RepairTask, verified_files

LIMITS: Final = SandboxLimits(cpu_s=60, wall_s=120, memory_mib=1024, file_mib=64, disk_mib=256, output_kib=8192)
_DRIVER: Final = Path(__file__).with_name("pytest_driver.py")
# An honest repair of a function never mentions what runs its tests; code that wants to forge a verdict has to.
_FORGERY: Final = (
    "pytest", "pluggy", "PYTEST_CURRENT_TEST", "os._exit", "sys.modules", "gc.get_", "setprofile", "settrace",
    "_getframe", "atexit", "inspect.stack", "ctypes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TestReport:
    """How tests ended, by their names; ``problem`` says why there is no report."""

    __test__ = False  # not a test, whatever its name says

    outcomes: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    cpu_s: float = 0.0
    problem: str | None = None

    def passed(self, name: str) -> bool:
        """Whether a test ran and passed."""
        return self.outcomes.get(name) == "passed"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The reward of a repair: the share of hidden tests that pass, or 0 with a reason."""

    reward: float
    passed: int
    total: int
    reason: str | None


async def run_tests(
    runner: Runner,
    package: Package,
    files: Files,
    paths: Sequence[str],
    *,
    trace: bool = False,
    limits: SandboxLimits = LIMITS,
) -> TestReport:
    """Run the tests at some paths on these files."""
    request = {"roots": [package.root], "paths": list(paths), "trace": trace, "pytest": str(pytest_folder())}
    result = await runner.run(
        _DRIVER.read_text("utf-8"), stdin=json.dumps(request).encode(), files=files, limits=limits
    )
    try:
        found: dict[str, Any] = json.loads(result.text)
        calls = {name: [(str(path), int(line)) for path, line in each] for name, each in found["calls"].items()}
        return TestReport(dict(found["outcomes"]), dict(found["messages"]), calls, result.cpu_s)
    except (ValueError, KeyError, TypeError, AttributeError):
        return TestReport(problem=f"the tests ended without a report ({result.ending}, exit code {result.exit_code})")


async def judge(runner: Runner, task: RepairTask, repaired: Files) -> Judgement:
    """Run the task's tests on the modules that an agent left behind."""
    package = package_named(task.package)
    total = len(task.tests.hidden)
    forged = forgery(files_of(package.name), repaired)
    if forged is not None:
        return Judgement(0.0, 0, total, f"the repair mentions {forged}, which no repair needs")
    # A test that can only fail: where it passes, the outcomes are not those of the tests.
    name = f"test_{secrets.token_hex(8)}"
    canary = str(PurePosixPath(task.tests.files[0]).with_name(f"{name}.py"))
    files = verified_files(task, repaired) | {canary: f"def {name}():\n    assert not {name}\n".encode()}
    report = await run_tests(runner, package, files, [*task.tests.files, canary])
    return _judged(task, report, canary=f"{canary}::{name}")


def _judged(task: RepairTask, report: TestReport, *, canary: str) -> Judgement:
    passed = sum(map(report.passed, task.tests.hidden))
    total = len(task.tests.hidden)
    needed = [*task.tests.passing, *([task.tests.shown] if task.tests.shown else [])]
    broken = [name for name in needed if not report.passed(name)]
    if report.problem is not None:
        return Judgement(0.0, 0, total, report.problem)
    if report.outcomes.get(canary) != "failed":
        return Judgement(0.0, 0, total, "a test that can only fail did not fail: the outcomes are forged")
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return Judgement(0.0, passed, total, f"{broken[0]}{more} must pass, but fails")
    return Judgement(passed / total, passed, total, None if passed == total else "hidden tests fail")


def forgery(original: Mapping[str, bytes], repaired: Mapping[str, bytes]) -> str | None:
    """A word of the machinery that runs tests, if a repair uses one more often than the original did."""
    for path, content in repaired.items():
        before = original.get(path, b"")
        for word in map(str.encode, _FORGERY):
            if content != before and content.count(word) > before.count(word):
                return word.decode()
    return None
