"""``ng_test``, ``ng_test_all`` and ``ng_dev_test``: run pytest where it belongs.

A server's tests run in the server's folder, with the working directory and the installation importable, so that
``resources_servers.<name>.app`` means the folder that is being tested.
"""

import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym import PARENT_DIR
from nemo_gym.cli import console, example_data
from nemo_gym.cli.environments import delete_environments, interpreter_for_tests
from nemo_gym.cli.folders import ServerFolder, find_server, find_servers
from nemo_gym.cli.outcome import Exit, UsageError
from nemo_gym.cli.parameters import TestAllConfig, TestConfig
from nemo_gym.cli.settings import read_parameters

# What pytest's exit codes mean for a server; any other code is something that pytest itself could not do.
VERDICTS: Final = {0: "passed", 1: "failed", 2: "failed", 5: "no tests"}


@dataclass(frozen=True, slots=True)
class Tested:
    """How the tests of one server ended."""

    server: ServerFolder
    command: str
    code: int
    seconds: float
    data_problems: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One word, or two, for the table."""
        verdict = VERDICTS.get(self.code, f"pytest exit code {self.code}")
        return "bad data" if verdict == "passed" and self.data_problems else verdict


def test(overrides: Sequence[str]) -> int:
    """Run the tests of one server; of all, if none is named."""
    config = read_parameters(TestConfig, overrides)
    if config.entrypoint is None:
        return test_folders(find_servers(), config)
    server = find_server(config.entrypoint)
    if config.should_validate_data and server.type != "resources_servers":
        raise UsageError(f"{server} has no example data to validate", hint="leave out +should_validate_data=true")
    tested = _test_server(server, config.environments, validate_data=config.should_validate_data)
    if tested.code:
        console.note(f"\n{server}: {tested.verdict}; to look into it: cd {server.path} && {tested.command}")
        return tested.code
    for problem in tested.data_problems:
        console.error(problem)
    return Exit.ERROR if tested.data_problems else Exit.OK


def test_all(overrides: Sequence[str]) -> int:
    """Run the tests of every server that has a README.md."""
    return test_folders(find_servers(), read_parameters(TestAllConfig, overrides))


def dev_test(overrides: Sequence[str]) -> int:
    """Run the project's own tests; pytest's exit code is the command's."""
    if overrides:
        raise UsageError("ng_dev_test takes no parameters", hint="for more control call pytest itself")
    coverage = ["--cov=."] if importlib.util.find_spec("pytest_cov") else []
    return subprocess.run([sys.executable, "-m", "pytest", *coverage, "--durations=10"], check=False).returncode


def test_folders(folders: Sequence[ServerFolder], config: TestAllConfig) -> int:
    """Test those of the folders that have a README.md and belong to the shard."""
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


def _report(results: Sequence[Tested], undocumented: Sequence[str], *, strict: bool) -> int:
    rows = [(str(tested.server), tested.verdict, f"{tested.seconds:.1f} s") for tested in results]
    console.emit(console.table(("Server", "Result", "Time"), rows))
    total = len(results)
    counts = Counter(tested.verdict for tested in results)
    summary = [f"{count} of {total} {verdict} ({count / total:.0%})" for verdict, count in counts.most_common()]
    console.emit("\n" + (", ".join(summary) or "no servers found"))
    for problem in (problem for tested in results for problem in tested.data_problems):
        console.error(problem)
    if undocumented:
        console.warn(f"not tested, because without README.md: {', '.join(undocumented)}")
    failed = total != counts["passed"] or (strict and undocumented)
    return Exit.ERROR if failed else Exit.OK


def _test_server(server: ServerFolder, environments: Path, *, validate_data: bool) -> Tested:
    started = time.monotonic()
    roots = [str(Path.cwd()), str(PARENT_DIR), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, roots)))}
    command = [str(interpreter_for_tests(server, environments)), "-m", "pytest"]
    code = subprocess.run(command, cwd=server.path, env=environment, check=False).returncode
    found = example_data.problems(server.path) if validate_data else []
    return Tested(server, " ".join(command), code, time.monotonic() - started, tuple(found))
