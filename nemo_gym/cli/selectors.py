"""Short names for configuration files: ``--resources-server mcqa`` for ``resources_servers/mcqa/configs/mcqa.yaml``.

``NAME/FLAVOR`` picks one of several files of a folder. Folders are looked for in the given search directories, then in
the working directory, then where the package is installed. A path inside the last two is returned relative, the way
a person would have typed it.
"""

from collections.abc import Sequence
from pathlib import Path

from nemo_gym import PARENT_DIR
from nemo_gym.cli.outcome import UsageError
from nemo_gym.config.suggest import did_you_mean


def benchmark(value: str, search: Sequence[str]) -> str:
    """Resolve ``--benchmark NAME[/FLAVOR]``."""
    return _choose("benchmarks", value, "*.yaml", "config", search)


def environment(value: str, search: Sequence[str]) -> str:
    """Resolve ``--environment NAME``."""
    return _choose("environments", value, "*.yaml", "config", search)


def resources_server(value: str, search: Sequence[str]) -> str:
    """Resolve ``--resources-server NAME[/FLAVOR]``."""
    return _choose("resources_servers", value, "configs/*.yaml", None, search)


def model_type(value: str, search: Sequence[str]) -> str:
    """Resolve ``--model-type NAME[/FLAVOR]``."""
    return _choose("responses_api_models", value, "configs/*.yaml", None, search)


def resources_folder(value: str, search: Sequence[str]) -> str:  # noqa: ARG001 - one shape for all that convert
    """Read ``--resources-server NAME`` where a folder, not a file, is meant."""
    return f"resources_servers/{value}"


def _choose(kind: str, value: str, pattern: str, usual: str | None, search: Sequence[str]) -> str:
    name, _, flavor = value.partition("/")
    roots = [Path(directory) for directory in search] + [Path(), PARENT_DIR]
    for root in roots:
        files = {file.stem: file for file in sorted((root / kind / name).glob(pattern))}
        if files:
            chosen = _pick(f"{kind}/{name}", files, flavor, usual or name)
            return str(chosen.relative_to(PARENT_DIR) if root == PARENT_DIR else chosen)
    known = {path.name for root in roots for path in (root / kind).glob("*") if any(path.glob(pattern))}
    raise UsageError(
        f"no {kind}/{name} with a configuration file", hint=did_you_mean(name, known, available=f"In {kind}")
    )


def _pick(folder: str, files: dict[str, Path], flavor: str, usual: str) -> Path:
    if not flavor and len(files) == 1:
        return next(iter(files.values()))
    wanted = flavor or usual
    if wanted in files:
        return files[wanted]
    problem = f"{folder} has no configuration {flavor!r}" if flavor else f"{folder} has several configurations"
    name = Path(folder).name
    raise UsageError(problem, hint=f"choose one: {', '.join(f'{name}/{stem}' for stem in files)}")
