"""Rows of the workspace: what a world starts with, and the tests that enter it only after the agent has ended."""

import ast
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse

_MOST_FILES: Final = 5000


def _stays_inside(path: str) -> str:
    if not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} does not name a file of the workspace")
    return path


InnerPath = Annotated[str, AfterValidator(_stays_inside)]
Files = Annotated[dict[InnerPath, str], Field(max_length=_MOST_FILES)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WorkspacePackage(_Strict):
    """The source archive of a package of the index, pinned by its checksum."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class WorkspaceStart(_Strict):
    """What the agent finds: files of the row, over a folder of this machine, over a package, over an image."""

    files: Files = {}
    folder: str | None = None
    package: WorkspacePackage | None = None
    image: str | None = None
    setup: str | None = None
    environment: dict[str, str] = {}

    @model_validator(mode="after")
    def _is_not_empty(self) -> "WorkspaceStart":
        if not (self.files or self.folder or self.package or self.image or self.setup):
            raise ValueError("a workspace starts from files, a folder, a package, an image or a setup command")
        return self


class WorkspaceTests(_Strict):
    """What is run on a copy of the frozen workspace: a command, or the tests in Python files.

    ``files`` are put in the place of the agent's. A command passes with exit code 0, or writes its own score, a number
    from 0 to 1, into ``score_file``. Tests that pass from the start are ``guards``: they do not count, but if one of
    them fails, nothing does.
    """

    kind: Literal["command", "python"] = "python"
    files: Files = {}
    command: str | None = None
    score_file: str | None = None
    timeout_s: float | None = Field(default=None, gt=0)
    guards: list[str] = []

    @model_validator(mode="after")
    def _can_be_run(self) -> "WorkspaceTests":
        if self.kind == "command":
            if not self.command:
                raise ValueError("tests by a command need a command")
        elif self.command or self.score_file:
            raise ValueError("tests in Python files have neither a command nor a score_file")
        elif not set(self.names) - set(self.guards):
            raise ValueError("in the files of the tests there is no function test_… that is not among the guards")
        if unknown := set(self.guards) - set(self.names):
            raise ValueError(f"there is no test {', '.join(sorted(unknown))}")
        return self

    @property
    def names(self) -> list[str]:
        """The tests in the files, as ``file::function`` or ``file::class::method``."""
        return [name for path, text in self.files.items() if path.endswith(".py") for name in tests_in(path, text)]


class WorkspaceChanges(BaseModel):
    """What a program changed that worked on a copy of the workspace."""

    files: Files = {}
    removed: list[InnerPath] = []


class WorkspaceTask(BaseModel):
    """The fields of a row that this environment reads."""

    world: WorkspaceStart
    tests: WorkspaceTests


class WorkspaceVerifyRequest(WorkspaceTask, BaseVerifyRequest):
    """A row with the agent's response."""

    question: str | None = None
    category: str | None = None
    difficulty: int | None = None
    workspace: WorkspaceChanges | None = Field(default=None, exclude=True)


class WorkspaceVerifyResponse(WorkspaceVerifyRequest, BaseVerifyResponse):
    """The row with its reward, how the tests ended, and what the agent changed."""

    accuracy: float
    fraction_passed: float
    tests_passed: int
    tests_total: int
    reason: str | None
    tests_output: str
    workspace_diff: str


def tests_in(path: str, text: str) -> list[str]:
    """The names of the tests in a Python file, found without running it."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"{path} is not Python: {error}") from None
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.append(f"{path}::{node.name}")
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found += [f"{path}::{node.name}::{each.name}" for each in methods if each.name.startswith("test")]
    return found
