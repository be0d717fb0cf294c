import re

from nemo_gym import PARENT_DIR
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.reference import updated

DOCUMENT = PARENT_DIR / "docs" / "commands.md"


def test_every_command_is_documented():
    documented = re.findall(r"^## (ng_\w+)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [command.script for command in COMMANDS]


def test_the_document_agrees_with_the_table_of_commands():
    document = DOCUMENT.read_text("utf-8")
    assert document == updated(document), "run: python -m nemo_gym.cli.reference docs/commands.md"


def test_exit_codes_are_documented():
    documented = re.findall(r"^\| (\d+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [str(code.value) for code in Exit]
