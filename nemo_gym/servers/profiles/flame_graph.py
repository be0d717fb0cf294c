"""Writes profiles: a table, a file for speedscope and a page with a flame graph, for each server and for all together.

    <folder>/index.html                      all servers as a flame graph; a single file that needs no web server
    <folder>/profile.speedscope.json         the same for https://www.speedscope.app and tools that read its format
    <folder>/<Class>___<name>/<name>.log     one server: functions by their own time
    <folder>/<Class>___<name>/<name>.speedscope.json, <name>.html

Times are estimates: the processor time of the process, divided evenly among its samples.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from nemo_gym.io.files import replacing, storage_errors
from nemo_gym.io.json import encode

logger = logging.getLogger(__name__)

Samples: TypeAlias = Counter[tuple[str, ...]]  # stacks, outermost frame first
PAGE: Final = Path(__file__).with_name("flame_graph.html")
_DATA: Final = "/*PROFILE*/null"
_ROWS: Final = 200


def write_profiles(
    folder: Path, servers: Mapping[str, Samples], *, labels: Mapping[str, str], seconds: float, index: bool = True
) -> None:
    """Write the profiles of all servers; ``seconds`` is the processor time that was sampled in total."""
    total = sum(samples.total() for samples in servers.values())
    each_s = seconds / total if total else 0.0
    together: Samples = Counter()
    with storage_errors(folder, "write a profile to"):
        for server, samples in servers.items():
            together.update({(server, *stack): count for stack, count in samples.items()})
            label = labels.get(server, server).replace(" ", "_")
            stem = folder / label / server.replace(" ", "_")
            _write(stem.with_name(f"{stem.name}.log"), table(samples, each_s).encode())
            _write(stem.with_name(f"{stem.name}.speedscope.json"), encode(speedscope(server, samples, each_s)))
            _write(stem.with_name(f"{stem.name}.html"), page(server, samples, each_s))
        if index:
            _write(folder / "profile.speedscope.json", encode(speedscope("all servers", together, each_s)))
            _write(folder / "index.html", page("all servers", together, each_s))
    logger.info("profile of %.1f s of processor time, %d samples: %s", seconds, total, folder)


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def table(samples: Samples, each_s: float) -> str:
    """Functions with their own time and their total time including calls; largest first."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, count in samples.items():
        own[stack[-1]] += count
        total.update(dict.fromkeys(stack, count))
    rows = sorted(total, key=lambda name: (-own[name], -total[name]))[:_ROWS]
    lines = [f"{'tsub':>10} {'ttot':>10}  name"]
    lines += [f"{own[name] * each_s:>10.4f} {total[name] * each_s:>10.4f}  {name}" for name in rows]
    return "\n".join(lines) + "\n"


def speedscope(name: str, samples: Samples, each_s: float) -> dict[str, Any]:
    """A profile in speedscope's format."""
    frames: dict[str, int] = {}
    stacks = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in samples]
    weights = [round(count * each_s, 6) for count in samples.values()]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": round(sum(weights), 6),
                "samples": stacks,
                "weights": weights,
            }
        ],
        "name": name,
        "exporter": "rollout-gym",
    }


def page(name: str, samples: Samples, each_s: float) -> bytes:
    """A page with a flame graph that loads no other files."""
    root: dict[str, Any] = {"name": name, "value": 0.0, "children": {}}
    for stack, count in samples.items():
        node = root
        node["value"] += count * each_s
        for frame in stack:
            node = node["children"].setdefault(frame, {"name": frame, "value": 0.0, "children": {}})
            node["value"] += count * each_s
    # Escaped, so that no name can close the script element that contains it.
    data = encode(_listed(root)).replace(b"<", b"\\u003c")
    return PAGE.read_bytes().replace(_DATA.encode(), data)


def _listed(root: dict[str, Any]) -> list[Any]:
    """A node as a list of its name, time and children, which is half as long as an object. Stacks may be deep."""
    done: dict[int, list[Any]] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        children = list(node["children"].values())
        missing = [child for child in children if id(child) not in done]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        children.sort(key=lambda child: -child["value"])
        done[id(node)] = [node["name"], round(node["value"], 6), [done[id(child)] for child in children]]
    return done[id(root)]
