"""A link with a token, opened as people open links: from a page of somebody else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def guarded(runs: Path) -> Iterator[str]:
    """A viewer that can be reached from elsewhere, by its address on this machine."""
    command = [sys.executable, "-m", "nemo_gym.cli", "viewer", str(runs / "tuned.jsonl"), "+server_host=0.0.0.0"]
    with subprocess.Popen([*command, "+server_port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=dict(os.environ)) as process:  # fmt: skip
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        host, _, rest = address.removeprefix("http://").partition(":")
        assert "token=" in rest, (host, rest)
        yield f"http://127.0.0.1:{rest}"
        process.kill()


def test_a_link_with_a_token_works_from_another_site(page: Any, guarded: str, one_run: str) -> None:
    # Another site: to the browser, localhost and 127.0.0.1 are not the same.
    page.go(one_run.replace("127.0.0.1", "localhost"))
    page.see("Mean reward")
    page.evaluate(f"""(() => {{
        const link = document.createElement("a");
        link.href = "{guarded}";
        document.body.append(link);
        link.click();
    }})()""")
    page.wait("location.host.startsWith('127.0.0.1')")
    page.see("Mean reward")
    assert "token" not in page.evaluate("location.href")
