"""What is imported is declared: in pyproject.toml, or in the requirements of the server folder that imports it."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVER_FOLDERS = ("resources_servers", "responses_api_agents", "responses_api_models")
OURS = {"nemo_gym", "benchmarks", *SERVER_FOLDERS}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def names_in(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=!~;@ ]", line.strip())[0]) for line in requirements if line.strip()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


CORE = names_in(PROJECT["dependencies"])
EXTRAS = set().union(*(names_in(extra) for extra in PROJECT["optional-dependencies"].values()))


def imported_by(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names) - OURS


INSTALLED = packages_distributions()  # reads the metadata of everything that is installed


def distributions_of(package: str) -> set[str]:
    return {normal(name) for name in INSTALLED.get(package, [package])}


def folders() -> list[Path]:
    return [ROOT / "nemo_gym", *(path for kind in SERVER_FOLDERS for path in sorted((ROOT / kind).glob("*/")))]


@pytest.mark.parametrize("folder", folders(), ids=lambda path: path.name)
def test_what_is_imported_is_declared(folder: Path) -> None:
    requirements = folder / "requirements.txt"
    own = names_in(requirements.read_text("utf-8").splitlines()) if requirements.is_file() else set()
    neighbours = {path.stem for path in folder.rglob("*.py")} if folder.name != "nemo_gym" else set()
    undeclared = {
        f"{path.relative_to(ROOT)} imports {package}"
        for path in folder.rglob("*.py")
        if "tests" not in path.parts and "templates" not in path.parts
        for package in imported_by(path) - neighbours
        if not distributions_of(package) & (CORE | EXTRAS | own)
    }
    assert undeclared == set()
