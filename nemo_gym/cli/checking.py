"""The checkers: ``ng_validate``, ``ng_check_folder`` and ``ng_check_environment``. ``ng_test`` is in ``testing``.

Each makes a value of its subject and reports what a list of checks finds in it. Exit code 1 says that something must be
fixed; warnings leave it at 0.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from omegaconf import DictConfig

from nemo_gym.api.choices import Choice, choose_environment, task_file
from nemo_gym.audit.environment_checks import check_environment
from nemo_gym.audit.findings import CheckReport, Finding, Severity, count_errors, counted, examine
from nemo_gym.audit.hosted_environment import EnvironmentSubject
from nemo_gym.audit.inspection import CONFIGURATION_CHECKS, FOLDER_CHECKS, configured_servers
from nemo_gym.audit.players import Row
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments, bare_words, with_files
from nemo_gym.cli.named_environments import named_environments
from nemo_gym.cli.parameters import (
    CheckEnvironmentConfig,
    CheckFolderConfig,
    ValidateConfig,
    build,
    read_configuration,
    read_parameters,
)
from nemo_gym.cli.signals import run_async
from nemo_gym.cli.testing import ServerFolder, find_server, find_servers
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.locate import find_readable, server_directory
from nemo_gym.errors import ConfigError, ExitCode, UsageError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.io.files import user_cache
from nemo_gym.prompt import PromptConfig, apply_prompt_to_row, load_prompt_config
from nemo_gym.rollouts.tasks import has_input, read_tasks
from nemo_gym.servers.venvs import read_requirements, unmet

_FOLDER: Final = re.compile(rf"{RESOURCES_SERVERS}/[A-Za-z0-9_]+/?")


def validate(arguments: Arguments) -> int:
    """Check everything that can be checked before a server starts."""
    config = read_configuration(ValidateConfig, named_environments(arguments).arguments, needs_model=False)
    names = [server.name for server in configured_servers(config)]
    findings = examine(config, CONFIGURATION_CHECKS)
    summary = f"✗ Config has {counted(findings)}." if count_errors(findings) else "✓ Config is valid."
    report = CheckReport("configuration", summary, findings, {"servers": names})
    console.note(f"servers: {', '.join(names) or '(none)'}")
    console.emit_report(report, as_json=build(ValidateConfig, config).json_)
    return report.exit_code


def check_folder(arguments: Arguments) -> int:
    """List everything in a server folder that will not work here."""
    config = read_parameters(CheckFolderConfig, with_files(arguments, "entrypoint", as_list=False))
    folder = find_readable(config.entrypoint) or Path(config.entrypoint)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="for example resources_servers/my_thing")
    findings = examine(folder, FOLDER_CHECKS)
    report = CheckReport(str(folder), f"{folder}: {counted(findings)}", findings)
    console.emit_report(report, as_json=config.json_)
    return report.exit_code


def check_environments(arguments: Arguments) -> int:
    """Play one environment, or all that can be played here."""
    if arguments.sets("config_paths"):
        raise UsageError(
            "config_paths has no meaning here: an environment is named by its folder or file",
            hint="ng_check_environment resources_servers/<name> [+config=<file>], or ng_check_environment <file>",
        )
    words = bare_words(arguments)
    if len(words) > 1:
        raise UsageError(f"{len(words)} environments are named: {' '.join(words)}", hint="name one of them, or none")
    if words and arguments.sets("entrypoint"):
        raise UsageError(f"an environment is named twice: {words[0]} and entrypoint", hint="leave out one of them")
    named = arguments.with_pairs({"entrypoint": words[0]}, without=words) if words else arguments
    config = read_parameters(CheckEnvironmentConfig, named)
    if config.entrypoint is not None:
        reports = [_check_named(config.entrypoint, config)]
    elif config.config or config.input_jsonl_fpath:
        raise UsageError("config and input_jsonl_fpath belong to one environment", hint="add +entrypoint=…")
    else:
        reports = [_check(folder, config) for folder in find_servers() if _is_playable(folder)]
    console.emit_report(reports, as_json=config.json_)
    return max((report.exit_code for report in reports), default=ExitCode.OK)


def _is_playable(folder: ServerFolder) -> bool:
    return folder.type == RESOURCES_SERVERS and (folder.path / "data" / "example.jsonl").is_file()


def _check_named(entrypoint: str, config: CheckEnvironmentConfig) -> CheckReport:
    """Play an environment that is named by its folder, its configuration or its file."""
    if _FOLDER.fullmatch(entrypoint):
        return _check(find_server(entrypoint), config)
    choice = choose_environment(entrypoint)
    if choice.config_paths and (folder := _own_folder(Path(choice.config_paths[0]))) is not None:
        return _check(folder, config.model_copy(update={"config": config.config or choice.config_paths[0]}))
    if config.config:
        raise UsageError(f"config belongs to a folder, and {entrypoint} is a file", hint="leave out +config")
    with _only_errors_logged():
        return run_async(check_environment(_chosen_subject(choice, config), attack=config.attack))


def _own_folder(path: Path) -> ServerFolder | None:
    """The folder of the resources server whose configuration this is, if it is the one that its name stands for."""
    folder = (find_readable(path) or path).resolve().parents[1]
    is_found = folder.parent.name == RESOURCES_SERVERS and server_directory(*folder.parts[-2:]).resolve() == folder
    return ServerFolder(RESOURCES_SERVERS, folder.name, folder) if is_found and path.parent.name == "configs" else None


def _check(folder: ServerFolder, config: CheckEnvironmentConfig) -> CheckReport:
    if missing := unmet(read_requirements(folder.path)):
        # Whoever checks all environments does not want to install what each of them needs.
        severity: Severity = "warning" if config.entrypoint is None else "error"
        hint = f"pip install {' '.join(map(repr, missing))}"
        finding = Finding(severity, "requirements", f"needs {', '.join(missing)}", hint)
        return CheckReport(folder.name, f"{folder.name}: {counted([finding])}; not played", [finding])
    with _only_errors_logged():
        return run_async(check_environment(_subject(folder, config), attack=config.attack))


def _subject(folder: ServerFolder, config: CheckEnvironmentConfig) -> EnvironmentSubject:
    """The environment in a folder, with its example data unless other tasks were given."""
    tasks = Path(config.input_jsonl_fpath or folder.path / "data" / "example.jsonl")
    saved = folder.path / "data" / "example_rollouts.jsonl"
    is_recorded = saved.is_file() and config.input_jsonl_fpath is None
    rows: list[Row] = [task.fields for task in read_tasks(tasks, config.limit)]
    more = folder.path / "data" / "validation.jsonl"
    if config.attack and config.input_jsonl_fpath is None and more.is_file():
        rows += _spread([task.fields for task in read_tasks(more)], config.limit - len(rows))
    recorded = [task.fields for task in read_tasks(saved, config.limit)] if is_recorded else []
    return EnvironmentSubject.of(_configuration(folder, config.config), rows, recorded)


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    """So many rows from all parts of a file, which may be sorted by difficulty."""
    return [rows[index * len(rows) // count] for index in range(min(count, len(rows)))] if count > 0 else []


def _chosen_subject(choice: Choice, config: CheckEnvironmentConfig) -> EnvironmentSubject:
    """An environment that is not a folder, with the tasks that it brings along unless others were given."""
    subject = EnvironmentSubject.of(_parsed(choice), [])
    tasks = task_file(
        config.input_jsonl_fpath,
        environment=choice.environment,
        config=subject.config,
        agent=subject.agent.name,
        folder=user_cache(os.environ) / "tasks",
    )
    rows = [task.fields for task in read_tasks(tasks, config.limit)]
    datasets = subject.agent.settings.get("datasets") or ()
    template = next((each["prompt_config"] for each in datasets if each.get("prompt_config")), None)
    prompt = load_prompt_config(template) if template else None
    return replace(subject, tasks=[row if not prompt or has_input(row) else _asked(row, prompt) for row in rows])


def _asked(row: Row, prompt: PromptConfig) -> Row:
    """A row of a benchmark with its prompt."""
    return apply_prompt_to_row(dict(row), prompt)


def _configuration(folder: ServerFolder, chosen: str | None) -> DictConfig:
    path = find_readable(chosen) or Path(chosen) if chosen else folder.path / "configs" / f"{folder.name}.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no configuration {path}", hint="name one with +config=…")
    return _parsed(Choice([str(path)]))


def _parsed(choice: Choice) -> DictConfig:
    return GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            overrides=[],
            pairs={**choice.values, "config_paths": choice.config_paths},
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
