import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from nemo_gym import PARENT_DIR
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.manual import parameters_of, type_text, updated, value_text
from nemo_gym.errors import ExitCode


class Inner(BaseModel):
    host: str
    port: int = 1


class Example(BaseModel):
    optional: int | None = Field(default=None, description="A number\n   or none.")
    required: str
    short: bool = Field(default=True, alias="renamed")


def test_required_parameters_come_first_under_the_names_people_type():
    assert [(p.name, p.type, p.required, p.default, p.description) for p in parameters_of(Example)] == [
        ("required", "str", True, "", ""),
        ("optional", "int or null", False, "null", "A number or none."),
        ("renamed", "bool", False, "true", ""),
    ]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int or null"),
        (Literal["a", "b"], "a | b"),
        (list[str], "list of str"),
        (dict[str, Any], "dict"),
        (Annotated[int, Field(ge=1)] | None, "int or null"),
        (Inner, "{host: str, port: int}"),
        (Any, "any"),
        (list, "list"),
    ],
)
def test_types_are_named_in_plain_words(annotation, text):
    assert type_text(annotation) == text


def test_values_are_shown_the_way_they_are_typed():
    shown = [value_text(value) for value in (None, True, 1.5, "text", "", [], {}, Inner(host="h"))]
    assert shown == ["null", "true", "1.5", "text", '""', "[]", "{}", '{"host": "h", "port": 1}']


def test_help_lists_every_command_with_one_line(run):
    ran = run("ng_help")
    assert (ran.code, ran.err) == (0, "")
    for command in COMMANDS:
        assert any(line.split()[:1] == [command.script] and command.summary in line for line in ran.out.splitlines())


def test_help_of_a_group_lists_its_commands_only(run):
    ran = run("ng", "eval", "--help")
    assert ran.code == 0
    assert "ng_collect_rollouts" in ran.out
    assert "ng_run " not in ran.out


@pytest.mark.parametrize("argv", [("ng",), ("gym", "env")])
def test_no_command_at_all_shows_help_as_a_reminder(run, argv):
    ran = run(*argv)
    assert (ran.code, ran.out) == (1, "")
    assert "ng_run" in ran.err


def test_help_takes_no_parameters(run):
    ran = run("ng_help", "+verbose=true")
    assert ran.code == 2
    assert ran.err == "error: ng_help takes no parameters\n\nhint: for one command: ng_collect_rollouts --help\n"


@pytest.mark.parametrize("word", ["-h", "--help", "+h=true", "+help=true"])
def test_help_of_a_command_shows_parameters_and_examples(run, word):
    ran = run("ng_test_all", word)
    assert (ran.code, ran.err) == (0, "")
    assert "+num_shards=<int>  (default 1)" in ran.out
    assert "Divide the servers into this many parts" in ran.out
    assert "ng_test_all +num_shards=4 +shard_index=0" in ran.out
    assert "nemo_gym_test_all, ng env test-all, ng test_all" in ran.out


def test_help_tells_required_parameters_and_flags(run):
    ran = run("ng", "env", "packages", "-h")
    assert "+entrypoint=<str>  (required)" in ran.out
    assert "--resources-server" in ran.out


def test_help_of_open_ended_commands_mentions_other_keys(run):
    assert "++a.b=value" in run("ng_run", "-h").out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_working_help(run, command):
    ran = run(command.script, "--help")
    assert (ran.code, ran.err) == (0, "")
    for example in command.examples:
        assert example in ran.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_parameter_is_described(command):
    described = command.load_parameters()
    undescribed = [p.name for p in parameters_of(described) if not p.description] if described else []
    assert undescribed == []


DOCUMENT = PARENT_DIR / "docs" / "commands.md"


def test_every_command_is_documented():
    documented = re.findall(r"^## (ng_\w+)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [command.script for command in COMMANDS]


def test_the_document_agrees_with_the_table_of_commands():
    document = DOCUMENT.read_text("utf-8")
    assert document == updated(document), "run: python -m nemo_gym.cli.manual docs/commands.md"


def test_exit_codes_are_documented():
    documented = re.findall(r"^\| (\d+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [str(code.value) for code in ExitCode]
