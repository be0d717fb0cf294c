"""``ng_list_benchmarks``: what stands in ``benchmarks/*/config.yaml``, here and in the installation.

``ng_help`` and ``ng_version``: what can be done, and with what.
"""

import difflib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig

from nemo_gym import PARENT_DIR, __version__
from nemo_gym.cli import console, manual
from nemo_gym.cli.command import Exit, HelpRequest, UsageError, quote
from nemo_gym.cli.parameters import ListBenchmarksConfig, read_parameters
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.servers import ServerInstanceConfig, blocks, is_server_ref, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig

SIMILAR: Final = 0.7


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One row of the list."""

    name: str
    agent_name: str | None
    domain: str | None
    num_repeats: int | None

    def matches(self, query: str) -> bool:
        """Whether the name or the domain contains the words or is like them."""
        words = query.lower()
        texts = [text.lower() for text in (self.name, self.domain) if text]
        return any(words in text or difflib.SequenceMatcher(a=words, b=text).ratio() >= SIMILAR for text in texts)


def list_benchmarks(overrides: Sequence[str]) -> int:
    """Print the benchmarks as a table or JSON."""
    config = read_parameters(ListBenchmarksConfig, overrides)
    found = [benchmark for benchmark in find_benchmarks() if not config.query or benchmark.matches(config.query)]
    if config.json_:
        console.emit(json.dumps([asdict(benchmark) for benchmark in found], indent=2))
    elif found:
        rows = [tuple("" if cell is None else str(cell) for cell in _cells(benchmark)) for benchmark in found]
        console.emit(console.table(("Benchmark name", "Domain", "Agent name", "Num repeats"), rows))
    else:
        console.note("no benchmarks found" + (f" for {config.query!r}" if config.query else ""))
    return Exit.OK


def find_benchmarks() -> Iterator[Benchmark]:
    """Read every benchmark; one whose configuration is broken is reported and left out."""
    files: dict[str, Path] = {}
    for root in (Path.cwd(), PARENT_DIR):
        for path in sorted(root.glob("benchmarks/*/config.yaml")):
            files.setdefault(path.parent.name, path)
    for name, path in sorted(files.items()):
        try:
            yield describe(name, _read(path))
        except ConfigError as error:
            console.warn(f"benchmark {name} is left out: {error}")


def describe(name: str, config: DictConfig) -> Benchmark:
    """Find the agent that has the benchmark dataset, and what the benchmark is about."""
    servers = [server for block in blocks(config) if (server := maybe_get_server_instance_config(*block)[0])]
    for agent in servers:
        for dataset in agent.datasets or []:
            if dataset.type == "benchmark":
                return Benchmark(name, agent.name, _domain(agent, servers), dataset.num_repeats)
    return Benchmark(name, None, _domain(None, servers), None)


def _cells(benchmark: Benchmark) -> tuple[str | int | None, ...]:
    return benchmark.name, benchmark.domain, benchmark.agent_name, benchmark.num_repeats


def _domain(agent: ServerInstanceConfig | None, servers: Sequence[ServerInstanceConfig]) -> str | None:
    """The domain of the resources server that the agent refers to, or else of the first one."""
    settings = agent.get_inner_run_server_config_dict() if agent else {}
    referred = {reference.name for value in settings.values() if (reference := is_server_ref(value))}
    domains = {
        server.name: str(server.get_inner_run_server_config_dict()["domain"])
        for server in servers
        if server.SERVER_TYPE == RESOURCES_SERVERS
    }
    return next((domains[name] for name in domains if name in referred), next(iter(domains.values()), None))


def _read(path: Path) -> DictConfig:
    wanted = GlobalConfigDictParserConfig(
        overrides=[f"+config_paths=[{quote(str(path))}]"],
        initial_global_config_dict=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT,
    )
    return GlobalConfigDictParser().parse(wanted)


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
