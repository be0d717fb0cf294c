"""``ng_init_resources_server``: writes a new resources server, environment or benchmark from a template.

The folder appears whole or not at all: it is built under another name and renamed. An existing folder is left alone.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template
from typing import Final, NamedTuple

from nemo_gym import PARENT_DIR
from nemo_gym.cli import console
from nemo_gym.cli.parameters import BLANK, InitConfig, read_parameters
from nemo_gym.errors import ExitCode, UsageError


class ScaffoldTarget(NamedTuple):
    """The folder to write: ``resources_servers/<name>``, for example."""

    kind: str
    name: str

    @property
    def path(self) -> Path:
        """Where it will be, seen from the working directory."""
        return Path(self.kind) / self.name


# The folders of templates that each kind is made from; what a later one holds replaces files of an earlier one.
TEMPLATES: Final = {
    "resources_servers": ("resources_server/common", "resources_server/{template}"),
    "environments": ("environment",),
    "benchmarks": ("benchmark",),
}
NEXT_STEPS: Final = {
    "resources_servers": "change {path}/app.py and data/example.jsonl, then ng_test +entrypoint={path}",
    "environments": "change {path}/config.yaml and data/example.jsonl, then ng env validate --environment {name}",
    "benchmarks": "change {path}/prepare.py and prompt.yaml, then ng eval prepare --benchmark {name}",
}
NEXT_STEP_IF_BLANK: Final = "write verify() in {path}/app.py, then ng_test +entrypoint={path}"
SUFFIX: Final = ".txt"  # of every template, so that no tool takes it for code or data of this project


def init_resources_server(overrides: Sequence[str]) -> int:
    """Create the folder in the working directory."""
    config = read_parameters(InitConfig, overrides)
    new = new_folder(config.entrypoint)
    is_server = new.kind == "resources_servers"
    if not is_server and config.template != BLANK:
        raise UsageError(f"+template is for resources servers, not for {new.kind}", hint="leave it out")
    if new.path.exists():
        console.note(f"{new.path} already exists; nothing was changed")
        return ExitCode.OK
    sources = [_templates(path.format(template=config.template)) for path in TEMPLATES[new.kind]]
    write_folder(new.path, render(new.name, sources, requirement=_requirement(new.path)))
    step = NEXT_STEP_IF_BLANK if is_server and config.template == BLANK else NEXT_STEPS[new.kind]
    console.note(f"created {new.path}\n\nnext: {step.format(path=new.path, name=new.name)}")
    return ExitCode.OK


def new_folder(entrypoint: str) -> ScaffoldTarget:
    """Kind and name in ``resources_servers/<name>``; the name must also be the name of a Python module."""
    kind, _, name = entrypoint.rstrip("/").partition("/")
    if kind not in TEMPLATES or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise UsageError(
            f"entrypoint {entrypoint!r} is not resources_servers/<name> with lower-case letters, digits and _",
            hint="for example: +entrypoint=resources_servers/my_thing; environments/<name> and benchmarks/<name>"
            " can be made, too",
        )
    return ScaffoldTarget(kind, name)


def render(name: str, sources: Sequence[Traversable], *, requirement: str) -> Iterator[tuple[str, str]]:
    """The path and text of every file."""
    words = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "title": name.replace("_", " ").strip().capitalize(),
        "requirement": requirement,
    }
    words["next_steps"] = Template(_templates("resources_server/next_steps.md").read_text("utf-8")).substitute(words)
    files: dict[str, Traversable] = {}
    for source in sources:
        files.update(_files(source))
    for path, template in files.items():
        target = path.removesuffix(SUFFIX).replace("configs/name.", f"configs/{name}.")
        target = target.replace("data/gitignore", "data/.gitignore")
        yield target, Template(template.read_text("utf-8")).substitute(words)


def write_folder(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write the files to a temporary folder beside the final one, then rename it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # In the same parent, because a rename works only within one file system.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as aside:
        built = Path(aside) / folder.name
        for path, text in files:
            target = built / PurePosixPath(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        built.rename(folder)


def _templates(path: str) -> Traversable:
    return resources.files("nemo_gym.cli").joinpath("templates", *path.split("/"))


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            yield prefix + entry.name, entry


def _requirement(folder: Path) -> str:
    """The requirement on this package as all server folders write it; in a checkout, the path to the checkout."""
    if not (PARENT_DIR / "pyproject.toml").exists():
        return "nemo-gym[dev]"
    return f"-e nemo-gym[dev] @ {os.path.relpath(PARENT_DIR, folder)}/"
