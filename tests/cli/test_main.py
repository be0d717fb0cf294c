import shlex
import signal
import socket
import subprocess
import sys
import tomllib

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.cli.command import HelpRequest
from nemo_gym.cli.commands import COMMANDS, GROUPS, scripts
from nemo_gym.cli.main import Invocation, read_command_line
from nemo_gym.errors import UsageError


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_spelling_of_a_command_means_the_same(command):
    for spelling in command.spellings:
        assert read_command_line(spelling.split()) == Invocation(command)


def test_names_may_be_typed_with_dashes():
    assert read_command_line(["ng", "collect-rollouts"]) == read_command_line(["ng_collect_rollouts"])


def test_both_roots_are_the_same():
    assert read_command_line(["gym", "env", "start"]) == read_command_line(["/usr/local/bin/ng", "env", "start"])


@pytest.mark.parametrize("word", ["-h", "--help", "+h=true", "+help=true", "++help=True", "help=true"])
def test_help_is_recognised_anywhere(word):
    request = read_command_line(["ng_run", "+config_paths=[a.yaml]", "--nonsense", word])
    assert isinstance(request, HelpRequest)
    assert request.command
    assert request.command.name == "run"


def test_help_for_everything_and_for_groups():
    assert read_command_line(["ng", "--help"]) == HelpRequest()
    assert read_command_line(["ng"]) == HelpRequest(requested=False)
    assert read_command_line(["ng", "env", "-h"]) == HelpRequest(group="env")
    assert read_command_line(["ng", "env"]) == HelpRequest(group="env", requested=False)


def test_version_is_also_a_flag():
    request = read_command_line(["ng", "--version", "--json"])
    assert isinstance(request, Invocation)
    assert (request.command.name, request.arguments.pairs) == ("version", {"json": True})


def test_every_command_has_a_group():
    assert {command.group for command in COMMANDS} == set(GROUPS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_examples_are_commands(command, workspace, monkeypatch):
    monkeypatch.chdir(__import__("nemo_gym").PARENT_DIR)
    for example in command.examples:
        assert read_command_line(shlex.split(example)).command in COMMANDS


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
        read_command_line(argv)
    assert message in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_the_package_installs_a_script_for_every_spelling():
    project = tomllib.loads((PARENT_DIR / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == scripts()


def test_commands_exist_where_the_table_says():
    for command in COMMANDS:
        assert callable(command.load_function())
        assert command.summary.endswith(".")


def test_an_unknown_command_is_a_usage_error(spawn):
    ran = spawn("ng", "colect_rollouts")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: unknown command colect_rollouts\n\nhint: Did you mean: 'collect_rollouts'")


def test_an_unknown_flag_is_a_usage_error(run):
    ran = run("ng_version", "--jsn")
    assert (ran.code, ran.err) == (2, "error: unknown flag --jsn\n\nhint: Did you mean: '--json'?\n")


def test_an_override_that_is_none_is_an_error_that_shows_the_form(run):
    ran = run("ng_version", "json")
    assert ran.code == 2
    assert "error: command line: can't read 'json'" in ran.err
    assert "+key=value" in ran.err


def test_missing_parameters_are_named_all_at_once_with_what_to_type(run):
    ran = run("ng_materialize_prompts")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: missing parameters: input_jsonl_fpath, prompt_config, output_jsonl_fpath\n\n"
        "hint: add +input_jsonl_fpath=<value> +prompt_config=<value> +output_jsonl_fpath=<value>\n"
    )


def test_invalid_values_are_one_line_each_with_the_type_expected(run):
    ran = run("ng_test_all", "+num_shards=many", "+shard_index=-1")
    assert (ran.code, ran.out) == (2, "")
    first, second, third, *_ = ran.err.splitlines()
    assert first == "error: invalid parameters:"
    assert second.startswith("  num_shards (expected int): ")
    assert third.startswith("  shard_index (expected int): ")


def test_interruption_has_its_own_exit_code(workspace):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        command = [sys.executable, "-m", "nemo_gym.cli", "status", f"+head_server={{host: 127.0.0.1, port: {port}}}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()  # now it waits for an answer
            with connection:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_ctrl_c_while_modules_load_prints_no_traceback():
    program = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "nemo_gym.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from nemo_gym.cli import start_program
sys.exit(start_program())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
