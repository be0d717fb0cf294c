"""Commands in a pseudo-terminal: what a person sees on a screen of so many columns, and what Ctrl-C does there."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from conftest import MockModel

SCRIPTS = Path(sys.executable).parent
PATIENCE_S = 120
EXAMPLE = "resources_servers/example_single_tool_call"
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIG_PATHS = f"+config_paths=[{EXAMPLE}/configs/example_single_tool_call.yaml,{MODEL_CONFIG}]"
COLLECT = (
    "ng_collect_rollouts",
    "+agent_name=example_single_tool_call_simple_agent",
    f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl",
    "+output_jsonl_fpath=results/example_single_tool_call_rollouts.jsonl",
)
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+")
CTRL_C = b"\x03"


def screen_of(text: str, columns: int) -> list[str]:
    """The lines that a terminal of this width shows after the text, with everything that scrolled away."""
    lines, row, column = [""], 0, 0
    for token in CONTROL.findall(text):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            if token.endswith("K"):
                lines[row] = lines[row][:column]
            elif token.endswith("A"):
                row -= int(token[2:-1] or 1)
        else:
            for character in token:
                if column == columns:
                    row, column = row + 1, 0
                    lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
    return [line.rstrip() for line in lines]


@dataclass
class Window:
    """A terminal in which one command runs."""

    process: subprocess.Popen[bytes]
    master: int
    columns: int
    text: str = ""
    _seen: bytes = field(default=b"", repr=False)

    @property
    def screen(self) -> list[str]:
        return screen_of(self.text, self.columns)

    def read_until(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            assert self._read(), self.text[-2000:]

    def wait(self) -> int:
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], PATIENCE_S)
        try:
            chunk = os.read(self.master, 65536) if ready else b""
        except OSError:  # the last process that had the terminal has ended
            chunk = b""
        self._seen += chunk
        self.text = self._seen.decode("utf-8", "replace")
        return bool(chunk)


@contextmanager
def window(folder: Path, *command: str, columns: int = 80) -> Iterator[Window]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM_", "COLUMNS"))}
    process = subprocess.Popen(
        [SCRIPTS / command[0], *command[1:]],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=folder,
        env=environment | {"TERM": "xterm", "XDG_RUNTIME_DIR": str(folder), "NO_COLOR": "1"},
        start_new_session=True,
        # So that Ctrl-C becomes a signal. No other thread of the tests starts processes.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(slave)
    try:
        yield Window(process, master, columns)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)


@pytest.fixture
def folder(tmp_path: Path, mock_model: "MockModel") -> Path:
    (tmp_path / "env.yaml").write_text(
        f"policy_base_url: {mock_model.base_url}\npolicy_api_key: none\npolicy_model_name: mock-model\n"
        f"head_server: {{host: 127.0.0.1, port: {free_port()}}}\n"
    )
    return tmp_path


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_warnings_have_lines_of_their_own_above_the_bar(folder: Path, mock_model: "MockModel", columns: int) -> None:
    mock_model.set(latency="20", error_rate=0.2, seed=1)
    with window(folder, *COLLECT, CONFIG_PATHS, "+num_repeats=8", columns=columns) as terminal:
        assert terminal.wait() == 0, terminal.text

    warnings = [line for line in terminal.screen if "warning" in line]
    assert warnings
    assert all(line.startswith("warning: ") for line in warnings)
    bars = [line for line in terminal.screen if "Collecting rollouts" in line]
    assert len(bars) == 1
    assert re.match(r"Collecting rollouts: 100%\|.*\| 40/40 \[", bars[0])
    assert len(bars[0]) <= columns
    assert "reward=1.000" in bars[0]
    assert bars[0].endswith("]")  # nothing was cut off
    assert ("running=" in bars[0]) == (columns > 80)


SCRIPT = """
import nemo_gym

run = nemo_gym.collect("example_single_tool_call", model="openai:mock", base_url="URL", api_key="none", repeats=8)
"""


@pytest.mark.parametrize("way", ["script", "workers"])
def test_whoever_warns_does_it_above_the_bar(folder: Path, mock_model: "MockModel", way: str) -> None:
    mock_model.set(latency="20", error_rate=0.3, seed=1)
    (folder / "script.py").write_text(SCRIPT.replace("URL", mock_model.base_url))
    command = ("python", "script.py") if way == "script" else (*COLLECT, CONFIG_PATHS, "+num_repeats=8", "+workers=2")
    with window(folder, *command) as terminal:
        assert terminal.wait() == 0, terminal.text

    assert any(re.match(r"\d+ retr(y|ies) so far, the last: ", line) for line in terminal.screen), terminal.text
    bars = [line for line in terminal.screen if "Collecting rollouts" in line]
    assert len(bars) == 1
    assert re.match(r"Collecting rollouts: 100%\|.*\| 40/40 \[.*\]$", bars[0])


def test_the_tutorial_in_two_terminals_of_80_columns(folder: Path) -> None:
    with window(folder, "ng_run", CONFIG_PATHS) as servers:
        servers.read_until("Ctrl-C stops everything")
        with window(folder, "ng_status") as status:
            assert status.wait() == 0
        assert "3 servers found (3 healthy, 0 unhealthy)" in status.screen
        with window(folder, *COLLECT, "+limit=5", "+num_repeats=2", "+num_samples_in_parallel=3") as first:
            assert first.wait() == 0, first.text
        with window(folder, *COLLECT, "+limit=2") as second:
            assert second.wait() == 0, second.text
        servers.type(CTRL_C)
        assert servers.wait() == 0
    assert "10 of 10 rollouts completed" in first.screen
    assert "2 of 2 rollouts completed" in second.screen
    assert any("rollouts.jsonl.backup-1" in line for line in second.screen)
    assert servers.screen[-2] == "NeMo Gym finished!"
    assert "Traceback" not in servers.text + first.text + second.text


def test_ctrl_c_drains_and_says_how_to_go_on(folder: Path, mock_model: "MockModel") -> None:
    mock_model.set(latency="300")
    with window(folder, *COLLECT, CONFIG_PATHS, "+num_repeats=40", "+num_samples_in_parallel=4") as terminal:
        terminal.read_until(r" [1-9]\d*/200 ")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130, terminal.text
    assert "Traceback" not in terminal.text
    assert any("+resume_from_cache=true" in line for line in terminal.screen)


def test_a_paused_run_says_on_a_narrow_terminal_how_long_it_waits(folder: Path, mock_model: "MockModel") -> None:
    limits = ("+patience_s=2", "++policy_model.responses_api_models.openai_model.max_retries=0")
    mock_model.set(error_rate=1)
    with window(folder, *COLLECT, CONFIG_PATHS, *limits) as terminal:
        assert terminal.wait() == 3, terminal.text
    shown = "Collecting rollouts: 0/5, paused, gives up in "
    paused = [line for line in re.split(r"[\r\n]+", terminal.text) if line.startswith(shown)]
    assert paused
    assert all(line.rstrip().endswith("Ctrl-C loses nothing") for line in paused)
