"""Finds server folders and tests them: ``ng_test``, ``ng_test_all``, ``ng_dev_test`` and ``ng_pip_list``.

A server folder is ``resources_servers/<name>`` or one of its two siblings, in the working directory or the
installation. Its tests run inside it, with the working directory and the installation importable, so that
``resources_servers.<name>.app`` is the folder that is being tested. They run with this Python if it has everything that
the server requires, otherwise with the server's own environment.

The example data of a resources server is checked too: five tasks, their metrics, five rollouts, no open conflict.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nemo_gym import PARENT_DIR
from nemo_gym.cli import console
from nemo_gym.cli.parameters import PipListConfig, TestAllConfig, TestConfig, read_parameters
from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.config.locate import server_directory
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, ExitCode, UsageError, did_you_mean
from nemo_gym.servers.venvs import COMPLETE, ensure_venv, read_requirements, unmet


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """One implementation of a server."""

    type: str
    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.type}/{self.name}"


def find_server(entrypoint: str) -> ServerFolder:
    """Find the folder of ``<type>/<name>``. The error lists the available names."""
    kind, _, name = entrypoint.rstrip("/").partition("/")
    path = server_directory(kind, name)
    if not path.is_dir():
        known = [server.name for server in find_servers() if server.type == kind]
        raise ConfigPathNotFoundError(
            f"no folder {kind}/{name} in {Path.cwd()}" + (f" or {PARENT_DIR}" if Path.cwd() != PARENT_DIR else ""),
            hint=did_you_mean(name, known, available=f"In {kind}"),
        )
    return ServerFolder(kind, name, path)


def find_servers(roots: Sequence[Path] | None = None) -> list[ServerFolder]:
    """List all server folders of the working directory and of the installation (or of ``roots``), each name once."""
    found: dict[tuple[str, str], ServerFolder] = {}
    for root in dict.fromkeys(roots or (Path.cwd(), PARENT_DIR)):
        for kind in SERVER_TYPES:
            for path in sorted(filter(_is_server, (root / kind).glob("*"))):
                found.setdefault((kind, path.name), ServerFolder(kind, path.name, path))
    return list(found.values())


def _is_server(path: Path) -> bool:
    return any((path / marker).is_file() for marker in ("app.py", "requirements.txt", "pyproject.toml"))


TEST_TOOLS: Final = ("httpx", "pytest", "pytest-asyncio")


def interpreter_for_tests(server: ServerFolder, cache: Path) -> Path:
    """Find or build an environment with the packages that the server and its tests need."""
    requirements = read_requirements(server.path)
    if not unmet(requirements):
        if missing := unmet(list(TEST_TOOLS)):
            raise ConfigError(
                f"packages that the tests need are not installed: {', '.join(missing)}",
                hint=f"pip install {' '.join(missing)}",
            )
        return Path(sys.executable)
    return asyncio.run(ensure_venv(str(server), server.path, [*requirements, *TEST_TOOLS], cache))


def interpreter_of(server: ServerFolder, cache: Path) -> Path | None:
    """The Python that the server runs with; None if it needs its own environment and that was never built."""
    if not unmet(read_requirements(server.path)):
        return Path(sys.executable)
    return next((home / "bin" / "python" for home in _built(server, cache) if (home / COMPLETE).exists()), None)


def delete_environments(server: ServerFolder, cache: Path) -> None:
    """Delete the server's own environments to free space."""
    for home in _built(server, cache):
        shutil.rmtree(home)


def _built(server: ServerFolder, cache: Path) -> list[Path]:
    homes = (path for path in (cache / "venvs").glob(f"{server.name}-*") if path.is_dir())
    return sorted(homes, key=lambda path: path.stat().st_mtime, reverse=True)


def pip_list(overrides: Sequence[str]) -> int:
    """List the packages with pip, and return pip's exit code."""
    config = read_parameters(PipListConfig, overrides)
    server = find_server(config.entrypoint)
    python = interpreter_of(server, config.environments)
    if python is None:
        raise ConfigError(
            f"{server} needs its own virtual environment, which has not been built yet",
            hint=f"ng_test +entrypoint={server} or ng_run with its configuration builds it",
        )
    outdated = ["--outdated"] if config.outdated else []
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "list", f"--format={config.format}", *outdated]
    return subprocess.run(command, check=False).returncode


EXAMPLES: Final = 5


def example_data_problems(server: Path) -> list[str]:
    """What is wrong with the example data of a server folder; empty if nothing is."""
    data = server / "data"
    found = [
        _rows(data / "example.jsonl", hint="write five tasks"),
        _metrics(data / "example_metrics.json"),
        _rows(data / "example_rollouts.jsonl", hint="run ng_collect_rollouts on data/example.jsonl"),
        *(f"{path} is an unresolved conflict; compare it and delete it" for path in sorted(data.glob("*conflict*"))),
    ]
    return [problem for problem in found if problem]


def _rows(path: Path, *, hint: str) -> str | None:
    if not path.is_file():
        return f"{path} is missing; {hint}"
    count = sum(1 for line in path.read_bytes().splitlines() if line.strip())
    return None if count == EXAMPLES else f"{path} has {count} rows, not {EXAMPLES}"


def _metrics(path: Path) -> str | None:
    make = "run ng_prepare_data with +mode=example_validation"
    if not path.is_file():
        return f"{path} is missing; {make}"
    try:
        metrics: Any = json.loads(path.read_bytes())
    except ValueError as error:
        return f"{path} is not JSON ({error}); {make}"
    count = metrics.get("Number of examples") if isinstance(metrics, dict) else None
    return (
        None if count == EXAMPLES else f'{path} has "Number of examples": {json.dumps(count)}, not {EXAMPLES}; {make}'
    )


# What pytest's exit codes mean for a server; any other code means that pytest itself failed.
VERDICTS: Final = {0: "passed", 1: "failed", 2: "failed", 5: "no tests"}


@dataclass(frozen=True, slots=True)
class ServerTestResult:
    """How the tests of one server ended."""

    server: ServerFolder
    command: str
    code: int
    seconds: float
    data_problems: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The result in one or two words, for the table."""
        verdict = VERDICTS.get(self.code, f"pytest exit code {self.code}")
        return "bad data" if verdict == "passed" and self.data_problems else verdict


def test(overrides: Sequence[str]) -> int:
    """Run the tests of one server, or of all servers if none is named."""
    config = read_parameters(TestConfig, overrides)
    if config.entrypoint is None:
        return test_folders(find_servers(), config)
    server = find_server(config.entrypoint)
    if config.should_validate_data and server.type != "resources_servers":
        raise UsageError(f"{server} has no example data to validate", hint="leave out +should_validate_data=true")
    tested = _test_server(server, config.environments, validate_data=config.should_validate_data)
    if tested.code:
        console.note(f"\n{server}: {tested.verdict}; to investigate: cd {server.path} && {tested.command}")
        return tested.code
    for problem in tested.data_problems:
        console.error(problem)
    return ExitCode.ERROR if tested.data_problems else ExitCode.OK


def test_all(overrides: Sequence[str]) -> int:
    """Run the tests of every server that has a README.md."""
    return test_folders(find_servers(), read_parameters(TestAllConfig, overrides))


def dev_test(overrides: Sequence[str]) -> int:
    """Run the project's own tests, and return pytest's exit code."""
    if overrides:
        raise UsageError("ng_dev_test takes no parameters", hint="for more control, call pytest directly")
    coverage = ["--cov=."] if importlib.util.find_spec("pytest_cov") else []
    return subprocess.run([sys.executable, "-m", "pytest", *coverage, "--durations=10"], check=False).returncode


def test_folders(folders: Sequence[ServerFolder], config: TestAllConfig) -> int:
    """Test the folders that have a README.md and belong to the shard."""
    if config.shard_index >= config.num_shards:
        raise UsageError(f"shard_index={config.shard_index} is not below num_shards={config.num_shards}")
    documented = [server for server in folders if (server.path / "README.md").is_file()]
    results = []
    for server in documented[config.shard_index :: config.num_shards]:
        console.note(f"\n=== {server}")
        validate_data = server.type == "resources_servers"
        results.append(_test_server(server, config.environments, validate_data=validate_data))
        if config.delete_venvs_after_each_test:
            delete_environments(server, config.environments)
    undocumented = sorted(set(map(str, folders)) - set(map(str, documented)))
    return _report(results, undocumented, strict=config.fail_on_total_and_test_mismatch)


def _report(results: Sequence[ServerTestResult], undocumented: Sequence[str], *, strict: bool) -> int:
    rows = [(str(tested.server), tested.verdict, f"{tested.seconds:.1f} s") for tested in results]
    console.emit(console.table(("Server", "Result", "Time"), rows))
    total = len(results)
    counts = Counter(tested.verdict for tested in results)
    summary = [f"{count} of {total} {verdict} ({count / total:.0%})" for verdict, count in counts.most_common()]
    console.emit("\n" + (", ".join(summary) or "no servers found"))
    for problem in (problem for tested in results for problem in tested.data_problems):
        console.error(problem)
    if undocumented:
        console.warn(f"not tested, because there is no README.md: {', '.join(undocumented)}")
    failed = total != counts["passed"] or (strict and undocumented)
    return ExitCode.ERROR if failed else ExitCode.OK


def _test_server(server: ServerFolder, environments: Path, *, validate_data: bool) -> ServerTestResult:
    started = time.monotonic()
    roots = [str(Path.cwd()), str(PARENT_DIR), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, roots)))}
    # Tests of server folders are written for this mode, and a folder elsewhere has no configuration that sets it.
    command = [str(interpreter_for_tests(server, environments)), "-m", "pytest", "-o", "asyncio_mode=auto"]
    code = subprocess.run(command, cwd=server.path, env=environment, check=False).returncode
    found = example_data_problems(server.path) if validate_data else []
    return ServerTestResult(server, " ".join(command), code, time.monotonic() - started, tuple(found))
