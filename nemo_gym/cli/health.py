"""``ng_status``: asks the head server which servers there are, and each of them whether it answers."""

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.parameters import HeadServerAddress, StatusConfig
from nemo_gym.cli.settings import read_parameters

HEALTH_TIMEOUT_S: Final = 2.0
NOTHING_RUNS: Final = "No NeMo Gym servers found running."


def status(overrides: Sequence[str]) -> int:
    """Print one entry per server, as text or JSON. That nothing runs is an answer, not an error."""
    config = read_parameters(StatusConfig, overrides)
    instances = _listed(config.head_server)
    if instances is None:
        head = config.head_server
        console.warn(f"no head server answers at {head.host}:{head.port}; start the servers with ng_run")
    with ThreadPoolExecutor(max_workers=16) as pool:
        servers = list(pool.map(_examined, instances or []))
    console.emit(json.dumps(servers, indent=2) if config.json_ else as_text(servers))
    return Exit.OK


def as_text(servers: Sequence[Mapping[str, Any]]) -> str:
    """Lay out the servers for people."""
    if not servers:
        return NOTHING_RUNS
    healthy = sum(server["status"] == "success" for server in servers)
    entries = [_entry(number, server) for number, server in enumerate(servers, start=1)]
    total = f"{len(servers)} servers found ({healthy} healthy, {len(servers) - healthy} unhealthy)"
    return "\n".join(["NeMo Gym Server Status:", "", *entries, "", total])


def uptime_text(seconds: float | None) -> str:
    """Write a duration as ``0d 0h 0m 32.5s``."""
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds, 1), 60)  # rounded first, or 59.99 s would be shown as 60.0s
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h {minutes}m {rest:.1f}s"


def _entry(number: int, server: Mapping[str, Any]) -> str:
    mark = console.paint("✓", "green") if server["status"] == "success" else console.paint("✗", "red")
    details = {
        "server_type": server["server_type"],
        "name": server["name"],
        "url": server["url"],
        "pid": server["pid"],
        "uptime": uptime_text(server["uptime_seconds"]),
        "status": server["status"],
    }
    lines = console.columns([(name, str(value)) for name, value in details.items()], indent="      ")
    return f"[{number}] {mark} {server['config_path']} ({server['server_type']}/{server['name']})\n{lines}"


def _listed(head: HeadServerAddress) -> list[dict[str, Any]] | None:
    connection = http.client.HTTPConnection(head.host, head.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/server_instances")
        instances: list[dict[str, Any]] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return instances


def _examined(server: dict[str, Any]) -> dict[str, Any]:
    started = server.get("start_time")
    uptime = round(time.time() - started, 1) if isinstance(started, int | float) else None
    return {**server, "status": _health(server["host"], server["port"]), "uptime_seconds": uptime}


def _health(host: str, port: int) -> str:
    """Whether a server answers at all; the words are those of ``ServerClient.poll_for_status``."""
    connection = http.client.HTTPConnection(host, port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except TimeoutError:
        return "timeout"
    except OSError:
        return "connection_error"
    except http.client.HTTPException:
        return "unknown_error"
    else:
        return "success"
    finally:
        connection.close()
