"""The golden vectors: expected values as data, run by their own runner."""

from pathlib import Path

import pytest

from tests.forked_commands import ForkedCommands

HERE = Path(__file__).parent / "golden"
SUITES = sorted(path.name for path in (HERE / "cases").iterdir())


@pytest.mark.parametrize("suite", SUITES)
def test_golden_suite_passes(commands: ForkedCommands, suite: str) -> None:
    command = ["python", "run_golden.py", "cases", "--suite", suite, "--adapter", "adapter.py"]
    ran = commands.run(*command, folder=HERE)
    assert ran.code == 0, ran.out + ran.err
    assert " 0 failed" in ran.out
