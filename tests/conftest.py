"""Parts that tests of several layers share: the mock model endpoint and commands, as real processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.forked_commands import ForkedCommands, fork_server
from tests.ports import free_port

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class MockModel:
    """A running mock endpoint; see the head of ``benchmarks_perf/mock_model.py`` for its settings."""

    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def set(self, **settings: Any) -> None:
        """Change its behaviour while it runs."""
        self._get(f"/set?{urlencode(settings)}")

    def stats(self) -> dict[str, Any]:
        return dict(self._get("/stats")["stats"])

    def reset(self) -> None:
        """Back to a well-behaved endpoint with counters at zero."""
        self.set(latency="0", error_rate=0, hang_nth=0, slots=0, knee=0, rps=0, faults="", seed=0)
        self._get("/reset")

    def _get(self, path: str) -> Any:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
            return json.loads(reply.read())


class MockProcess:
    """The process of the mock endpoint."""

    def __init__(self, port: int) -> None:
        self.model = MockModel(port)
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(ROOT / "benchmarks_perf" / "mock_model.py")]
        environment = {**os.environ, "MOCK_PORT": str(self.model.port)}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        for _ in range(400):
            try:
                self.model.stats()
                break
            except (URLError, OSError):
                time.sleep(0.05)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def _mock_process() -> Iterator[MockProcess]:
    process = MockProcess(free_port())
    yield process
    process.stop()


@pytest.fixture(scope="session")
def commands() -> Iterator[ForkedCommands]:
    """Runs commands in real processes without the second that it takes to import the program."""
    with fork_server() as commands:
        yield commands


@pytest.fixture
def mock_model(_mock_process: MockProcess) -> MockModel:
    """The mock endpoint, well behaved until the test says otherwise."""
    if _mock_process.model.stats()["inflight"]:
        # Slow answers that an earlier test did not wait for would take up the places of this one.
        _mock_process.stop()
        _mock_process.start()
    _mock_process.model.reset()
    return _mock_process.model
