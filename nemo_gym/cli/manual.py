"""Help and versions: what a command does, its parameters, its examples; ``ng_help`` and ``ng_version``.

Everything comes from the table of commands and from the pydantic class of the command's parameters, so help can't
differ from what the command really takes. This module does not import pydantic, so that listing the commands stays
quick. Help that was requested is data (stdout, exit code 0); help shown because no command was given goes to stderr
with exit code 1.
"""

import inspect
import json
import os
import platform
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module, metadata
from itertools import groupby
from operator import attrgetter
from textwrap import fill
from typing import Any, Final, Literal, Union, get_args, get_origin

from nemo_gym import INSTALL_DIR, __version__
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments, Command, HelpRequest
from nemo_gym.cli.commands import COMMANDS, GROUPS
from nemo_gym.config.keys import CONFIG_PATHS
from nemo_gym.errors import ExitCode, UsageError, did_you_mean


# ---- parameters ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as shown in help."""

    name: str
    type: str
    required: bool
    default: str
    description: str
    section: str = ""  # the heading it stands under, besides those of the command itself


def all_parameters(command: Command, described: type[Any]) -> list[Parameter]:
    """The parameters, with ``config_paths`` if the command reads files, which it does before its own parameters."""
    own = parameters_of(described)
    if not any(flag.parameter == CONFIG_PATHS for flag in command.flags) or CONFIG_PATHS in {each.name for each in own}:
        return own
    field = import_module("nemo_gym.cli.parameters").ConfigurationConfig.model_fields[CONFIG_PATHS]
    required = sum(each.required for each in own)  # they come first
    return [*own[:required], _parameter(CONFIG_PATHS, field, section=""), *own[required:]]


def parameters_of(described: type[Any]) -> list[Parameter]:
    """The parameters of the command itself, required ones first, then those of each class of options that it takes."""
    classes = [each for each in described.__mro__ if hasattr(each, "model_fields")]
    declared = {each: inspect.get_annotations(each) for each in classes}
    by_class: dict[type, list[Parameter]] = {each: [] for each in classes}
    for name, field in described.model_fields.items():
        if name in removed_from(described):
            continue
        owner = next(each for each in classes if name in declared[each])
        by_class[owner].append(_parameter(field.alias or name, field, section=vars(owner).get("help_section", "")))
    parameters = [parameter for each in classes for parameter in by_class[each]]
    return sorted(parameters, key=lambda parameter: (bool(parameter.section), not parameter.required))


def removed_from(described: type[Any]) -> Mapping[str, str]:
    """Parameters that the class of a command names as removed, each with what to use instead."""
    return getattr(described, "removed", {})


def type_text(annotation: Any) -> str:
    """Name a type in terms of the command line: ``int or null``, ``a | b``, ``list of str``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(type_text(argument) for argument in arguments)
    if hasattr(annotation, "__metadata__"):
        return type_text(arguments[0])
    if origin in {list, Sequence, tuple, set, frozenset}:
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    if origin in {dict, Mapping}:
        return "dict"
    return _plain_type(annotation)


def _plain_type(annotation: Any) -> str:
    if annotation in {Any, None, types.NoneType}:
        return "any" if annotation is Any else "null"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(str(member.value) for member in annotation)
    fields: Mapping[str, Any] | None = getattr(annotation, "model_fields", None)
    if fields is not None:
        return "{" + ", ".join(f"{name}: {type_text(field.annotation)}" for name, field in fields.items()) + "}"
    return str(getattr(annotation, "__name__", annotation))


def _parameter(name: str, field: Any, *, section: str) -> Parameter:
    required = field.is_required()
    default = "" if required else value_text(field.get_default(call_default_factory=True))
    description = " ".join((field.description or "").split())
    return Parameter(name, type_text(field.annotation), required, default, description, section)


def value_text(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value.model_dump() if hasattr(value, "model_dump") else value, default=str)


# ---- help on the terminal --------------------------------------------------------------------------------------------
FOOTER: Final = """\
Every command shows its parameters with --help and can be typed in three ways: ng_run, nemo_gym_run, ng env start.
Parameters are written +name=value. Quote special characters of the shell: "+config_paths=[a.yaml,b.yaml]"."""


def show(request: HelpRequest) -> int:
    """Print the help that was requested."""
    text = command_help(request.command) if request.command else overview(request.group)
    if request.requested:
        console.emit(text)
        return ExitCode.OK
    console.note(text)
    return ExitCode.ERROR


def show_help(arguments: Arguments) -> int:
    """List all commands, or explain the command or the group that is named."""
    if any("=" in word for word in arguments.overrides):
        raise UsageError("ng_help takes no parameters", hint="for one command: ng_collect_rollouts --help")
    wanted = " ".join(arguments.overrides)
    if wanted in GROUPS:
        return show(HelpRequest(group=wanted))
    spellings = {name: command for command in COMMANDS for name in (command.name, command.path, *command.spellings)}
    if wanted in spellings:
        return show(HelpRequest(spellings[wanted]))
    known = [*(command.name for command in COMMANDS), *filter(None, GROUPS)]
    raise UsageError(f"unknown command {wanted}", hint=did_you_mean(wanted, known, available="Commands"))


def overview(group: str = "") -> str:
    """List the commands of a group, or all commands, one line each."""
    chosen = [command for command in COMMANDS if not group or command.group == group]
    width = max(len(command.script) for command in chosen)
    sections = []
    for name, members in groupby(chosen, key=lambda command: command.group):
        lines = (f"  {command.script.ljust(width)}  {command.summary}" for command in members)
        sections.append(_titled(GROUPS[name], lines))
    return "\n".join(["Rollout Gym: collects scored rollouts of LLM agents.", *sections, "", FOOTER])


def command_help(command: Command) -> str:
    """The help page of one command."""
    return "\n".join(_paragraphs(command))


def _paragraphs(command: Command) -> Iterator[str]:
    yield f"{console.paint(command.script, 'bold')}: {command.summary}"
    yield f"\nOther spellings: {', '.join(command.spellings[1:])}."
    if described := command.load_parameters():
        for section, parameters in groupby(all_parameters(command, described), key=attrgetter("section")):
            yield _titled(section or "Parameters", map(_parameter_lines, parameters))
        if command.open_ended:
            yield "\n  Any other key of the configuration can be set the same way, nested keys with dots: ++a.b=value"
    if command.flags:
        yield _titled("Flags", [console.columns((", ".join(flag.names), flag.meaning) for flag in command.flags)])
    yield _titled("Examples", (f"  {example}" for example in command.examples))


def _titled(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"\n{console.paint(title, 'bold')}", *lines])


def _parameter_lines(parameter: Parameter) -> str:
    default = "required" if parameter.required else f"default {parameter.default}"
    head = f"  +{parameter.name}=<{parameter.type}>  ({default})"
    indent = " " * 6
    return f"{head}\n{fill(parameter.description, 100, initial_indent=indent, subsequent_indent=indent)}"


# ---- versions --------------------------------------------------------------------------------------------------------
DEPENDENCIES: Final = ("aiohttp", "fastapi", "hydra-core", "numpy", "omegaconf", "openai", "pydantic", "ray", "uvicorn")


def version(arguments: Arguments) -> int:
    """Show versions and the machine, as text or JSON."""
    console.emit(_version_json() if _wants_json(arguments) else _version_text())
    return ExitCode.OK


def _wants_json(arguments: Arguments) -> bool:
    if not arguments:
        return False  # parsing takes most of the start-up time, and there is nothing to parse
    parameters = import_module("nemo_gym.cli.parameters")
    return bool(parameters.read_parameters(parameters.VersionConfig, arguments).json_)


def _version_json() -> str:
    facts = {"nemo_gym": __version__, "python": platform.python_version(), "python_path": sys.executable}
    packages = {name: _installed(name) for name in DEPENDENCIES}
    machine = {name: find_out() for name, _, find_out in _MACHINE}
    places = {"installation_path": str(INSTALL_DIR), "dependencies": packages, "system": machine}
    return json.dumps({**facts, **places}, indent=2)


def _version_text() -> str:
    def indented(facts: Iterable[tuple[str, Any]], unknown: str) -> Iterator[str]:
        return (f"  {title}: {unknown if fact is None else fact}" for title, fact in facts)

    machine = [(title, find_out()) for _, title, find_out in _MACHINE]
    memory = f"{machine[-1][1]} GB" if machine[-1][1] else None
    return "\n".join(
        (
            f"Rollout Gym v{__version__}, with the interface of NeMo Gym",
            f"Python {platform.python_version()} ({sys.executable})",
            f"Installation: {INSTALL_DIR}",
            "\nKey Dependencies:",
            *indented(((name, _installed(name)) for name in DEPENDENCIES), "not installed"),
            "\nSystem:",
            *indented([*machine[:-1], (machine[-1][0], memory)], "unknown"),
        )
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _memory_gb() -> float | None:
    """Memory of the machine, or None where the system does not report it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 2)
    except (AttributeError, ValueError, OSError):
        return None


# Facts about the machine: the key in JSON, the title in text, and the function that finds it out.
_MACHINE: Final[tuple[tuple[str, str, Callable[[], str | int | float | None]], ...]] = (
    ("os", "OS", lambda: f"{platform.system()} {platform.release()}"),
    ("platform", "Platform", platform.platform),
    ("architecture", "Architecture", platform.machine),
    ("processor", "Processor", lambda: platform.processor() or "unknown"),
    ("cpus", "CPUs", os.cpu_count),
    ("memory_gb", "Memory", _memory_gb),
)
