"""Packages in which functions were broken: the agent repairs them in a workspace, and hidden tests decide."""

import asyncio
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from fastapi import HTTPException, Request, status
from pydantic import PrivateAttr

from nemo_gym.base_resources_server import BaseSeedSessionResponse, BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.reward_profile import compute_subset_metrics
from nemo_gym.sandbox import LazyRunner, SandboxSettings, World, WorldFileError, WorldSpec
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.code_repair.packages import files_of, package_named, pytest_folder
from resources_servers.code_repair.tasks import Files, RepairTask, is_module, visible_files
from resources_servers.code_repair.trial import LIMITS, judge
from resources_servers.workspace.app import WorkspaceConfig, WorkspaceServer
from resources_servers.workspace.grading import Grade
from resources_servers.workspace.tasks import WorkspaceStart, WorkspaceTask, WorkspaceTests

_ANY_START: Final = WorkspaceTask(
    world=WorkspaceStart(setup=":"), tests=WorkspaceTests(kind="command", command="false")
)


class CodeRepairConfig(WorkspaceConfig):
    """The settings of a workspace."""

    output_chars: int = 8_000
    disk_mib: int = 128


class CodeRepairSeedSessionRequest(RepairTask):
    """The row; ``solved_by`` is set by the agent that needs no model."""

    solved_by: Literal["solution"] | None = None


class CodeRepairVerifyRequest(RepairTask, BaseVerifyRequest):
    """A row with the agent's response."""

    question: str | None = None
    kind: str | None = None
    difficulty: int | None = None


class CodeRepairVerifyResponse(CodeRepairVerifyRequest, BaseVerifyResponse):
    """The row with its reward, the tests that passed, and what the agent changed."""

    accuracy: float
    tests_passed: int
    tests_total: int
    reason: str | None
    workspace_diff: str


class CodeRepairServer(WorkspaceServer):
    """A broken package in a world for each rollout."""

    config: CodeRepairConfig
    _judging: LazyRunner = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Configure a second sandbox, in which repairs are tested."""
        super().model_post_init(context)
        isolation = self.config.sandbox_isolation
        self._judging = LazyRunner(SandboxSettings(isolation=isolation, limits=LIMITS, readable=[pytest_folder()]))

    async def world_spec(self, task: RepairTask) -> WorldSpec:  # type: ignore[override]  # of another kind of row
        """A world with pytest, but without a package that the agent could copy from."""
        spec = await super().world_spec(_ANY_START)
        root = package_named(task.package).root
        environment = {"PYTHONPATH": f"{pytest_folder()}:{root or '.'}", "PYTHONHASHSEED": "0"}
        return replace(spec, environment=environment, readable=[pytest_folder()])

    async def prepare(self, task: RepairTask, world: World) -> None:  # type: ignore[override]
        """Write the broken package."""
        with TemporaryDirectory(prefix="code-repair-") as folder:
            await asyncio.to_thread(_write_files, Path(folder), visible_files(task))
            await world.put_folder(folder, ".")

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: CodeRepairSeedSessionRequest
    ) -> BaseSeedSessionResponse:
        """Open the world of a rollout, and put back the original if the agent is the oracle."""
        session = request.session[SESSION_ID_KEY]
        if session in self._sessions:  # a model may call any route by its name
            raise HTTPException(status.HTTP_409_CONFLICT, "the rollout has begun already")
        opened = await self.open_workspace(session, body)  # type: ignore[arg-type]
        if body.solved_by == "solution":
            for path in {mutation.path for mutation in body.mutations}:
                await opened.world.write(path, files_of(body.package)[path])
        return BaseSeedSessionResponse()

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: CodeRepairVerifyRequest
    ) -> CodeRepairVerifyResponse:
        """Test what the agent left behind."""
        graded = await self.close_and_grade(request.session.get(SESSION_ID_KEY, ""), body)  # type: ignore[arg-type]
        grade = graded.grade
        return CodeRepairVerifyResponse(
            **dict(body),
            reward=grade.fraction,
            accuracy=float(grade.fraction == 1.0),
            tests_passed=grade.passed,
            tests_total=grade.total,
            reason=grade.reason,
            workspace_diff=graded.diff,
        )

    async def grade(self, task: RepairTask, world: World) -> Grade:  # type: ignore[override]
        """Put the agent's modules into a fresh copy of the package, and run the hidden tests there."""
        try:
            repaired = await repaired_modules(task, world)
        except (WorldFileError, FileNotFoundError) as error:
            return Grade(0, len(task.tests.hidden), f"the package can't be read: {error}")
        verdict = await judge(await self._judging.get(), task, repaired)
        return Grade(verdict.passed, verdict.total, verdict.reason, score=verdict.reward)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k by difficulty and by what was broken."""
        return {**compute_subset_metrics(tasks, "difficulty"), **compute_subset_metrics(tasks, "kind")}

    async def _close(self) -> None:
        await super()._close()
        await self._judging.aclose()


async def repaired_modules(task: RepairTask, world: World) -> Files:
    """The modules of the package in a world, as an agent left them."""
    package = package_named(task.package)
    with TemporaryDirectory(prefix="code-repair-") as folder:
        await world.get_folder(package.source, folder)
        found = await asyncio.to_thread(_read_modules, Path(folder))
    named = {str(PurePosixPath(package.source, path)): content for path, content in found.items()}
    return {path: content for path, content in named.items() if is_module(package, path)}


def _write_files(folder: Path, files: Files) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _read_modules(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py") if path.is_file()}


if __name__ == "__main__":
    CodeRepairServer.run_webserver()
