"""A repair task: which package, how it was broken, and which tests tell; and the files that follow from it.

A row holds names of tests and a few replaced words, never the package. Files come from the package's archive: what the
agent gets is the broken source with the tests that it may see, and what verifies it is the archive's own tests.
"""

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.errors import ConfigError
from resources_servers.code_repair.mutations import Mutation, apply_edits
from resources_servers.code_repair.packages import Package, files_of, package_named

Files = dict[str, bytes]


class RepairTests(BaseModel):
    """Tests by name. ``failing`` ones fail because of the mutations; the agent sees ``shown``."""

    model_config = ConfigDict(extra="forbid")

    failing: list[str] = Field(min_length=1)
    passing: list[str] = Field(min_length=1)
    shown: str | None = None

    @property
    def hidden(self) -> list[str]:
        """The failing tests that the agent does not see."""
        return [name for name in self.failing if name != self.shown]

    @property
    def files(self) -> list[str]:
        """The files of all these tests."""
        return sorted({file_of(name) for name in (*self.failing, *self.passing)})


class RepairTask(BaseModel):
    """The part of a row that says what is to be repaired."""

    package: str
    version: str
    mutations: list[Mutation] = Field(min_length=1)
    tests: RepairTests

    @model_validator(mode="after")
    def _is_prepared(self) -> "RepairTask":
        package = package_named(self.package)
        if package.archive.version != self.version:
            raise ValueError(f"the row is made for {self.package} {self.version}, not {package.archive.version}")
        return self


def key_of(row: Mapping[str, Any]) -> str:
    """What makes two rows the same task."""
    return json.dumps([row["package"], row["mutations"]], sort_keys=True)


def file_of(test: str) -> str:
    """The file that a test is in."""
    return test.partition("::")[0]


def broken_source(package: Package, mutations: Iterable[Mutation]) -> Files:
    """The files that mutations change, as they are afterwards."""
    changed: Files = {}
    original = files_of(package.name)
    for mutation in mutations:
        content = changed.get(mutation.path) or original[mutation.path]
        changed[mutation.path] = apply_edits(content.decode(), mutation.edits).encode()
    return changed


def visible_files(task: RepairTask) -> Files:
    """What the agent finds: the broken package, without the tests that are to tell whether it was repaired."""
    package = package_named(task.package)
    files = {**files_of(package.name), **broken_source(package, task.mutations)}
    for path in {file_of(name) for name in task.tests.hidden}:
        hidden = {name.partition("::")[2] for name in task.tests.hidden if file_of(name) == path}
        files[path] = without_tests(files[path].decode(), hidden).encode()
    return files


def verified_files(task: RepairTask, repaired: Mapping[str, bytes]) -> Files:
    """What verification runs: the archive, with only the package's own modules as the agent left them.

    Tests, configuration and everything else that the agent may have changed or added do not enter.
    """
    package = package_named(task.package)
    kept = {path: content for path, content in files_of(package.name).items() if not is_module(package, path)}
    return {**kept, **{path: content for path, content in repaired.items() if is_module(package, path)}}


def is_module(package: Package, path: str) -> bool:
    """Whether a path is a module of the package, and neither a test nor anything that configures tests."""
    inside = path == package.source or path.startswith(f"{package.source}/")
    parts = PurePosixPath(path).parts
    return inside and path.endswith(".py") and "tests" not in parts and parts[-1] != "conftest.py"


def without_tests(source: str, names: Iterable[str]) -> str:
    """The source of a test file without some tests, named as in ``TestClass::test_method``."""
    left = set(names)
    tree = ast.parse(source)
    edits: list[tuple[int, int, str]] = []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        kept = len(body)
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and f"{prefix}{node.name}" in left:
                left.discard(f"{prefix}{node.name}")
                kept -= 1
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                filler = "" if kept else " " * node.col_offset + "pass\n"
                edits.append((first, node.end_lineno or first, filler))

    visit(tree.body, "")
    if left:
        raise ConfigError(f"there are no tests {', '.join(sorted(left))} in the file")
    lines = source.splitlines(keepends=True)
    for first, last, filler in reversed(edits):
        lines[first - 1 : last] = [filler]
    return "".join(lines)
