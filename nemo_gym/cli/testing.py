"""Finds server folders and tests them: ``ng_test``, ``ng_test_all``, ``ng_dev_test`` and ``ng_pip_list``.

A server folder is ``resources_servers/<name>`` or one of its two siblings, in the working directory or the
installation. Its tests run inside it, with the working directory and the installation importable, so that
``resources_servers.<name>.app`` is the folder that is being tested. They run with this Python if it has everything that
the server requires, otherwise with the server's own environment.

The example data of a resources server can be checked too. What fails is reported as by all checkers.
"""

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym import INSTALL_DIR
from nemo_gym.audit.findings import Check, CheckReport, Finding, Severity, examine
from nemo_gym.audit.inspection import EXAMPLE_DATA_CHECKS
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.parameters import PipListConfig, TestAllConfig, TestConfig, read_parameters
from nemo_gym.config.keys import ENVIRONMENT_FILE, RESOURCES_SERVERS, SERVER_TYPES
from nemo_gym.config.locate import server_directory
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, UsageError, did_you_mean
from nemo_gym.servers.venvs import COMPLETE, ensure_venv, read_requirements, unmet


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """One implementation of a server."""

    type: str
    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.type}/{self.name}"

    @property
    def is_environment(self) -> bool:
        """Whether it has tasks of its own: the server of environments in files has none."""
        return self.type == RESOURCES_SERVERS and self.name != ENVIRONMENT_FILE


def find_server(entrypoint: str) -> ServerFolder:
    """Find the folder of ``<type>/<name>``. The error lists the available names."""
    kind, _, name = entrypoint.rstrip("/").partition("/")
    path = server_directory(kind, name)
    if not path.is_dir():
        known = [server.name for server in find_servers() if server.type == kind]
        raise ConfigPathNotFoundError(
            f"no folder {kind}/{name} in {Path.cwd()}" + (f" or {INSTALL_DIR}" if Path.cwd() != INSTALL_DIR else ""),
            hint=did_you_mean(name, known, available=f"In {kind}"),
        )
    return ServerFolder(kind, name, path)


def find_servers(roots: Sequence[Path] | None = None) -> list[ServerFolder]:
    """List all server folders of the working directory and of the installation (or of ``roots``), each name once."""
    found: dict[tuple[str, str], ServerFolder] = {}
    for root in dict.fromkeys(roots or (Path.cwd(), INSTALL_DIR)):
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


def pip_list(arguments: Arguments) -> int:
    """List the packages with pip, and return pip's exit code."""
    config = read_parameters(PipListConfig, arguments)
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


# What pytest's exit codes mean for a server; any other code means that pytest itself failed.
VERDICTS: Final = {0: "passed", 1: "failed", 2: "failed", 5: "no tests"}


@dataclass(frozen=True, slots=True)
class ServerTestResult:
    """A server whose tests have run."""

    server: ServerFolder
    command: str
    code: int
    seconds: float
    has_example_data: bool


def failed_tests(tested: ServerTestResult) -> Iterator[Finding]:
    """Tests that failed, could not run, or do not exist."""
    if tested.code:
        verdict = VERDICTS.get(tested.code, f"pytest ended with exit code {tested.code}")
        hint = f"to investigate: cd {tested.server.path} && {tested.command}"
        yield Finding("error", str(tested.server), verdict, hint)


def bad_example_data(tested: ServerTestResult) -> Iterator[Finding]:
    """Example data that is missing or not complete."""
    if tested.has_example_data:
        yield from examine(tested.server.path, EXAMPLE_DATA_CHECKS)


TEST_CHECKS: Final[tuple[Check[ServerTestResult], ...]] = (failed_tests, bad_example_data)


def test(arguments: Arguments) -> int:
    """Run the tests of one server, or of all servers if none is named."""
    config = read_parameters(TestConfig, arguments)
    if config.entrypoint is None:
        return test_folders(find_servers(), config)
    server = find_server(config.entrypoint)
    if config.should_validate_data and server.type != RESOURCES_SERVERS:
        raise UsageError(f"{server} has no example data to validate", hint="leave out +should_validate_data=true")
    tested = _test_server(server, config, has_example_data=config.should_validate_data)
    report = _report([tested])
    console.emit_report(report, as_json=config.json_)
    return tested.code or report.exit_code


def test_all(arguments: Arguments) -> int:
    """Run the tests of every server that has a README.md."""
    return test_folders(find_servers(), read_parameters(TestAllConfig, arguments))


def dev_test(arguments: Arguments) -> int:
    """Run the project's own tests, and return pytest's exit code."""
    if arguments:
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
        results.append(_test_server(server, config, has_example_data=server.is_environment))
        if config.delete_venvs_after_each_test:
            delete_environments(server, config.environments)
    undocumented = sorted(set(map(str, folders)) - set(map(str, documented)))
    severity: Severity = "error" if config.fail_on_total_and_test_mismatch else "warning"
    report = _report(results, [Finding(severity, name, "not tested", "write a README.md") for name in undocumented])
    console.emit_report(report, as_json=config.json_)
    return report.exit_code


def _report(results: Sequence[ServerTestResult], more: Sequence[Finding] = ()) -> CheckReport:
    found = [examine(tested, TEST_CHECKS) for tested in results]
    verdicts = [
        VERDICTS.get(tested.code, "pytest failed") if tested.code or not findings else "bad data"
        for tested, findings in zip(results, found, strict=True)
    ]
    counts = Counter(verdicts).most_common()
    summary = ", ".join(
        f"{count} of {len(results)} {verdict} ({count / len(results):.0%})" for verdict, count in counts
    )
    servers = [
        {"server": str(tested.server), "result": verdict, "seconds": round(tested.seconds, 1)}
        for tested, verdict in zip(results, verdicts, strict=True)
    ]
    findings = [finding for each in found for finding in each]
    return CheckReport("tests", summary or "no servers found", [*findings, *more], {"servers": servers})


def _test_server(server: ServerFolder, config: TestAllConfig, *, has_example_data: bool) -> ServerTestResult:
    started = time.monotonic()
    roots = [str(Path.cwd()), str(INSTALL_DIR), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, roots)))}
    # Tests of server folders are written for this mode, and a folder elsewhere has no configuration that sets it.
    command = [str(interpreter_for_tests(server, config.environments)), "-m", "pytest", "-o", "asyncio_mode=auto"]
    output = sys.stderr if config.json_ else None
    code = subprocess.run(command, cwd=server.path, env=environment, stdout=output, check=False).returncode
    return ServerTestResult(server, " ".join(command), code, time.monotonic() - started, has_example_data)
