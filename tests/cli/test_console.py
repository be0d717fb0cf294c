import io
import logging
import subprocess
import sys
import warnings

import pytest

from nemo_gym.cli import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_data_goes_to_stdout_and_everything_else_to_stderr(capsys):
    console.emit("data")
    console.note("a note")
    console.warn("careful")
    console.error("broken", hint="mend it")

    out, err = capsys.readouterr()
    assert out == "data\n"
    assert err == "a note\nwarning: careful\nerror: broken\n\nhint: mend it\n"


def test_an_error_without_a_hint_is_one_line(capsys):
    console.error("broken")
    assert capsys.readouterr().err == "error: broken\n"


def test_colour_is_used_on_a_terminal_only(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert console.paint("text", "red", stream=Terminal()) == "\x1b[31mtext\x1b[0m"
    assert console.paint("text", "red", stream=io.StringIO()) == "text"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_turned_off(monkeypatch, variable, value):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    assert console.paint("text", "red", stream=Terminal()) == "text"


def test_tables_are_legible_without_colour():
    table = console.table(("Server", "Time"), [("a", "1.0 s"), ("longer", "2.0 s")])
    assert table == "Server  Time\n------  -----\na       1.0 s\nlonger  2.0 s"


def test_a_table_may_have_no_rows():
    assert console.table(("A",), []) == "A\n-"


def test_log_records_are_shown_while_a_command_runs(capsys):
    logger = logging.getLogger("nemo_gym.somewhere")
    with console.logs():
        logger.debug("a detail")
        logger.info("started")
        logger.warning("slow")
        logger.error("lost")
        logging.getLogger("stranger").info("chatter")
        logging.getLogger("stranger").warning("trouble")
    logger.warning("after the command")

    assert capsys.readouterr().err == "started\nwarning: slow\nerror: lost\nwarning: trouble\n"


def test_warnings_of_python_are_shown_without_their_source(capsys):
    with warnings.catch_warnings(), console.logs():
        warnings.simplefilter("always")
        warnings.warn("an odd thing", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: an odd thing\n"


def test_details_are_logged_on_request(capsys):
    with console.logs():
        console.show_details()
        logging.getLogger("nemo_gym.somewhere").debug("a detail")
    assert capsys.readouterr().err == "a detail\n"


def test_a_reader_that_goes_away_ends_the_program_quietly():
    program = "from nemo_gym.cli import console\nfor _ in range(100_000): console.emit('line')"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == console.OUTPUT_CLOSED
