"""``ng_viewer`` as people type it."""

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from nemo_gym.cli.main import main
from tests.forked_commands import ForkedCommands

Type = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Type:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["ng_viewer", *arguments])
        return code, *capfd.readouterr()

    return run


def get(url: str) -> dict:
    with build_opener(ProxyHandler({})).open(url, timeout=10) as reply:
        return json.loads(reply.read())


def test_it_prints_the_address_serves_and_ends_in_order(write, record, tmp_path, commands: ForkedCommands):
    write("a.jsonl", [record()])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with commands.start("ng_viewer", "+jsonl_fpath=a.jsonl", f"+server_port={port}", folder=tmp_path) as viewer:
            assert viewer.read_until("Ctrl-C ends the viewer").startswith("1 rollout, 0 failures")
            url = viewer.out.strip()
            assert url.startswith("http://127.0.0.1:")
            assert int(url.rstrip("/").rpartition(":")[2]) > port
            assert get(f"{url}api/state")["files"][0]["rollouts"] == 1
            ended = viewer.interrupt()
            assert ended.code == 0
            assert "Traceback" not in ended.err


def test_a_file_to_send_is_written(write, record, command, tmp_path):
    write("a.jsonl", [record(0, number, float(number)) for number in range(2)])
    code, out, err = command("+jsonl_fpath=a.jsonl", "+export_html=out.html", '+filter="reward < 1"')
    assert (code, out) == (0, "out.html\n")
    assert "1 rollout," in err
    assert "rollout-gym-data" in (tmp_path / "out.html").read_text("utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ("a.jsonl", "b1.jsonl"),
        ("+jsonl_fpath=a.jsonl,b*.jsonl",),
        ("jsonl_fpath=a.jsonl,b1.jsonl",),
        ("+jsonl_fpath=[a.jsonl,b1.jsonl]",),
        ("-i", "a.jsonl", "-i", "b*.jsonl"),
        ("--input=a.jsonl", "--input=b1.jsonl"),
    ],
)
def test_files_may_be_typed_in_any_of_these_ways(write, record, command, tmp_path, arguments):
    write("a.jsonl", [record(0, 0)])
    write("b1.jsonl", [record(1, 0)])
    write("b1_failures.jsonl", [record(1, 1)])
    code, out, err = command(*arguments, "+export_html=out.html")
    assert (code, out) == (0, "out.html\n"), err
    assert "3 rollouts" in err


def test_the_viewer_can_be_started_before_there_is_a_file(write, record, tmp_path, commands: ForkedCommands):
    with commands.start("ng_viewer", "results/run.jsonl", "+server_port=0", folder=tmp_path) as viewer:
        assert "nothing is at results/run.jsonl yet" in viewer.read_until("Ctrl-C ends the viewer")
        url = viewer.out.strip()
        assert get(f"{url}api/state")["files"] == []
        assert get(f"{url}api/overview")["rollouts"] == 0
        assert get(f"{url}api/rollouts")["total"] == 0
        write("results/run.jsonl", [record()])
        for _ in range(1000):
            files = get(f"{url}api/state")["files"]
            if files and files[0]["rollouts"] == 1:
                break
            time.sleep(0.02)
        assert get(f"{url}api/rollouts")["total"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("+jsonl_fpath=.", "+export_html=x.html"), 1, ". is a folder"),
        (("+jsonl_fpath=none.jsonl", "+export_html=x.html"), 1, "none.jsonl: no such file"),
        (("+jsonl_fpath=empty.jsonl", "+export_html=x.html"), 1, "empty.jsonl is empty"),
        (("a.jsonl", "+jsonl_fpath=[a.jsonl]"), 2, "files are given in two ways"),
        (("a.jsonl", "tui"), 2, "can't read 'tui'"),
        (("+jsonl_fpath=text.jsonl",), 1, "text.jsonl: not a file of JSON lines"),
        (("+jsonl_fpath=a.jsonl", "+export_html=x.html", '+filter="rewrad < 1"'), 1, "no column 'rewrad'"),
        (("+jsonl_fpath=a.jsonl", "+export_html=x.html", "+max_export_mb=0.00001"), 1, "only 0 of 1 rollouts fit"),
        (("+jsonl_fpath=a.jsonl", "+server_port=99999"), 2, "server_port"),
        (("+jsonl_fpath=a.jsonl", "+server_host=no.such.host.invalid"), 1, "can't listen on"),
        (("+jsonl_fpath=a.jsonl", "+server_host=192.0.2.1"), 1, "can't listen on"),
        (("+jsonl_fpath=a.jsonl", "+colour=red"), 2, "colour"),
    ],
)
def test_mistakes_are_explained(write, record, command, tmp_path, arguments, code, message):
    write("a.jsonl", [record()])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "text.jsonl").write_text("hello\n")
    found = command(*arguments)
    assert found[0] == code
    assert message in found[2]
    assert "Traceback" not in found[2]


def test_without_textual_the_terminal_viewer_says_what_to_install(write, record, tmp_path):
    write("a.jsonl", [record()])
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'textual' else find(name, *rest)\n"
    )
    program = [sys.executable, "-m", "nemo_gym.cli", "viewer", "+jsonl_fpath=a.jsonl", "+tui=true"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'rollout-gym[tui]'" in done.stderr


def test_the_terminal_viewer_opens_in_a_terminal_and_is_left_with_q(write, record, tmp_path):
    write("a.jsonl", [record(question="How far is it?")])
    master, slave = pty.openpty()
    program = [sys.executable, "-m", "nemo_gym.cli", "viewer", "+jsonl_fpath=a.jsonl", "+tui=true"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    with subprocess.Popen(program, cwd=tmp_path, env=environment, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        seen = b""
        while b"1 rows" not in seen:
            seen += os.read(master, 65536)
        os.write(master, b"q")
        with contextlib.suppress(OSError):  # how the end of a terminal shows
            while rest := os.read(master, 65536):
                seen += rest
        assert process.wait(20) == 0
    os.close(master)
    assert b"How far is it?" in seen


def test_without_a_file_all_runs_of_the_folder_are_listed(commands, write, record, tmp_path):
    write("results/deep/run.jsonl", [record()])
    with commands.start("ng_viewer", "+server_port=0", folder=tmp_path) as viewer:
        viewer.read_until("1 run;")
        with build_opener(ProxyHandler({})).open(f"{viewer.out.strip()}api/state") as reply:
            assert [run["name"] for run in json.load(reply)["runs"]] == ["deep/run.jsonl"]
