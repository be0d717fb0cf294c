"""``ng_list_benchmarks``: what stands in ``benchmarks/*/config.yaml``, here and in the installation.

``ng_help`` and ``ng_version``: what can be done, and with what.
"""

import difflib
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Any, Final

from nemo_gym import PARENT_DIR, __version__
from nemo_gym.benchmarks import BenchmarkConfig, discover_benchmarks
from nemo_gym.cli import console, manual
from nemo_gym.cli.command import Exit, HelpRequest, UsageError
from nemo_gym.cli.parameters import ListBenchmarksConfig, read_parameters

SIMILAR: Final = 0.7


def list_benchmarks(overrides: Sequence[str]) -> int:
    """Print the benchmarks as a table or JSON."""
    config = read_parameters(ListBenchmarksConfig, overrides)
    known = discover_benchmarks().values()
    found = [benchmark for benchmark in known if not config.query or _matches(benchmark, config.query)]
    names = ("name", "domain", "agent_name", "num_repeats")
    if config.json_:
        console.emit(json.dumps([{name: getattr(benchmark, name) for name in names} for benchmark in found], indent=2))
    elif found:
        rows = [tuple(str(getattr(benchmark, name) or "") for name in names) for benchmark in found]
        console.emit(console.table(("Benchmark name", "Domain", "Agent name", "Num repeats"), rows))
    else:
        console.note("no benchmarks found" + (f" for {config.query!r}" if config.query else ""))
    return Exit.OK


def _matches(benchmark: BenchmarkConfig, query: str) -> bool:
    """Whether the name or the domain contains the words or resembles them."""
    words = query.lower()
    texts = [text.lower() for text in (benchmark.name, benchmark.domain) if text]
    return any(words in text or difflib.SequenceMatcher(a=words, b=text).ratio() >= SIMILAR for text in texts)


DEPENDENCIES: Final = ("aiohttp", "fastapi", "hydra-core", "numpy", "omegaconf", "openai", "pydantic", "ray", "uvicorn")


def show_help(overrides: Sequence[str]) -> int:
    """List all commands."""
    if overrides:
        raise UsageError("ng_help takes no parameters", hint="for one command: ng_collect_rollouts --help")
    return manual.show(HelpRequest())


def version(overrides: Sequence[str]) -> int:
    """Show versions and the machine, as text or JSON."""
    facts = _facts()
    if _wants_json(overrides):
        console.emit(json.dumps(facts, indent=2))
    else:
        console.emit(_as_text(facts))
    return Exit.OK


def _wants_json(overrides: Sequence[str]) -> bool:
    if not overrides:
        return False  # the usual case needs no parser, which is most of the start-up time
    settings = import_module("nemo_gym.cli.parameters")
    config = import_module("nemo_gym.cli.parameters").VersionConfig
    return bool(settings.read_parameters(config, overrides).json_)


def _facts() -> dict[str, Any]:
    return {
        "nemo_gym": __version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "installation_path": str(PARENT_DIR),
        "dependencies": {name: _installed(name) for name in DEPENDENCIES},
        "system": {
            "os": f"{platform.system()} {platform.release()}",
            "platform": platform.platform(),
            "architecture": platform.machine(),
            "processor": platform.processor() or "unknown",
            "cpus": os.cpu_count(),
            "memory_gb": _memory_gb(),
        },
    }


def _as_text(facts: dict[str, Any]) -> str:
    system = facts["system"]
    names = ("os", "platform", "architecture", "processor", "cpus", "memory_gb")
    titles = ("OS", "Platform", "Architecture", "Processor", "CPUs", "Memory")
    shown = [str(system[name]) for name in names[:-1]] + [
        f"{system['memory_gb']} GB" if system["memory_gb"] else "unknown"
    ]
    return "\n".join(
        [
            f"Rollout Gym v{facts['nemo_gym']}, with the interface of NeMo Gym",
            f"Python {facts['python']} ({facts['python_path']})",
            f"Installation: {facts['installation_path']}",
            "",
            "Key Dependencies:",
            *(f"  {name}: {installed or 'not installed'}" for name, installed in facts["dependencies"].items()),
            "",
            "System:",
            *(f"  {title}: {text}" for title, text in zip(titles, shown, strict=True)),
        ]
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _memory_gb() -> float | None:
    """Memory of the machine, where the system tells."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 2)
    except (AttributeError, ValueError, OSError):
        return None
