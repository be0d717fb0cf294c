import shlex

import pytest

from nemo_gym.cli.commands import COMMANDS, GROUPS
from nemo_gym.cli.invocation import HelpRequest, Invocation, read
from nemo_gym.cli.outcome import UsageError


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_spelling_of_a_command_means_the_same(command):
    for spelling in command.spellings:
        assert read(spelling.split()) == Invocation(command)


def test_names_may_be_typed_with_dashes():
    assert read(["ng", "collect-rollouts"]) == read(["ng_collect_rollouts"])


def test_both_roots_are_the_same():
    assert read(["gym", "env", "start"]) == read(["/usr/local/bin/ng", "env", "start"])


@pytest.mark.parametrize("word", ["-h", "--help", "+h=true", "+help=true", "++help=True", "help=true"])
def test_help_is_recognised_anywhere(word):
    request = read(["ng_run", "+config_paths=[a.yaml]", "--nonsense", word])
    assert isinstance(request, HelpRequest)
    assert request.command
    assert request.command.name == "run"


def test_help_for_everything_and_for_groups():
    assert read(["ng", "--help"]) == HelpRequest()
    assert read(["ng"]) == HelpRequest(asked=False)
    assert read(["ng", "env", "-h"]) == HelpRequest(group="env")
    assert read(["ng", "env"]) == HelpRequest(group="env", asked=False)


def test_version_is_also_a_flag():
    request = read(["ng", "--version", "--json"])
    assert isinstance(request, Invocation)
    assert (request.command.name, request.overrides) == ("version", ("+json=true",))


def test_every_command_has_a_group():
    assert {command.group for command in COMMANDS} == set(GROUPS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_examples_are_commands(command, workspace, monkeypatch):
    monkeypatch.chdir(__import__("nemo_gym").PARENT_DIR)
    for example in command.examples:
        assert read(shlex.split(example)).command in COMMANDS


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["ng_rnu"], "unknown command rnu", "Did you mean: 'run'"),
        (["ng", "collect_rollout"], "unknown command collect_rollout", "Did you mean: 'collect_rollouts'"),
        (["ng", "env", "strat"], "unknown command ng env strat", "Did you mean: 'start'"),
        (["ng", "qqqqqq"], "unknown command qqqqqq", "Commands: "),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(argv, message, hint):
    with pytest.raises(UsageError) as caught:
        read(argv)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")
