"""A real browser against the real command. One browser and one set of files serve the whole session."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pytest

from tests.forked_commands import ForkedCommands

HERE = Path(__file__).parent
Serve = Callable[..., str]
Export = Callable[..., Path]


def load(name: str) -> ModuleType:
    """A module beside this one; the tests are not a package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


chromium = load("chromium")
samples = load("sample_rollouts")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    executable = chromium.find_chromium()
    if executable is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with chromium.running(executable) as running:
        yield running


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab of its own; whatever the test does, nothing may go wrong unseen in it."""
    tab = browser.open()
    tab.resize(1280, 900)
    yield tab
    assert tab.problems == []
    assert tab.dialogs == []
    tab.close()


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The maker of sample rollouts."""
    return samples


@pytest.fixture(scope="session")
def load_beside() -> Callable[[str], ModuleType]:
    return load


@pytest.fixture(scope="session")
def serve(commands: ForkedCommands) -> Iterator[Serve]:
    """Starts the viewer as people do; returns the address, once everything is indexed."""
    with ExitStack() as started:

        def start(*paths: Path) -> str:
            viewer = started.enter_context(commands.start("ng_viewer", typed(*paths), "+server_port=0"))
            viewer.read_until("Ctrl-C ends the viewer")
            address = viewer.out.strip()
            assert address.startswith("http://127.0.0.1:"), address
            return address

        yield start


@pytest.fixture(scope="session")
def export(commands: ForkedCommands) -> Export:
    """Writes rollouts into a page of its own."""

    def write(page: Path, *paths: Path) -> Path:
        done = commands.run("ng_viewer", typed(*paths), f"+export_html={page}")
        assert done.code == 0, done.err
        return page

    return write


def typed(*paths: Path) -> str:
    """The files as an argument of the viewer."""
    files = ",".join(f"'{path}'" for path in paths)
    return f"+jsonl_fpath=[{files}]"


@pytest.fixture(scope="session")
def ask() -> Callable[[str, str], Any]:
    """Asks a viewer itself what the page should show."""

    def get(address: str, path: str) -> Any:
        with urlopen(f"{address}api/{path}") as answer:
            return json.load(answer)

    return get


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, make: ModuleType) -> Path:
    """A folder with two runs of the same twelve tasks, four times each; the first has failures and a longer plan."""
    folder = tmp_path_factory.mktemp("runs")
    make.write_run(folder / "baseline.jsonl", tasks=12, repeats=4, failed=5, planned=60, steps=True)
    make.write_run(folder / "tuned.jsonl", tasks=12, repeats=4, skill=0.75)
    return folder


@pytest.fixture(scope="session")
def one_run(runs: Path, serve: Serve) -> str:
    return serve(runs / "baseline.jsonl")


@pytest.fixture(scope="session")
def two_runs(runs: Path, serve: Serve) -> str:
    return serve(runs / "baseline.jsonl", runs / "tuned.jsonl")
