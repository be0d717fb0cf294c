"""``ng_init_resources_server``: writes the skeleton of a new resources server.

The folder appears whole or not at all: it is built under another name and renamed. An existing folder is left alone.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from string import Template
from typing import Final

from nemo_gym import PARENT_DIR
from nemo_gym.cli import console
from nemo_gym.cli.command import Exit, UsageError
from nemo_gym.cli.parameters import InitConfig, read_parameters

# The template of each file in the new folder.
FILES: Final = {
    "app.py": "app.py.txt",
    "configs/{name}.yaml": "configs/name.yaml.txt",
    "tests/test_app.py": "tests/test_app.py.txt",
    "requirements.txt": "requirements.txt.txt",
    "README.md": "README.md.txt",
    "data/.gitignore": "data/gitignore.txt",
}


def init_resources_server(overrides: Sequence[str]) -> int:
    """Create ``resources_servers/<name>`` in the working directory."""
    name = server_name(read_parameters(InitConfig, overrides).entrypoint)
    folder = Path("resources_servers") / name
    if folder.exists():
        console.note(f"{folder} already exists; nothing was changed")
        return Exit.OK
    write_folder(folder, render(name, requirement=_requirement(folder)))
    console.note(f"created {folder}\n\nnext: write verify() in {folder}/app.py, then ng_test +entrypoint={folder}")
    return Exit.OK


def server_name(entrypoint: str) -> str:
    """The name in ``resources_servers/<name>``, which must also be the name of a Python module."""
    kind, _, name = entrypoint.rstrip("/").partition("/")
    if kind != "resources_servers" or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise UsageError(
            f"entrypoint {entrypoint!r} is not resources_servers/<name> with lower-case letters, digits and _",
            hint="for example: +entrypoint=resources_servers/my_thing",
        )
    return name


def render(name: str, *, requirement: str) -> Iterator[tuple[str, str]]:
    """The path and text of every file."""
    words = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "title": name.replace("_", " ").strip().capitalize(),
        "requirement": requirement,
    }
    for target, source in FILES.items():
        yield target.format(name=name), _fill(source, words)


def write_folder(folder: Path, files: Iterator[tuple[str, str]]) -> None:
    """Write the files to a temporary folder beside the final one, then rename it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as aside:
        built = Path(aside) / folder.name
        for path, text in files:
            target = built / PurePosixPath(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        built.rename(folder)


def _fill(source: str, words: Mapping[str, str]) -> str:
    template = resources.files("nemo_gym.cli").joinpath("templates/resources_server", source)
    return Template(template.read_text("utf-8")).substitute(words)


def _requirement(folder: Path) -> str:
    """The requirement on this package as all server folders write it; in a checkout, the path to the checkout."""
    if not (PARENT_DIR / "pyproject.toml").exists():
        return "nemo-gym[dev]"
    return f"-e nemo-gym[dev] @ {os.path.relpath(PARENT_DIR, folder)}/"
