"""Writes the list of commands in ``docs/commands.md``: ``python -m nemo_gym.cli.reference docs/commands.md``.

The text above the marker is written by hand and kept; everything below it comes from the table of commands, so that the
document can't be wrong about a name, a type or a default.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nemo_gym.cli.command import Command
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.fields import parameters_of

MARKER: Final = "<!-- The rest of this file is made by `python -m nemo_gym.cli.reference docs/commands.md`. -->\n"


def reference() -> str:
    """All commands as Markdown."""
    return "\n".join(line for command in COMMANDS for line in _section(command))


def updated(document: str) -> str:
    """The document with its generated part made anew."""
    return document.partition(MARKER)[0] + MARKER + "\n" + reference()


def _section(command: Command) -> Iterator[str]:
    yield f"## {command.script}\n"
    yield f"{command.summary}\n"
    yield f"Also typed {', '.join(f'`{spelling}`' for spelling in command.spellings[1:])}.\n"
    yield "```bash"
    yield from command.examples
    yield "```\n"
    if described := command.load_parameters():
        yield "| parameter | type | default | |"
        yield "|---|---|---|---|"
        for parameter in parameters_of(described):
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
