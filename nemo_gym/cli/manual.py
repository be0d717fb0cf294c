"""Help: what a command does, its parameters with types and defaults, and examples.

Everything comes from the table of commands and from the pydantic class of the command's parameters, so help can't
differ from what the command really takes. This module does not import pydantic, so that listing the commands stays
quick. Help that was asked for is data (stdout, exit code 0); help shown because no command was given goes to stderr
with exit code 1.

``python -m nemo_gym.cli.manual docs/commands.md`` writes the list of commands in that file. The text above the marker
is written by hand and kept; everything below it is generated.
"""

import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

from nemo_gym.cli import console
from nemo_gym.cli.command import Command, HelpRequest
from nemo_gym.cli.commands import COMMANDS, GROUPS
from nemo_gym.errors import ExitCode

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as shown in help."""

    name: str
    type: str
    required: bool
    default: str
    description: str


# Commands that host servers read these files before their own parameters, so no parameter class has this field.
CONFIG_PATHS: Final = Parameter(
    "config_paths",
    "list of str",
    required=False,
    default="[]",
    description='Configuration files, later ones win: "+config_paths=[a.yaml,b.yaml]". Looked for in the working '
    "directory, then in the installation.",
)


def _all_parameters(command: Command, described: "type[BaseModel]") -> list[Parameter]:
    own = parameters_of(described)
    reads_files = any(flag.parameter == CONFIG_PATHS.name for flag in command.flags)
    return own if not reads_files or CONFIG_PATHS.name in {each.name for each in own} else [*own, CONFIG_PATHS]


def parameters_of(described: "type[BaseModel]") -> list[Parameter]:
    """The parameters in order of definition, with the required ones first."""
    parameters = [_parameter(field.alias or name, field) for name, field in described.model_fields.items()]
    return sorted(parameters, key=lambda parameter: not parameter.required)


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


def _parameter(name: str, field: "FieldInfo") -> Parameter:
    required = field.is_required()
    default = "" if required else value_text(field.get_default(call_default_factory=True))
    return Parameter(name, type_text(field.annotation), required, default, " ".join((field.description or "").split()))


def value_text(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value.model_dump() if hasattr(value, "model_dump") else value, default=str)


FOOTER: Final = """\
Every command shows its parameters with --help and can be typed in three ways: ng_run, nemo_gym_run, ng env start.
Parameters are written +name=value. Quote special characters of the shell: "+config_paths=[a.yaml,b.yaml]"."""


def show(request: HelpRequest) -> int:
    """Print the help that was asked for."""
    text = command_help(request.command) if request.command else overview(request.group)
    if request.asked:
        console.emit(text)
        return ExitCode.OK
    console.note(text)
    return ExitCode.ERROR


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
        parameters = _all_parameters(command, described)
        yield _titled("Parameters", (_parameter_lines(parameter) for parameter in parameters))
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


MARKER: Final = "<!-- The rest of this file is generated by `python -m nemo_gym.cli.manual docs/commands.md`. -->\n"


def reference() -> str:
    """All commands as Markdown."""
    return "\n".join(line for command in COMMANDS for line in _section(command))


def updated(document: str) -> str:
    """The document with its generated part brought up to date."""
    return document.partition(MARKER)[0] + MARKER + "\n" + reference()


def _section(command: Command) -> Iterator[str]:
    yield f"## {command.script}\n"
    yield f"{command.summary}\n"
    yield f"Other spellings: {', '.join(f'`{spelling}`' for spelling in command.spellings[1:])}.\n"
    yield "```bash"
    yield from command.examples
    yield "```\n"
    if described := command.load_parameters():
        yield "| parameter | type | default | |"
        yield "|---|---|---|---|"
        for parameter in _all_parameters(command, described):
            default = "**required**" if parameter.required else f"`{parameter.default}`"
            cells = (f"`{parameter.name}`", _cell(f"`{parameter.type}`"), _cell(default), _cell(parameter.description))
            yield f"| {' | '.join(cells)} |"
        yield ""
    if command.open_ended:
        yield "Any other key of the configuration can be set the same way, nested keys with dots: `++a.b=value`.\n"
    if command.flags:
        flags = (f"`{', '.join(flag.names)}` {_shown(flag.meaning)}" for flag in command.flags)
        yield f"Flags: {'; '.join(flags)}.\n"


def _shown(meaning: str) -> str:
    return f"= `{meaning}`" if meaning.startswith("+") else f"({meaning})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text("utf-8")), "utf-8")
