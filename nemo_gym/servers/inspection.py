"""Checks servers without running them: what would stop them, and what would silently have no effect.

``inspect_servers`` checks the servers of a configuration: folders, entrypoints, settings, data files, prompts.
``inspect_folder`` checks a server folder from another project, without importing any of it.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from omegaconf import DictConfig

from nemo_gym.config.datasets import BenchmarkDatasetConfig
from nemo_gym.config.instances import ServerInstance, read_instances
from nemo_gym.config.keys import DUMMY_MODEL, RESERVED_KEYS, SERVER_TYPES
from nemo_gym.config.locate import find_readable, readable_candidates, working_in
from nemo_gym.config.servers import blocks, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError, nearest
from nemo_gym.servers.loader import load_server_class, read_settings_of
from nemo_gym.servers.venvs import read_requirements, unmet

Kind = Literal["error", "warning"]
OURS: Final = "nemo_gym"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or warning about a server that has not been started."""

    kind: Kind
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}: {self.message}"


def inspect_servers(config: DictConfig) -> list[Finding]:
    """What is wrong with the servers of a configuration."""
    instances = [instance for instance in read_instances(config) if instance.implementation != DUMMY_MODEL]
    return [*(finding for one in instances for finding in _inspect_server(one)), *_inspect_datasets(config)]


def _inspect_server(instance: ServerInstance) -> Iterator[Finding]:
    if not instance.directory.is_dir():
        places = readable_candidates(instance.server_type)
        known = [path.parent.name for place in places for path in place.glob(f"*/{instance.entrypoint}")]
        near = nearest(instance.implementation, known)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        folder = f"{instance.server_type}/{instance.implementation}"
        yield Finding("error", instance.name, f"there is no folder {folder}{advice}")
        return
    missing = unmet(read_requirements(instance.directory))
    if missing:
        packages = ", ".join(missing)
        yield Finding("warning", instance.name, f"gets its own virtual environment, because of {packages}")
        return  # its code can be imported only there
    try:
        with working_in(instance.directory):
            read_settings_of(load_server_class(instance), instance.settings, where=instance.name)
    except ConfigError as error:
        yield Finding("error", instance.name, str(error).removeprefix(f"{instance.name}: "))


def _inspect_datasets(config: DictConfig) -> Iterator[Finding]:
    for name, block in blocks(config):
        server, _ = maybe_get_server_instance_config(name, block)
        for dataset in (server.datasets if server is not None else None) or ():
            if isinstance(dataset, BenchmarkDatasetConfig):
                for path in filter(None, (dataset.prepare_script, dataset.prompt_config)):
                    if find_readable(path) is None:
                        yield Finding("error", name, f"dataset {dataset.name}: there is no file {path}")
            elif find_readable(dataset.jsonl_fpath) is None:
                can_be_fetched = dataset.source or dataset.huggingface_identifier or dataset.gitlab_identifier
                advice = "+should_download=true fetches it" if can_be_fetched else "commands that need it will fail"
                message = f"dataset {dataset.name}: {dataset.jsonl_fpath} does not exist ({advice})"
                yield Finding("warning", name, message)


def inspect_folder(folder: Path) -> list[Finding]:
    """What will not work, or will work differently, in a server folder. None of its code is imported."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="for example resources_servers/my_thing")
    findings = [
        Finding("warning", "requirements.txt", f"{line} is not met here") for line in unmet(read_requirements(folder))
    ]
    for path in sorted(folder.rglob("*.py")):
        findings += _inspect_source(path, folder)
    for path in sorted(folder.rglob("*.yaml")):
        findings += _inspect_yaml(path, folder)
    if not any((folder / name).is_file() for name in ("requirements.txt", "pyproject.toml")):
        findings.append(
            Finding("warning", folder.name, "has no requirements.txt, so an installed folder takes precedence")
        )
    return findings


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
                problem = _import_problem(module, name, path, folder)
                if problem is not None:
                    yield Finding("error", f"{place}:{node.lineno}", problem)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("../"):
            yield Finding("warning", f"{place}:{node.lineno}", f"names a file outside the folder: {node.value!r}")


def _imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str | None]]:
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    return [(node.module, alias.name) for alias in node.names] if node.module and not node.level else []


def _import_problem(module: str, name: str | None, path: Path, folder: Path) -> str | None:
    """Why an import would fail; None if it would not."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or any((place / f"{top}.py").is_file() for place in (path.parent, folder)):
        return None
    if top == OURS:
        return _missing_name(module, name)
    if top in SERVER_TYPES or (folder / top).is_dir():
        return None  # other server folders are checked when they are used
    return None if importlib.util.find_spec(top) else f"the package {top!r} is not installed"


def _missing_name(module: str, name: str | None) -> str | None:
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return f"there is no module {module}"
    if name is None or name == "*" or hasattr(loaded, name):
        return None
    if hasattr(loaded, "__path__") and importlib.util.find_spec(f"{module}.{name}"):
        return None
    near = nearest(name, dir(loaded))
    return f"{module} has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _inspect_yaml(path: Path, folder: Path) -> Iterator[Finding]:
    place = str(path.relative_to(folder))
    try:
        content: Any = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        yield Finding("error", place, f"is not YAML ({str(error).splitlines()[0]})")
        return
    for name, block in (content or {}).items() if isinstance(content, dict) else ():
        if not isinstance(block, dict) or name in RESERVED_KEYS:
            continue
        for kind in block:
            near = nearest(str(kind), SERVER_TYPES) if kind not in SERVER_TYPES else []
            if near and isinstance(block[kind], dict):
                yield Finding("error", place, f"{name}.{kind}: did you mean {near[0]!r}?")


def errors_in(findings: Sequence[Finding]) -> int:
    """The number of findings that stop a server."""
    return sum(finding.kind == "error" for finding in findings)
