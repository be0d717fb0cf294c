"""Lists what can be run, here and in the installation: ``ng_list_benchmarks``, ``ng_list_environments``, …"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import yaml

from nemo_gym.benchmarks import discover_benchmarks
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.parameters import ListConfig, read_parameters
from nemo_gym.cli.testing import ServerFolder, find_servers
from nemo_gym.config.keys import RESPONSES_API_AGENTS, RESPONSES_API_MODELS
from nemo_gym.errors import ExitCode, UsageError, did_you_mean
from nemo_gym.io.yaml_text import read_yaml
from nemo_gym.servers.venvs import read_requirements, unmet

SIMILAR: Final = 0.7


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One line of a list of server folders."""

    name: str
    domain: str | None
    licence: str | None
    needs: str | None  # packages that are not installed here; the server gets its own environment
    description: str | None
    path: str


def list_benchmarks(arguments: Arguments) -> int:
    """Print the benchmarks as a table or JSON."""
    config = read_parameters(ListConfig, _with_bare_word(arguments, "query"))
    names = ("name", "domain", "agent_name", "num_repeats")
    rows = [{name: getattr(benchmark, name) for name in names} for benchmark in discover_benchmarks().values()]
    return _show(rows, config, ("Benchmark name", "Domain", "Agent name", "Num repeats"), "benchmarks")


def list_environments(arguments: Arguments) -> int:
    """Print the environments with their domain, licence and missing packages."""
    return _list_servers(_environments(), "environments", arguments)


def list_resources_servers(arguments: Arguments) -> int:
    """The same under the name of the folder; a bare word is the name of one server."""
    return _list_servers(_environments(), "resources servers", arguments)


def list_agents(arguments: Arguments) -> int:
    """Print the agents."""
    return _list_servers(_folders(RESPONSES_API_AGENTS), "agents", arguments)


def list_models(arguments: Arguments) -> int:
    """Print the model servers."""
    return _list_servers(_folders(RESPONSES_API_MODELS), "models", arguments)


def search(arguments: Arguments) -> int:
    """Print every server folder and benchmark that matches a word."""
    config = read_parameters(ListConfig, _with_bare_word(arguments, "query"))
    if not config.query:
        raise UsageError("nothing to search for", hint="for example: ng search math")
    rows = [{"kind": folder.type, **asdict(describe_folder(folder))} for folder in find_servers()]
    rows += [
        {"kind": "benchmarks", "name": name, "domain": found.domain, "path": str(found.path)}
        for name, found in discover_benchmarks().items()
    ]
    rows = [{name: row.get(name) for name in ("kind", "name", "domain", "description", "path")} for row in rows]
    return _show(rows, config, ("Kind", "Name", "Domain", "Description", "Path"), "entries")


def _environments() -> list[ServerFolder]:
    return [folder for folder in find_servers() if folder.is_environment]


def _folders(kind: str) -> list[ServerFolder]:
    return [folder for folder in find_servers() if folder.type == kind]


def _list_servers(folders: Sequence[ServerFolder], what: str, arguments: Arguments) -> int:
    config = read_parameters(ListConfig, _with_bare_word(arguments, "name"))
    rows = [asdict(describe_folder(folder)) for folder in folders]
    return _show(rows, config, tuple(field.name.capitalize() for field in fields(CatalogueEntry)), what)


def _with_bare_word(arguments: Arguments, parameter: str) -> Arguments:
    """Read a bare word as the value of a parameter: ``ng search math``, ``ng list environments calculator``."""
    word = next((word for word in arguments.overrides if re.fullmatch(r"[A-Za-z]\w*", word)), None)
    return arguments.with_pairs({parameter: word}, without=[word]) if word else arguments


def describe_folder(folder: ServerFolder) -> CatalogueEntry:
    """What the configurations and the README of a server folder say about it."""
    settings = list(_settings(folder.path))
    datasets = [dataset for block in settings for dataset in block.get("datasets") or () if isinstance(dataset, dict)]
    own = next((block for block in settings if "domain" in block), {})
    return CatalogueEntry(
        name=folder.name,
        domain=own.get("domain"),
        licence=next((dataset["license"] for dataset in datasets if dataset.get("license")), None),
        needs=", ".join(unmet(read_requirements(folder.path))) or None,
        description=own.get("description") or _first_sentence(folder.path / "README.md"),
        path=str(folder.path),
    )


def _settings(folder: Path) -> Iterator[dict[str, Any]]:
    """The server blocks in a folder's configurations. Files that are not YAML are skipped."""
    for path in sorted(folder.glob("configs/*.yaml")):
        try:
            content = read_yaml(path.read_text("utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            continue
        for block in content.values() if isinstance(content, dict) else ():
            for implementations in block.values() if isinstance(block, dict) else ():
                for settings in implementations.values() if isinstance(implementations, dict) else ():
                    if isinstance(settings, dict):
                        yield settings


def _first_sentence(readme: Path) -> str | None:
    """The first sentence of a README below its title."""
    lines = readme.read_text("utf-8").splitlines() if readme.is_file() else []
    text = " ".join(line for line in lines if line and not line.startswith(("#", "|", "!", "<", "`")))
    return text.partition(". ")[0][:100] or None


def _show(rows: Sequence[dict[str, Any]], config: ListConfig, titles: Sequence[str], what: str) -> int:
    found = [row for row in rows if not config.query or _matches(row, config.query)]
    if config.name:
        found = [row for row in rows if row["name"] == config.name]
        if not found:
            hint = did_you_mean(config.name, [row["name"] for row in rows], available="Available")
            raise UsageError(f"no {what} named {config.name}", hint=hint)
    if config.json_:
        console.emit(json.dumps(found, indent=2))
    elif config.name:
        console.emit(console.columns([(name, str(value or "")) for name, value in found[0].items()]))
    elif found:
        # Paths would make the table too wide for a terminal; --name and --json show them.
        cells = [tuple(str(cell or "") for name, cell in row.items() if name != "path") for row in found]
        console.emit(console.table(tuple(title for title in titles if title != "Path"), cells))
    else:
        console.note(f"no {what} found" + (f" for {config.query!r}" if config.query else ""))
    return ExitCode.OK


def _matches(row: dict[str, Any], query: str) -> bool:
    """Whether the name, domain or description contains the query or resembles it."""
    wanted = query.lower()
    texts = [str(row[name]).lower() for name in ("name", "domain", "description") if row.get(name)]
    return any(wanted in text or difflib.SequenceMatcher(a=wanted, b=text).ratio() >= SIMILAR for text in texts)
