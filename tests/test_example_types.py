"""What a reader copies passes the type checker with our own settings; short snippets may leave out annotations."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_documentation import fences

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "train.py")


def test_examples_and_the_snippets_of_the_readme_have_correct_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    snippets = []
    for fence in fences(ROOT / "README.md"):
        if fence.language == "python":
            # An error code is silenced, not the check: what annotations there are, and all calls, must be right.
            snippet = tmp_path / f"readme_line_{fence.line}.py"
            snippet.write_text(f'# mypy: disable-error-code="no-untyped-def"\n{fence.text}')
            snippets.append(snippet)
    assert snippets
    checker = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*checker, *map(str, EXAMPLES), *map(str, snippets)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
