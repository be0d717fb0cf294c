"""The golden vectors: expected values as data, run by their own runner."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "golden"
SUITES = sorted(path.name for path in (HERE / "cases").iterdir())


@pytest.mark.parametrize("suite", SUITES)
def test_golden_suite_passes(suite: str) -> None:
    command = [sys.executable, "run_golden.py", "cases", "--suite", suite]
    command += ["--adapter", "adapter.py"] if (HERE / "adapter.py").exists() else []
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
