"""``ng_list_benchmarks``: what stands in ``benchmarks/*/config.yaml``, here and in the installation."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from omegaconf import DictConfig

from nemo_gym import PARENT_DIR
from nemo_gym.cli import console
from nemo_gym.cli.flags import quote
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.parameters import ListBenchmarksConfig
from nemo_gym.cli.settings import read_parameters
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.server_types import ServerInstanceConfig
from nemo_gym.config.validation import blocks, is_server_ref, maybe_get_server_instance_config
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
