"""``ng_init_resources_server``: writes a new resources server, environment or benchmark from a template or a file.

The folder appears whole or not at all: it is built under another name and renamed. An existing folder is left alone.
"""

import ast
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template
from typing import Final, NamedTuple

from nemo_gym import INSTALL_DIR
from nemo_gym.api.environment import Environment
from nemo_gym.api.environment_file import environment_name, find_environment_file, load_environment, symbol_in
from nemo_gym.audit.inspection import EXAMPLES
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.parameters import BLANK, InitConfig, read_parameters
from nemo_gym.errors import ExitCode, UsageError
from nemo_gym.io.json import encode_json


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
NEXT_STEP_IF_MOVED: Final = "ng_test +entrypoint={path}; then delete {source}, which was left as it is"
SUFFIX: Final = ".txt"  # of every template, so that no tool takes it for code or data of this project


def init_resources_server(arguments: Arguments) -> int:
    """Create the folder in the working directory."""
    config = read_parameters(InitConfig, arguments)
    source = find_environment_file(config.from_) if config.from_ else None
    entrypoint = config.entrypoint or (source and f"resources_servers/{environment_name(source)}")
    if not entrypoint:
        raise UsageError("missing parameters: entrypoint", hint="add +entrypoint=<value>, or +from=<file>")
    new = new_folder(entrypoint)
    is_server = new.kind == "resources_servers"
    for given, name in ((config.template != BLANK, "template"), (source is not None, "from")):
        if given and not is_server:
            raise UsageError(f"+{name} is for resources servers, not for {new.kind}", hint="leave it out")
    if source is not None and config.template != BLANK:
        raise UsageError("+from and +template both say what the folder holds", hint="leave out one of them")
    if new.path.exists():
        console.note(f"{new.path} already exists; nothing was changed")
        return ExitCode.OK
    if source is not None:
        write_folder(new.path, moved_files(new, source))
        step = NEXT_STEP_IF_MOVED
    else:
        sources = [_templates(path.format(template=config.template)) for path in TEMPLATES[new.kind]]
        write_folder(new.path, render_files(new.name, sources, requirement=_requirement(new.path)))
        step = NEXT_STEP_IF_BLANK if is_server and config.template == BLANK else NEXT_STEPS[new.kind]
    console.note(f"created {new.path}\n\nnext: {step.format(path=new.path, name=new.name, source=config.from_)}")
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


def moved_files(new: ScaffoldTarget, source: Path) -> Iterator[tuple[str, str]]:
    """The path and text of every file of the folder that an environment in one file becomes."""
    environment = load_environment(source)
    modules = _neighbours(source)
    if taken := modules.keys() & {"app", "environment"}:
        raise UsageError(f"{source} imports {taken.pop()}.py, and the folder has its own", hint="rename that module")
    modules["environment"] = source.read_text("utf-8")
    symbol = symbol_in(source, environment)
    names = {"symbol": symbol, "server": symbol, "max_steps": ""}
    rows: list[str] = []
    if isinstance(environment, Environment):
        names |= {"server": f"{symbol}.server_class()", "agent": environment.agent}
        if environment.max_steps:
            names["max_steps"] = f"      max_steps: {environment.max_steps}\n"
        rows = [encode_json(row).decode() + "\n" for row in environment.rows()]
    templates = [_templates(f"resources_server/{name}") for name in ("common", "from_file")]
    yield from render_files(new.name, templates, requirement=_requirement(new.path), **names)
    for name, text in modules.items():
        yield f"{name}.py", text
    if rows:
        yield "data/train.jsonl", "".join(rows)
        yield "data/example.jsonl", "".join(rows[:EXAMPLES])


def _neighbours(source: Path) -> dict[str, str]:
    """The modules beside a file that it imports by their bare names, directly or through each other."""
    found: dict[str, str] = {}
    pending = [source]
    while pending:
        path = pending.pop()
        for name in imported_modules(path):
            beside = source.parent / f"{name}.py"
            if name not in found and beside != source and beside.is_file():
                found[name] = beside.read_text("utf-8")
                pending.append(beside)
    return found


def imported_modules(path: Path) -> set[str]:
    """The first names of all modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in plain | named}


def render_files(
    name: str, sources: Sequence[Traversable], *, requirement: str, **more: str
) -> Iterator[tuple[str, str]]:
    """The path and text of every file."""
    names = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "title": name.replace("_", " ").strip().capitalize(),
        "requirement": requirement,
        "agent": "simple_agent",
        **more,
    }
    names["next_steps"] = Template(_templates("resources_server/next_steps.md").read_text("utf-8")).substitute(names)
    files: dict[str, Traversable] = {}
    for source in sources:
        files.update(_files(source))
    for path, template in files.items():
        target = path.removesuffix(SUFFIX).replace("configs/name.", f"configs/{name}.")
        target = target.replace("data/gitignore", "data/.gitignore")
        yield target, Template(template.read_text("utf-8")).substitute(names)


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
    if not (INSTALL_DIR / "pyproject.toml").exists():
        return "nemo-gym[dev]"
    return f"-e nemo-gym[dev] @ {os.path.relpath(INSTALL_DIR, folder)}/"
