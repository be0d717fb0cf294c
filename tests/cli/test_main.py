import signal
import socket
import subprocess
import sys
import tomllib

from nemo_gym import PARENT_DIR
from nemo_gym.cli.commands import COMMANDS, scripts


def test_the_package_installs_a_script_for_every_spelling():
    project = tomllib.loads((PARENT_DIR / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == scripts()


def test_commands_exist_where_the_table_says():
    for command in COMMANDS:
        assert callable(command.load_function())
        assert command.summary.endswith(".")


def test_an_unknown_command_is_a_usage_error(spawn):
    ran = spawn("colect_rollouts")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: unknown command colect_rollouts\n\nhint: Did you mean: 'collect_rollouts'")


def test_an_unknown_flag_is_a_usage_error(run):
    ran = run("ng_version", "--jsn")
    assert (ran.code, ran.err) == (2, "error: unknown flag --jsn\n\nhint: Did you mean: '--json'?\n")


def test_an_override_that_is_none_is_an_error_that_shows_the_form(run):
    ran = run("ng_version", "json")
    assert ran.code == 1
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
