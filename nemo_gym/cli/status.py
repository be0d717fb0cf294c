"""``ng_status``: what is running.

The head server says which servers there are, and each of them is probed. Collections are found by the
small files that they write beside their outputs while they run.
"""

import http.client
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.parameters import HeadServerAddress, StatusConfig, read_parameters
from nemo_gym.config.addresses import base_url
from nemo_gym.errors import ExitCode
from nemo_gym.io.files import RunFiles, run_stem
from nemo_gym.rollouts.progress import read_activity
from nemo_gym.servers.server_client import probe_server

HEALTH_TIMEOUT_S: Final = 2.0
NOTHING_RUNS: Final = "No NeMo Gym servers found running."


def status(arguments: Arguments) -> int:
    """Print one entry per server, as text or JSON. It is not an error if nothing is running."""
    config = read_parameters(StatusConfig, arguments)
    if config.output_jsonl_fpath:
        return show_collection(config.output_jsonl_fpath, as_json=config.json_)
    instances = _listed(config.head_server)
    if instances is None:
        head = config.head_server
        console.warn(f"no head server replies at {head.host}:{head.port}; start the servers with ng_run")
    with ThreadPoolExecutor(max_workers=16) as pool:  # servers that do not reply take the whole timeout each
        servers = list(pool.map(_examined, instances or []))
    if config.json_:
        console.emit(json.dumps(servers, indent=2))
    else:
        console.emit("\n\n".join([status_text(servers), *running_collections()]))
    return ExitCode.OK


def status_text(servers: Sequence[Mapping[str, Any]]) -> str:
    """Lay out the servers as text."""
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
    status = probe_server(base_url(server), timeout_s=HEALTH_TIMEOUT_S)
    return {**server, "status": status, "uptime_seconds": uptime}


# ---- collections -----------------------------------------------------------------------------------------------------
RESULTS: Final = Path("results")  # where outputs go by default
State = Mapping[str, Any]


def show_collection(output: str, *, as_json: bool) -> int:
    """Show one collection, with all of its shards if it has any."""
    named = Path(output)
    patterns = (RunFiles.of(named).status.name, f"{run_stem(named)}-*-of-*_status.json")
    paths = [path for pattern in patterns for path in sorted(named.parent.glob(pattern))]
    found = {path: state for path in paths if (state := read_activity(path))}
    if as_json:
        console.emit(json.dumps([{"status_file": str(path), **state} for path, state in found.items()], indent=2))
    elif found:
        console.emit("\n\n".join(collection_text(path, state) for path, state in found.items()))
    else:
        console.emit(f"No collection to {output} is running.")
    return ExitCode.OK


def running_collections() -> Iterator[str]:
    """Every collection that writes to the folder of outputs, as text."""
    suffix = RunFiles.of(Path("x.jsonl")).status.name.removeprefix("x")
    for path in sorted(RESULTS.rglob(f"*{suffix}")):
        if state := read_activity(path):
            yield collection_text(path, state)


def collection_text(path: Path, state: State) -> str:
    """Lay out one collection as text."""
    ended, owed, rate = state["ended"], state["owed"], state["per_second"]
    left = f", about {(owed - ended) / rate / 60:.0f} min left" if rate > 0 and owed > ended else ""
    lines = [
        f"Collection {path} (process {state['pid']} on {state['host']}, {state['seconds']:.0f} s)",
        f"  {ended:,} of {owed:,} ended ({state['completed']:,} completed, {state['failed']:,} failed)",
        f"  {state['running']:,} running of {state['allowed']:,} allowed, {rate:g} a second{left}",
    ]
    if state.get("outage"):
        lines.append(f"  paused: {state['outage']}")
    lines += _gym_lines(state.get("gyms", ()))
    lines += [f"  {name} gets no Gym: {reason}" for name, reason in state.get("excluded", {}).items()]
    if state["slowest"]:
        slow = (f"task {each['task']} rollout {each['rollout']} {each['seconds']:.0f} s" for each in state["slowest"])
        lines.append(f"  slowest: {', '.join(slow)}")
    return "\n".join(lines)


def _gym_lines(gyms: Sequence[State]) -> list[str]:
    """One line for each node."""
    nodes: dict[str, list[State]] = defaultdict(list)
    for gym in gyms:
        nodes[gym["name"]].append(gym)
    lines = [f"  {len(gyms)} Gyms in {len(nodes)} places"] if gyms else []
    for name, here in sorted(nodes.items()):
        ready = sum(gym["state"] == "ready" for gym in here)
        leases, finished = (sum(gym[key] for gym in here) for key in ("leases", "finished"))
        lines.append(f"    {name}: {ready} of {len(here)} ready, {leases:,} leases, {finished:,} finished")
    return lines
