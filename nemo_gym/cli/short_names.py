"""Short names of configurations: ``mcqa`` stands for ``resources_servers/mcqa/configs/mcqa.yaml``.

``NAME/FLAVOR`` picks one of several files in a folder. Folders are looked for in the given search directories, then in
the working directory, then where the package is installed. A path inside the last two is returned relative, as a
person would have typed it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nemo_gym import PARENT_DIR
from nemo_gym.errors import UsageError, did_you_mean


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
    """The path of the configuration ``NAME[/FLAVOR]`` below ``resources_servers``, ``benchmarks`` and the like."""
    name, _, flavor = value.partition("/")
    layout = _LAYOUTS[kind]
    roots = [*map(Path, search), Path(), PARENT_DIR]
    for root in roots:
        files = {file.stem: file for file in sorted((root / kind / name).glob(layout.pattern))}
        if files:
            chosen = _pick(f"{kind}/{name}", files, flavor, layout.usual or name)
            return str(chosen.relative_to(PARENT_DIR) if root == PARENT_DIR else chosen)
    known = {path.name for root in roots for path in (root / kind).glob("*") if any(path.glob(layout.pattern))}
    raise UsageError(
        f"no {kind}/{name} with a configuration file", hint=did_you_mean(name, known, available=f"In {kind}")
    )


def find_environment(value: str) -> str:
    """The path of the configuration ``NAME[/FLAVOR]`` of an environment or a benchmark, whichever has that name."""
    name = value.partition("/")[0]
    for kind in ("resources_servers", "environments", "benchmarks"):
        if any(any((root / kind / name).glob(_LAYOUTS[kind].pattern)) for root in (Path(), PARENT_DIR)):
            return find_configuration(kind, value)
    raise UsageError(
        f"no environment or benchmark is called {value}",
        hint="ng search lists what there is; a file goes into --config",
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
