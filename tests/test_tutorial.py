"""The tutorial, typed as it is written: real commands in real processes, in a folder outside the repository."""

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import pytest

from tests.forked_commands import ForkedCommand, ForkedCommands, Ran
from tests.ports import free_port

if TYPE_CHECKING:
    from conftest import MockModel

SCRIPTS = Path(sys.executable).parent
PATIENCE_S = 120
KEY = "sk-tutorial-0123456789"
EXAMPLE = "resources_servers/example_single_tool_call"
AGENT = "example_single_tool_call_simple_agent"
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"
CONFIG_PATHS = f"+config_paths=[{EXAMPLE}/configs/example_single_tool_call.yaml,{MODEL_CONFIG}]"
ROLLOUTS = "results/example_single_tool_call_rollouts.jsonl"
COLLECT = (
    f"+agent_name={AGENT}",
    f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl",
    f"+output_jsonl_fpath={ROLLOUTS}",
    "+limit=5",
    "+num_repeats=2",
    "+num_samples_in_parallel=3",
)


@dataclass(frozen=True)
class Terminal:
    """A folder to type commands in."""

    folder: Path
    commands: ForkedCommands

    def start(self, *words: str) -> ForkedCommand:
        return self.commands.start(*words, folder=self.folder, environment=self.environment())

    def type(self, *words: str) -> Ran:
        """Run a command to its end."""
        with self.start(*words) as command:
            return command.wait()

    def type_script(self, script: str, *arguments: str) -> Ran:
        """Run an installed script to its end, as a shell does."""
        done = subprocess.run(
            [SCRIPTS / script, *arguments],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_GYM_", "PYTEST_"))}
        return inherited | {"XDG_RUNTIME_DIR": str(self.folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def rows(self, name: str = ROLLOUTS) -> list[dict]:
        return [json.loads(line) for line in (self.folder / name).read_text("utf-8").splitlines()]


@pytest.fixture
def terminal(tmp_path: Path, mock_model: "MockModel", commands: ForkedCommands) -> Iterator[Terminal]:
    """Its env.yaml names the model, and a port for the head server: others may be using the usual one."""
    (tmp_path / "env.yaml").write_text(
        f"policy_base_url: {mock_model.base_url}\npolicy_api_key: {KEY}\npolicy_model_name: mock-model\n"
        f"head_server: {{host: 127.0.0.1, port: {free_port()}}}\n"
    )
    yield Terminal(tmp_path, commands)
    for path in tmp_path.rglob("*"):
        assert path.name == "env.yaml" or not path.is_file() or KEY.encode() not in path.read_bytes(), path


def check_tutorial_rollouts(terminal: Terminal, ran: Ran) -> None:
    """What the tutorial promises: a full bar, ten rows, the mean of every numeric field."""
    assert ran.code == 0, ran.err
    assert KEY not in ran.out + ran.err
    assert re.search("Collecting rollouts: 100%, 10/10, ", ran.err)
    rows = terminal.rows()
    assert sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows) == [
        (task, rollout) for task in range(5) for rollout in range(2)
    ]
    for row in rows:
        assert row["responses_create_params"]["input"][1]["role"] == "user"
        assert [item["type"] for item in row["response"]["output"]] == [
            "function_call",
            "function_call_output",
            "message",
        ]
        assert row["reward"] == 1.0
    title, _, metrics = ran.out.partition("\n")
    assert title == f"Key metrics for {AGENT}:"
    numbers = [{"reward": row["reward"], **row["response"]["usage"]} for row in rows]
    fields = [name for name, value in numbers[0].items() if isinstance(value, int | float)]
    assert json.loads(metrics) == {f"mean/{name}": mean(row[name] for row in numbers) for name in fields}


def check_is_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_the_tutorial_in_two_terminals(terminal: Terminal) -> None:
    with terminal.start("ng_run", CONFIG_PATHS) as gym:
        announced = gym.read_until("Ctrl-C stops everything")
        assert announced.startswith("All 3 / 3 servers ready!\n")

        status = terminal.type("ng_status")
        assert status.code == 0, status.err
        for server in (
            "example_single_tool_call (resources_servers/example_single_tool_call)",
            f"{AGENT} (responses_api_agents/simple_agent)",
            "policy_model (responses_api_models/openai_model)",
        ):
            assert f"✓ {server}" in status.out
        assert "3 servers found (3 healthy, 0 unhealthy)" in status.out

        check_tutorial_rollouts(terminal, terminal.type("ng_collect_rollouts", *COLLECT))
        again = terminal.type("ng_collect_rollouts", *COLLECT[:3], "+limit=2", "+num_repeats=1")
        assert again.code == 0, again.err
        assert (len(terminal.rows()), len(terminal.rows(f"{ROLLOUTS}.backup-1/{Path(ROLLOUTS).name}"))) == (2, 10)

        ended = gym.interrupt()
    assert (ended.code, ended.out) == (0, announced), ended.err
    assert ended.err.endswith("Sending interrupt signals to servers...\nNeMo Gym finished!\n")
    ports = {int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", announced)}
    assert len(ports) == 4  # three servers and the head server
    for port in ports:
        check_is_free(port)


class Busy(http.server.BaseHTTPRequestHandler):
    """An endpoint that refuses the first request for three seconds, and passes all others on."""

    upstream = ""
    refused = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not type(self).refused:
            type(self).refused = True
            self.reply(429, b'{"error": {"message": "slow down"}}', ("Retry-After", "3"))
            return
        url = self.upstream + self.path.removeprefix("/v1")
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            self.reply(200, reply.read())

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_waiting_for_the_endpoint_uses_up_no_time_of_a_rollout_through_ng_run(
    terminal: Terminal, mock_model: "MockModel"
) -> None:
    handler = type("BusyHere", (Busy,), {"upstream": mock_model.base_url})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        address = f"+policy_base_url=http://127.0.0.1:{endpoint.server_address[1]}/v1"
        with terminal.start("ng_run", CONFIG_PATHS, address) as gym:
            gym.read_until("Ctrl-C stops everything")
            limits = ("+rollout_timeout_s=2", "+limit=1", "+num_repeats=1")
            ran = terminal.type("ng_collect_rollouts", *COLLECT[:3], *limits)
            gym.interrupt()
        endpoint.shutdown()
    assert ran.code == 0, ran.err
    assert "retried" not in ran.err
    assert handler.refused
    assert len(terminal.rows()) == 1


def test_servers_in_processes_of_their_own_give_the_same_and_leave_nothing_behind(terminal: Terminal) -> None:
    apart = "++example_single_tool_call.resources_servers.example_single_tool_call.isolation=process"
    with terminal.start("ng_run", CONFIG_PATHS, apart) as gym:
        announced = gym.read_until("Ctrl-C stops everything")
        servers = {each["process_name"]: each for each in json.loads(terminal.type("ng_status", "--json").out)}
        child = servers["example_single_tool_call"]["pid"]
        assert child != gym.pid == servers[AGENT]["pid"] == servers["policy_model"]["pid"]

        check_tutorial_rollouts(terminal, terminal.type("ng_collect_rollouts", *COLLECT))

        ended = gym.interrupt()
    assert (ended.code, ended.out) == (0, announced), ended.err
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    for server in servers.values():
        check_is_free(server["port"])


def test_the_tutorial_in_one_command_by_its_installed_script(terminal: Terminal) -> None:
    ran = terminal.type_script("nemo_gym_collect_rollouts", CONFIG_PATHS, *COLLECT)
    check_tutorial_rollouts(terminal, ran)
    files = {path.name for path in (terminal.folder / "results").iterdir()}
    stem = Path(ROLLOUTS).stem
    assert files >= {
        f"{stem}{ending}"
        for ending in (".jsonl", "_materialized_inputs.jsonl", "_failures.jsonl", "_aggregate_metrics.json")
    }
    assert not (terminal.folder / "outputs").exists()


MY_ENV = '''\
"""My environment: the answer has to name the right city."""

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)


class MyEnvResourcesServerConfig(BaseResourcesServerConfig):
    full_marks: float = 1.0


class CityRequest(BaseVerifyRequest):
    city: str


class CityResponse(CityRequest, BaseVerifyResponse):
    pass


class MyEnvResourcesServer(SimpleResourcesServer):
    config: MyEnvResourcesServerConfig

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/get_weather")(self.get_weather)
        return app

    async def get_weather(self, body: dict) -> dict:
        return {"weather": f"rain in {body['city']}"}

    async def verify(self, body: CityRequest) -> CityResponse:
        reward = self.config.full_marks if body.city in body.response.output_text else 0.0
        return CityResponse(**body.model_dump(), reward=reward)


if __name__ == "__main__":
    MyEnvResourcesServer.run_webserver()
'''


def test_an_environment_in_the_users_own_project(terminal: Terminal) -> None:
    """Made by the scaffold, tested as it was made, then edited and run: nothing of it is in the repository."""
    folder = terminal.folder / "resources_servers" / "my_env"
    made = terminal.type("ng_init_resources_server", "+entrypoint=resources_servers/my_env")
    assert made.code == 0, made.err
    tested = terminal.type("ng_test", "+entrypoint=resources_servers/my_env")
    assert tested.code == 0, tested.out + tested.err
    assert "1 passed" in tested.out

    (folder / "app.py").write_text(MY_ENV)
    tasks = [
        {"responses_create_params": {"input": f"How is the weather in {city}?"}, "city": city}
        for city in ("San Francisco", "Oslo")
    ]
    (folder / "data" / "example.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    ran = terminal.type(
        "ng_collect_rollouts",
        f"+config_paths=[resources_servers/my_env/configs/my_env.yaml,{MODEL_CONFIG}]",
        "+agent_name=my_env_simple_agent",
        "+input_jsonl_fpath=resources_servers/my_env/data/example.jsonl",
        "+output_jsonl_fpath=results/mine.jsonl",
        "++my_env_resources_server.resources_servers.my_env.full_marks=2.0",
    )
    assert ran.code == 0, ran.err
    rows = terminal.rows("results/mine.jsonl")
    assert {row["city"]: row["reward"] for row in rows} == {"San Francisco": 2.0, "Oslo": 0.0}
    assert rows[0]["response"]["output"][1]["output"] == '{"weather":"rain in San Francisco"}'
