"""Short names of configurations: ``mcqa`` stands for ``resources_servers/mcqa/configs/mcqa.yaml``.

``NAME/FLAVOR`` picks one of several files in a folder. Folders are looked for in the given search directories, then in
the working directory, then where the package is installed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nemo_gym import INSTALL_DIR
from nemo_gym.errors import UsageError, did_you_mean, nearest


class _Layout(NamedTuple):
    """Where the folders of one kind keep their configurations, and which of them is meant if none is chosen."""

    pattern: str
    usual: str = ""  # by default the one with the name of the folder


_LAYOUTS: Final = {
    "resources_servers": _Layout("configs/*.yaml"),
    "responses_api_models": _Layout("configs/*.yaml"),
    "environments": _Layout("*.yaml", "config"),
    "benchmarks": _Layout("*.yaml", "config"),
}


def find_configuration(kind: str, value: str, search: Sequence[str] = ()) -> str:
    """The path of the configuration ``NAME[/FLAVOR]`` below ``resources_servers``, ``benchmarks`` and so on."""
    name, _, flavor = value.partition("/")
    layout = _LAYOUTS[kind]
    roots = [*map(Path, search), Path(), INSTALL_DIR]
    for root in roots:
        files = {file.stem: file for file in sorted((root / kind / name).glob(layout.pattern))}
        if files:
            chosen = _pick(f"{kind}/{name}", files, flavor, layout.usual or name)
            return str(chosen.relative_to(INSTALL_DIR) if root == INSTALL_DIR else chosen)
    known = _configured(kind, roots)
    raise UsageError(
        f"no {kind}/{name} with a configuration file", hint=did_you_mean(name, known, available=f"In {kind}")
    )


def _configured(kind: str, roots: Sequence[Path]) -> set[str]:
    """The names of all folders of a kind that have a configuration."""
    pattern = _LAYOUTS[kind].pattern
    return {path.name for root in roots for path in (root / kind).glob("*") if any(path.glob(pattern))}


def find_environment(value: str) -> str:
    """The path of the configuration of an environment or a benchmark: ``NAME[/FLAVOR]``, or the path of its folder."""
    name = value.partition("/")[0]
    known: set[str] = set()
    for kind in ("resources_servers", "environments", "benchmarks"):
        names = _configured(kind, (Path(), INSTALL_DIR))
        if name in names:
            return find_configuration(kind, value)
        known |= names
    if folder := next((root / value for root in (Path(), INSTALL_DIR) if (root / value).is_dir()), None):
        return _configuration_in(folder, shown=value)
    similar = f"did you mean {' or '.join(near)}? " if (near := nearest(name, known)) else ""
    raise UsageError(
        f"no environment or benchmark is called {name}",
        hint=f"{similar}ng search <word> finds them by topic; files are named with their ending, .yaml or .py",
    )


def _configuration_in(folder: Path, *, shown: str) -> str:
    """The configuration of a folder that is named by its path."""
    name = folder.resolve().name
    for layout in dict.fromkeys(_LAYOUTS.values()):
        files = {file.stem: str(file) for file in sorted(folder.glob(layout.pattern))}
        if len(files) > 1 and (layout.usual or name) not in files:
            raise UsageError(f"{shown} has several configurations", hint=f"name one: {', '.join(files.values())}")
        if files:
            return files.get(layout.usual or name) or next(iter(files.values()))
    raise UsageError(
        f"the folder {shown} has no configuration",
        hint=f"write {shown.rstrip('/')}/configs/{name}.yaml, or name the .py file that defines the environment",
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
