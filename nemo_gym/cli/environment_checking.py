"""``ng_check_environment``: plays environments and reports what their authors should know.

Exit code 1 says that something must be fixed; warnings leave it at 0.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym.cli import console
from nemo_gym.cli.command import quote
from nemo_gym.cli.gyms import run_async
from nemo_gym.cli.parameters import CheckEnvironmentConfig, read_parameters
from nemo_gym.cli.testing import ServerFolder, find_server, find_servers
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.errors import ConfigError, ExitCode, UsageError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.rollouts.tasks import read_tasks
from nemo_gym.servers.checking.environment_check import check_environment
from nemo_gym.servers.checking.environment_report import EnvironmentReport
from nemo_gym.servers.venvs import read_requirements, unmet


def check_environments(overrides: Sequence[str]) -> int:
    """Play one environment, or all that can be played here."""
    if any(override.lstrip("+").startswith("config_paths=") for override in overrides):
        raise UsageError(
            "config_paths has no meaning here: an environment is named by its folder",
            hint="ng_check_environment +entrypoint=resources_servers/<name> [+config=<file>]",
        )
    config = read_parameters(CheckEnvironmentConfig, overrides)
    if config.entrypoint is not None:
        reports = [_check(find_server(config.entrypoint), config)]
    elif config.config or config.input_jsonl_fpath:
        raise UsageError("config and input_jsonl_fpath belong to one environment", hint="add +entrypoint=…")
    else:
        reports = [_check(folder, config) for folder in _playable()]
    if config.json_:
        console.emit(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        console.emit("\n\n".join(map(as_text, reports)))
    return ExitCode.ERROR if any(report.must_be_fixed for report in reports) else ExitCode.OK


def _playable() -> Iterator[ServerFolder]:
    for folder in find_servers():
        if folder.type != RESOURCES_SERVERS or not (folder.path / "data" / "example.jsonl").is_file():
            continue
        if missing := unmet(read_requirements(folder.path)):
            console.warn(f"{folder} is not played: it needs {', '.join(missing)}")
        else:
            yield folder


def _check(folder: ServerFolder, config: CheckEnvironmentConfig) -> EnvironmentReport:
    if missing := unmet(read_requirements(folder.path)):
        packages = " ".join(map(repr, missing))
        raise ConfigError(f"{folder} needs {', '.join(missing)}", hint=f"pip install {packages}")
    tasks = Path(config.input_jsonl_fpath or folder.path / "data" / "example.jsonl")
    rows = [task.fields for task in read_tasks(tasks, config.limit)]
    saved = folder.path / "data" / "example_rollouts.jsonl"
    is_recorded = saved.is_file() and config.input_jsonl_fpath is None
    recorded = [task.fields for task in read_tasks(saved, config.limit)] if is_recorded else []
    with _only_errors_logged():
        return run_async(check_environment(_configuration(folder, config.config), rows, recorded=recorded))


def _configuration(folder: ServerFolder, chosen: str | None) -> DictConfig:
    path = Path(chosen) if chosen else folder.path / "configs" / f"{folder.name}.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no configuration {path}", hint="name one with +config=…")
    return GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            overrides=[f"+config_paths=[{quote(str(path))}]"],
            initial_global_config_dict=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT,
        )
    )


@contextmanager
def _only_errors_logged() -> Iterator[None]:
    """Hide warnings, because players make mistakes on purpose and servers log them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def as_text(report: EnvironmentReport) -> str:
    """Lay out a report as text."""
    lines = [f"{report.environment}: {report.rows} rows played, {report.rows_solved} solved by what they expect"]
    if report.players:
        rows = [
            (each.player, str(each.rollouts), str(each.failed), *map(_figure, (each.mean, each.lowest, each.highest)))
            for each in report.players
        ]
        lines.append(console.table(("Player", "Rollouts", "Failed", "Mean", "Lowest", "Highest"), rows, indent="  "))
    if report.verify_p95_s is not None and report.longest_block_s is not None:
        took, blocked = report.verify_p95_s * 1000, report.longest_block_s * 1000
        lines.append(f"  verification: {took:.1f} ms (p95); the event loop was blocked for {blocked:.0f} ms at most")
    lines += [f"  {finding}" for finding in report.findings] or ["  nothing to report"]
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
