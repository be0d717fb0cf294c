"""A link with a token, opened as people open links: from a page of another site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked_commands import ForkedCommands


@pytest.fixture
def guarded(runs: Path, commands: ForkedCommands) -> Iterator[str]:
    """A viewer that can be reached from elsewhere, by its address on this machine."""
    words = ("ng_viewer", str(runs / "tuned.jsonl"), "+server_host=0.0.0.0", "+server_port=0")
    with commands.start(*words) as viewer:
        address = viewer.read_until("token=").strip()
        host, _, rest = address.removeprefix("http://").partition(":")
        assert "token=" in rest, (host, rest)
        yield f"http://127.0.0.1:{rest}"


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
