"""Checks servers without running them: what would stop them, and what would silently have no effect.

``CONFIGURATION_CHECKS`` look at the servers of a configuration: folders, entrypoints, settings, data files, prompts.
``FOLDER_CHECKS`` look at a server folder from another project, without importing any of it.
``EXAMPLE_DATA_CHECKS`` look at a resources server's examples: five tasks, their metrics, five rollouts, no conflict.
"""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from omegaconf import DictConfig

from nemo_gym.audit.findings import Check, Finding
from nemo_gym.config.datasets import BenchmarkDatasetConfig
from nemo_gym.config.instances import ServerInstance, read_instances
from nemo_gym.config.keys import DUMMY_MODEL, RESERVED_KEYS, SERVER_TYPES
from nemo_gym.config.locate import find_readable, readable_candidates, working_in
from nemo_gym.config.servers import blocks, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError, nearest
from nemo_gym.io.yaml_text import read_yaml
from nemo_gym.servers.loader import entrypoint_class, named_class, read_settings_of
from nemo_gym.servers.venvs import read_requirements, unmet

OURS: Final = "nemo_gym"
# What folders of NeMo Gym import that is not here, with the release that brought it.
LACKING: Final = {
    "nemo_gym.rollout_health": "0.7.0",
    "nemo_gym.rollout_outcomes": "0.7.0",
    "nemo_gym.token_id_capture": "0.7.0",
    "nemo_gym.sandbox.agent_tools": "0.7.0",
    "nemo_gym.sandbox.AsyncSandboxCompose": "0.7.0",
    "nemo_gym.sandbox.providers.apptainer": "0.5.0",
    "nemo_gym.rollout_collection.DispatchLatencyTracker": "0.7.0",
}
EXAMPLES: Final = 5


def configured_servers(config: DictConfig) -> list[ServerInstance]:
    """The servers of a configuration, without the model that stands in for one that is not needed."""
    return [instance for instance in read_instances(config) if instance.implementation != DUMMY_MODEL]


def unusable_servers(config: DictConfig) -> Iterator[Finding]:
    """Servers that could not be built, or only in an environment of their own."""
    for instance in configured_servers(config):
        yield from _inspect_server(instance)


def _inspect_server(instance: ServerInstance) -> Iterator[Finding]:
    if not instance.directory.is_dir():
        places = readable_candidates(instance.server_type)
        known = [path.parent.name for place in places for path in place.glob(f"*/{instance.entrypoint}")]
        folder = f"{instance.server_type}/{instance.implementation}"
        yield Finding(
            "error", instance.name, f"there is no folder {folder}", _suggestion(instance.implementation, known)
        )
        return
    missing = unmet(read_requirements(instance.directory))
    if missing:
        packages = ", ".join(missing)
        yield Finding("warning", instance.name, f"gets its own virtual environment, because of {packages}")
        return  # its code can be imported only there
    try:
        with working_in(instance.directory):
            server_class, settings = named_class(entrypoint_class(instance), instance.settings)
            read_settings_of(server_class, settings, where=instance.name)
    except ConfigError as error:
        yield Finding("error", instance.name, str(error).removeprefix(f"{instance.name}: "), error.hint)


def _suggestion(name: str, known: Sequence[str]) -> str | None:
    near = nearest(name, known)
    return f"did you mean {near[0]!r}?" if near else None


def missing_data(config: DictConfig) -> Iterator[Finding]:
    """Files of datasets that do not exist."""
    for name, block in blocks(config):
        server, _ = maybe_get_server_instance_config(name, block)
        for dataset in (server.datasets if server is not None else None) or ():
            if isinstance(dataset, BenchmarkDatasetConfig):
                for path in filter(None, (dataset.prepare_script, dataset.prompt_config)):
                    if find_readable(path) is None:
                        yield Finding("error", name, f"dataset {dataset.name}: there is no file {path}")
            elif find_readable(dataset.jsonl_fpath) is None:
                can_be_fetched = dataset.source or dataset.huggingface_identifier or dataset.gitlab_identifier
                hint = "+should_download=true fetches it" if can_be_fetched else "commands that need it will fail"
                yield Finding("warning", name, f"dataset {dataset.name}: {dataset.jsonl_fpath} does not exist", hint)


CONFIGURATION_CHECKS: Final[tuple[Check[DictConfig], ...]] = (unusable_servers, missing_data)


def unmet_requirements(folder: Path) -> Iterator[Finding]:
    """Packages that are missing here, or a folder that does not say which it needs."""
    for line in unmet(read_requirements(folder)):
        yield Finding("warning", "requirements.txt", f"{line} is not met here")
    if not any((folder / name).is_file() for name in ("requirements.txt", "pyproject.toml")):
        yield Finding("warning", folder.name, "has no requirements.txt, so an installed folder takes precedence")


def broken_sources(folder: Path) -> Iterator[Finding]:
    """Imports that would fail, and files that the code expects outside its folder."""
    for path in sorted(folder.rglob("*.py")):
        yield from _inspect_source(path, folder)


def broken_settings(folder: Path) -> Iterator[Finding]:
    """YAML files that cannot be read, and misspelt types of servers in them."""
    for path in sorted(folder.rglob("*.yaml")):
        yield from _inspect_yaml(path, folder)


FOLDER_CHECKS: Final[tuple[Check[Path], ...]] = (unmet_requirements, broken_sources, broken_settings)


def _inspect_source(path: Path, folder: Path) -> Iterator[Finding]:
    place = path.relative_to(folder)
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        yield Finding("error", str(place), f"is not Python ({error})")
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module, name in _imported(node):
                yield from _broken_import(module, name, f"{place}:{node.lineno}", (path.parent, folder))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("../"):
            yield Finding("warning", f"{place}:{node.lineno}", f"names a file outside the folder: {node.value!r}")


def _imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str | None]]:
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    return [(node.module, alias.name) for alias in node.names] if node.module and not node.level else []


def _broken_import(module: str, name: str | None, place: str, roots: tuple[Path, Path]) -> Iterator[Finding]:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or any((root / f"{top}.py").is_file() for root in roots):
        return
    if top == OURS:
        yield from _missing_name(module, name, place)
    # Other server folders are checked when they are used.
    elif top not in SERVER_TYPES and not (roots[-1] / top).is_dir() and not importlib.util.find_spec(top):
        yield Finding("error", place, f"the package {top!r} is not installed")


def _missing_name(module: str, name: str | None, place: str) -> Iterator[Finding]:
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        yield Finding("error", place, f"there is no module {module}{_since(module)}")
        return
    if name is None or name == "*" or hasattr(loaded, name):
        return
    if not hasattr(loaded, "__path__") or not importlib.util.find_spec(f"{module}.{name}"):
        message = f"{module} has no {name!r}{_since(f'{module}.{name}')}"
        yield Finding("error", place, message, _suggestion(name, dir(loaded)))


def _since(name: str) -> str:
    """Which release of NeMo Gym has a name that is not here, as the end of a message; empty if none is known."""
    known = next((LACKING[each] for each in LACKING if name == each or name.startswith(f"{each}.")), None)
    return f", which NeMo Gym has since {known}" if known else ""


def _inspect_yaml(path: Path, folder: Path) -> Iterator[Finding]:
    place = str(path.relative_to(folder))
    try:
        content: Any = read_yaml(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        yield Finding("error", place, f"is not YAML ({str(error).splitlines()[0]})")
        return
    for name, block in (content or {}).items() if isinstance(content, dict) else ():
        if not isinstance(block, dict) or name in RESERVED_KEYS:
            continue
        for kind in block:
            near = _suggestion(str(kind), SERVER_TYPES) if kind not in SERVER_TYPES else None
            if near and isinstance(block[kind], dict):
                yield Finding("error", place, f"{name}.{kind} is not a type of server", near)


def missing_examples(folder: Path) -> Iterator[Finding]:
    """Files of tasks or rollouts that do not have five rows."""
    for path, hint in (
        (folder / "data" / "example.jsonl", "write five tasks"),
        (folder / "data" / "example_rollouts.jsonl", "run ng_collect_rollouts on data/example.jsonl"),
    ):
        if not path.is_file():
            yield Finding("error", str(path), "is missing", hint)
        elif (count := sum(1 for line in path.read_bytes().splitlines() if line.strip())) != EXAMPLES:
            yield Finding("error", str(path), f"has {count} rows, not {EXAMPLES}")


def wrong_example_metrics(folder: Path) -> Iterator[Finding]:
    """Metrics that are missing or not those of five tasks."""
    path, hint = folder / "data" / "example_metrics.json", "run ng_prepare_data with +mode=example_validation"
    try:
        metrics: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        yield Finding("error", str(path), "is missing", hint)
    except ValueError as error:
        yield Finding("error", str(path), f"is not JSON ({error})", hint)
    else:
        count = metrics.get("Number of examples") if isinstance(metrics, dict) else None
        if count != EXAMPLES:
            message = f'has "Number of examples": {json.dumps(count)}, not {EXAMPLES}'
            yield Finding("error", str(path), message, hint)


def open_conflicts(folder: Path) -> Iterator[Finding]:
    """Metrics that differed from earlier ones and were put aside."""
    for path in sorted((folder / "data").glob("*conflict*")):
        yield Finding("error", str(path), "is an unresolved conflict", "compare it and delete it")


EXAMPLE_DATA_CHECKS: Final[tuple[Check[Path], ...]] = (missing_examples, wrong_example_metrics, open_conflicts)
