import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from nemo_gym.cli.status import uptime_text


class Head(BaseHTTPRequestHandler):
    """Answers like a head server, and like a healthy server."""

    instances: ClassVar[list[dict[str, object]]] = []

    def do_GET(self) -> None:
        body = json.dumps(self.instances if self.path == "/server_instances" else {"status": "ok"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def instance(name: str, port: int) -> dict[str, object]:
    return {
        "config_path": name,
        "dir_path": "somewhere",
        "entrypoint": "app.py",
        "host": "127.0.0.1",
        "name": "simple_agent",
        "pid": 4711,
        "port": port,
        "process_name": name,
        "server_type": "responses_api_agents",
        "start_time": time.time() - 3,
        "status": None,
        "uptime_seconds": None,
        "url": f"http://127.0.0.1:{port}",
    }


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def head(closed_port: int) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Head) as server:
        port = server.server_address[1]
        Head.instances = [instance("alive", port), instance("dead", closed_port)]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"+head_server={{host: 127.0.0.1, port: {port}}}"
        server.shutdown()


def test_the_status_of_every_server_is_shown(run, head):
    ran = run("ng_status", head)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("NeMo Gym Server Status:\n")
    assert "[1] ✓ alive (responses_api_agents/simple_agent)" in ran.out
    assert "[2] ✗ dead (responses_api_agents/simple_agent)" in ran.out
    assert "uptime       0d 0h 0m 3" in ran.out
    assert ran.out.endswith("2 servers found (1 healthy, 1 unhealthy)\n")


def test_the_status_as_json_has_live_values(run, head):
    alive, dead = json.loads(run("ng", "env", "status", "--json", head).out)
    assert (alive["status"], dead["status"]) == ("success", "connection_error")
    assert alive["uptime_seconds"] >= 3
    assert alive["pid"] == 4711


def test_that_nothing_runs_is_an_answer(run, closed_port):
    ran = run("ng_status", f"+head_server={{host: 127.0.0.1, port: {closed_port}}}")
    assert (ran.code, ran.out) == (0, "No NeMo Gym servers found running.\n")
    assert ran.err == f"warning: no head server replies at 127.0.0.1:{closed_port}; start the servers with ng_run\n"


def test_that_nothing_runs_is_an_empty_array_in_json(run, closed_port):
    assert run("ng_status", f"+head_server={{host: 127.0.0.1, port: {closed_port}}}", "+json=true").out == "[]\n"


def test_half_an_address_is_a_usage_error(run):
    ran = run("ng_status", "+head_server={host: 127.0.0.1}")
    assert ran.code == 2
    assert "  head_server (expected {host: str, port: int}): port: Field required" in ran.err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (32.46, "0d 0h 0m 32.5s"), (90061, "1d 1h 1m 1.0s"), (3599.99, "0d 1h 0m 0.0s")],
)
def test_uptimes_are_legible(seconds, text):
    assert uptime_text(seconds) == text
