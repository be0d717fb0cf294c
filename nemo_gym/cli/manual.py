"""Help: what a command does, its parameters with types and defaults, examples.

Everything shown comes from the table of commands and from the class of the command's parameters, so that it can't
differ from what the command really takes. Help that was asked for is data (stdout, exit code 0); help shown because
nothing was asked goes to stderr with exit code 1.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import fill
from typing import Final

from nemo_gym.cli import console
from nemo_gym.cli.command import Command
from nemo_gym.cli.commands import COMMANDS, GROUPS
from nemo_gym.cli.fields import Parameter, parameters_of
from nemo_gym.cli.invocation import HelpRequest
from nemo_gym.cli.outcome import Exit

FOOTER: Final = """\
Every command shows its parameters with --help and can be typed in three ways: ng_run, nemo_gym_run, ng env start.
Parameters are written +name=value. Quote what the shell would read: "+config_paths=[a.yaml,b.yaml]"."""


def show(request: HelpRequest) -> int:
    """Print the help that was asked for."""
    text = command_help(request.command) if request.command else overview(request.group)
    if request.asked:
        console.emit(text)
        return Exit.OK
    console.note(text)
    return Exit.ERROR


def overview(group: str = "") -> str:
    """List the commands of a group, or all, one line each."""
    chosen = [command for command in COMMANDS if not group or command.group == group]
    width = max(len(command.script) for command in chosen)
    sections = []
    for name, members in groupby(chosen, key=lambda command: command.group):
        lines = (f"  {command.script.ljust(width)}  {command.summary}" for command in members)
        sections.append(_titled(GROUPS[name], lines))
    return "\n".join(["Rollout Gym: collects scored rollouts of LLM agents.", *sections, "", FOOTER])


def command_help(command: Command) -> str:
    """Everything about one command."""
    return "\n".join(_paragraphs(command))


def _paragraphs(command: Command) -> Iterator[str]:
    yield f"{console.paint(command.script, 'bold')}: {command.summary}"
    yield f"\nAlso typed {', '.join(command.spellings[1:])}."
    if described := command.load_parameters():
        parameters = parameters_of(described)
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
