"""Front door: finds benchmarks, here and in the installation, and prepares their data.

A benchmark is a folder ``benchmarks/<name>/`` with a ``config.yaml`` that gives one agent a dataset of
``type: benchmark``, and a script whose ``prepare()`` writes the data and returns its path.
"""

import importlib.util
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omegaconf import DictConfig

from nemo_gym import INSTALL_DIR
from nemo_gym.config.datasets import BenchmarkDatasetConfig
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.locate import find_readable
from nemo_gym.config.servers import ServerInstanceConfig, blocks, is_server_ref, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig

__all__ = ["BENCHMARKS_DIR", "BenchmarkConfig", "discover_benchmarks", "prepare_benchmarks"]

logger = logging.getLogger(__name__)

BENCHMARKS_DIR: Final = INSTALL_DIR / "benchmarks"


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """One benchmark: where its configuration is, which agent runs it, and its dataset."""

    name: str
    path: Path
    agent_name: str
    dataset: BenchmarkDatasetConfig
    domain: str | None

    @classmethod
    def from_config_path(cls, path: str | Path, *, strict: bool = True) -> "BenchmarkConfig | None":
        """The benchmark in a file; None if there is none. Without ``strict``, also if the file is not valid."""
        file = Path(path)
        try:
            return _read_benchmark(file.parent.name, file)
        except ConfigError:
            if strict:
                raise
            return None

    @property
    def num_repeats(self) -> int:
        """How often the published protocol runs each task."""
        return self.dataset.num_repeats


def discover_benchmarks(root: Path | None = None) -> dict[str, BenchmarkConfig]:
    """All benchmarks by name. A benchmark with an invalid configuration is logged and left out."""
    found: dict[str, BenchmarkConfig] = {}
    for folder in [root] if root else [Path.cwd() / "benchmarks", BENCHMARKS_DIR]:
        for path in sorted(folder.glob("**/config.yaml")):
            name = path.parent.relative_to(folder).as_posix()
            if name in found:
                continue
            try:
                benchmark = _read_benchmark(name, path)
            except ConfigError as error:
                logger.warning("benchmark %s is left out: %s", name, error)
                continue
            if benchmark is not None:
                found[name] = benchmark
    return dict(sorted(found.items()))


def _read_benchmark(name: str, path: Path) -> BenchmarkConfig | None:
    wanted = GlobalConfigDictParserConfig(
        overrides=[f"+config_paths=[{json.dumps(str(path), ensure_ascii=False)}]"],
        initial_global_config_dict=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT,
    )
    return next(benchmarks_in(name, path, GlobalConfigDictParser().parse(wanted)), None)


def benchmarks_in(name: str, path: Path, config: DictConfig) -> Iterator[BenchmarkConfig]:
    """The benchmarks in a configuration: one for each agent with a benchmark dataset."""
    servers = [server for block in blocks(config) if (server := maybe_get_server_instance_config(*block)[0])]
    for agent in servers:
        datasets = [d for d in agent.datasets or [] if isinstance(d, BenchmarkDatasetConfig)]
        if len(datasets) > 1:
            names = ", ".join(dataset.name for dataset in datasets)
            raise ConfigError(
                f"agent '{agent.name}' has {len(datasets)} benchmark datasets ({names})",
                hint="give each benchmark its own agent; _inherit_from keeps that short",
            )
        for dataset in datasets:
            yield BenchmarkConfig(name, path, agent.name, dataset, _domain(agent, servers))


def _domain(agent: ServerInstanceConfig, servers: list[ServerInstanceConfig]) -> str | None:
    """The domain of the resources server that the agent refers to, otherwise that of the first one."""
    settings = agent.get_inner_run_server_config_dict()
    referred = {reference.name for value in settings.values() if (reference := is_server_ref(value))}
    domains = {
        server.name: str(server.get_inner_run_server_config_dict()["domain"])
        for server in servers
        if server.SERVER_TYPE == RESOURCES_SERVERS
    }
    return next((domains[name] for name in domains if name in referred), next(iter(domains.values()), None))


def prepare_benchmarks(config: DictConfig, *, use_cached: bool = False, processes: int = 1) -> dict[str, Path]:
    """Prepare every benchmark in a configuration; returns the path of each agent's data."""
    wanted = {found.agent_name: found.dataset for found in benchmarks_in("", Path(), config)}
    if not wanted:
        raise ConfigError(
            "the configuration has no benchmark", hint="for example +config_paths=[benchmarks/gsm8k/config.yaml]"
        )
    prepared = {agent: Path(dataset.jsonl_fpath) for agent, dataset in wanted.items()}
    owed = {
        agent: dataset for agent, dataset in wanted.items() if not (use_cached and find_readable(dataset.jsonl_fpath))
    }
    if processes > 1 and len(owed) > 1:
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(_prepare, owed.values()))
    else:
        for dataset in owed.values():
            _prepare(dataset)
    return prepared


def _prepare(dataset: BenchmarkDatasetConfig) -> None:
    script = find_readable(dataset.prepare_script)
    if script is None:
        raise ConfigError(
            f"benchmark {dataset.name}: there is no file {dataset.prepare_script}",
            hint="prepare_script is a path like benchmarks/<name>/prepare.py",
        )
    # Loaded from its path, because the folder may be the user's, which can't be imported as a package.
    spec = importlib.util.spec_from_file_location(f"benchmarks.{script.parent.name}.{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prepare = getattr(module, "prepare", None)
    if not callable(prepare):
        raise ConfigError(f"{script} has no function prepare()", hint="it must write the data and return its path")
    logger.info("Preparing benchmark %s", dataset.name)
    made = Path(prepare()).absolute()
    # A user's script writes where the command runs; the built-in ones write into the installation.
    if made not in (Path(dataset.jsonl_fpath).absolute(), INSTALL_DIR / dataset.jsonl_fpath):
        raise ConfigError(
            f"benchmark {dataset.name}: prepare() wrote {made}, but jsonl_fpath is {dataset.jsonl_fpath}",
            hint="make both the same path",
        )
    if not made.is_file():
        raise ConfigError(f"benchmark {dataset.name}: prepare() returned {made}, which does not exist")
