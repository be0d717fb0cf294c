"""``ng_run`` as a real process, with real servers in it."""

import importlib.util
import json
import os
import signal
import socket
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest
from omegaconf import OmegaConf

import nemo_gym.cli
from nemo_gym.cli.signals import run_async
from nemo_gym.global_config import GlobalConfigDictParserConfig
from nemo_gym.server_utils import get_server_url
from nemo_gym.servers.supervision import ServerCrashedError
from tests.forked_commands import ForkedCommand
from tests.ports import free_port

SERVER = """\
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer


class Echo(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Echo.run_webserver()
"""
CRASHING = "print('about to fail'); raise SystemExit('no luck today')\n"
MORTAL = """\
import http.server, os, yaml


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        self.send_response(204)
        self.end_headers()


settings = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])["mortal"]["resources_servers"]["mortal"]
http.server.HTTPServer((settings["host"], settings["port"]), Handler).serve_forever()
"""
STUBBORN = """\
import http.server, os, signal, threading, yaml

signal.signal(signal.SIGINT, signal.SIG_IGN)
settings = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])["stubborn"]["resources_servers"]["stubborn"]
threading.Thread(target=lambda: (os.read(int(os.environ["NEMO_GYM_PARENT_FD"]), 1), os._exit(0))).start()
http.server.HTTPServer((settings["host"], settings["port"]), http.server.BaseHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
def head_port() -> int:
    return free_port()


@pytest.fixture
def head(head_port: int) -> str:
    return f"+head_server={{host: 127.0.0.1, port: {head_port}}}"


def add_server(name: str, code: str, **settings: object) -> str:
    """Write a server folder and a configuration for it, and return the configuration's name."""
    folder = Path("resources_servers") / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(code)
    (folder / "requirements.txt").touch()
    block = {"entrypoint": "app.py", "domain": "other", **settings}
    Path(f"{name}.yaml").write_text(json.dumps({name: {"resources_servers": {name: block}}}))
    return f"{name}.yaml"


@pytest.fixture
def running(workspace, commands):
    def start(*argv: str) -> ForkedCommand:
        # Servers in processes of their own import their folder as others do.
        return commands.start("ng_run", *argv, environment={**os.environ, "PYTHONPATH": str(workspace)})

    return start


def test_servers_are_announced_found_and_stopped(running, head, run):
    config = add_server("echo", SERVER)
    with running(f"+config_paths=[{config}]", head) as gym:
        announced = gym.read_until("Ctrl-C stops everything")
        assert announced.startswith("All 1 / 1 servers ready!\n\nServer Instances\n")
        assert "[1]  echo  resources_servers/echo  http://127.0.0.1:" in announced
        status = run("ng_status", head)
        assert "[1] ✓ echo (resources_servers/echo)" in status.out
        assert f"pid          {gym.pid}" in status.out
        ended = gym.interrupt()
    assert (ended.code, ended.out) == (0, announced)
    assert ended.err.endswith("\nSending interrupt signals to servers...\nNeMo Gym finished!\n")


def test_termination_is_as_clean_as_ctrl_c(running, head):
    with running(f"+config_paths=[{add_server('echo', SERVER)}]", head) as gym:
        gym.read_until("ready!")
        gym.signal(signal.SIGTERM)
        assert gym.wait().code == 0


def test_a_second_ctrl_c_is_immediate(running, head):
    config = add_server("stubborn", STUBBORN, isolation="process")
    with running(f"+config_paths=[{config}]", head) as gym:
        gym.read_until("ready!")
        gym.signal(signal.SIGINT)
        gym.read_until("Sending interrupt signals")
        assert gym.interrupt().code == 130


def test_a_server_that_crashes_ends_the_run_with_its_last_lines(running, head):
    config = add_server("unlucky", CRASHING, isolation="process")
    with running(f"+config_paths=[{config}]", head) as gym:
        ended = gym.wait()
    assert (ended.code, ended.out) == (1, "")
    assert "error: Process `unlucky` finished unexpectedly with exit code 1" in ended.err
    assert "    about to fail\n    no luck today\n" in ended.err
    assert ended.err.endswith("hint: all servers were stopped; correct the cause and start again\n")
    assert "Traceback" not in ended.err


def test_a_dry_run_starts_everything_and_ends(running, head):
    config = add_server("echo", SERVER, isolation="process")
    with running(f"+config_paths=[{config}]", head, "+dry_run=true") as gym:
        ended = gym.wait()
    assert ended.code == 0, ended.err
    assert "All 1 / 1 servers ready!" in ended.out


@pytest.mark.parametrize("verbose", [False, True])
def test_the_traceback_of_a_server_that_cannot_be_built_is_a_detail(workspace, head, run, verbose):
    config = add_server("broken", "raise ValueError('no luck')\n")
    ran = run("ng_run", f"+config_paths=[{config}]", head, f"+verbose={str(verbose).lower()}")
    assert (ran.code, "no luck" in ran.err, "Traceback" in ran.err) == (1, True, verbose)


def test_nothing_to_run_is_an_error(run, workspace):
    ran = run("ng_run")
    assert (ran.code, ran.out) == (1, "")
    assert "no server" in ran.err
    assert "config_paths" in ran.err


def test_a_server_that_cannot_be_imported_is_an_error(run, workspace, head):
    config = add_server("broken", "import a_package_that_nobody_has\n")
    ran = run("ng_run", f"+config_paths=[{config}]", head)
    assert ran.code == 1
    assert "a_package_that_nobody_has" in ran.err
    assert "\n\nhint: " in ran.err


def test_a_port_that_is_taken_is_an_error(run, workspace, head):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("ng_run", f"+config_paths=[{add_server('echo', SERVER, port=port)}]", head)
    assert (ran.code, ran.out) == (1, "")
    assert f"error: echo: can't listen on 127.0.0.1:{port} (Address already in use)" in ran.err


@pytest.fixture
def parser_config(head_port):
    def make(path: str) -> GlobalConfigDictParserConfig:
        config = OmegaConf.merge(OmegaConf.load(path), {"head_server": {"host": "127.0.0.1", "port": head_port}})
        return GlobalConfigDictParserConfig(
            initial_global_config_dict=config, skip_load_from_cli=True, skip_load_from_dotenv=True
        )

    return make


def test_a_program_can_host_servers_beside_its_own_work(workspace, parser_config, head_port, monkeypatch):
    monkeypatch.syspath_prepend(workspace)
    helper = nemo_gym.cli.RunHelper()
    helper.start(parser_config(add_server("echo", SERVER)))
    helper.poll()
    with urlopen(f"http://127.0.0.1:{head_port}/server_instances") as reply:
        assert [server["process_name"] for server in json.load(reply)] == ["echo"]
    scrape = HTTPConnection("127.0.0.1", head_port)
    scrape.request("GET", "/metrics")
    has_extra = importlib.util.find_spec("prometheus_client") is not None
    assert scrape.getresponse().status == (200 if has_extra else 501)
    scrape.close()
    helper.shutdown()
    helper.shutdown()
    helper.poll()
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{head_port}/")


def test_a_program_is_told_when_its_servers_do_not_start(workspace, parser_config):
    helper = nemo_gym.cli.RunHelper()
    with pytest.raises(ServerCrashedError, match="no luck today"):
        helper.start(parser_config(add_server("unlucky", CRASHING, isolation="process")))
    helper.shutdown()


def test_a_program_is_told_when_a_server_can_not_be_kept_running(workspace, parser_config):
    helper = nemo_gym.cli.RunHelper()
    config = parser_config(add_server("mortal", MORTAL, isolation="process"))
    helper.start(config)
    helper.poll()
    Path("resources_servers/mortal/app.py").write_text(CRASHING)
    with pytest.raises(OSError, match="closed connection"):
        urlopen(f"{get_server_url('mortal')}/die")
    with pytest.raises(ServerCrashedError, match="no luck today"):
        helper.run_forever()
    with pytest.raises(ServerCrashedError):
        helper.poll()


def test_public_names_are_loaded_on_first_use():
    assert nemo_gym.cli.RunConfig.__name__ == "RunConfig"
    assert callable(nemo_gym.cli.dump_config)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = nemo_gym.cli.no_such_name


def test_commands_can_be_called_as_functions(workspace, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["any_script", "+json=true"])
    nemo_gym.cli.version()
    assert "nemo_gym" in json.loads(capsys.readouterr().out)


def test_the_event_loop_is_the_fast_one_where_installed():
    async def name() -> str:
        import asyncio

        return type(asyncio.get_running_loop()).__module__

    assert run_async(name()).startswith("uvloop")
