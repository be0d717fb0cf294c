"""A workspace with a shell: files to change, and tests that enter only after the agent has ended."""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fastapi import FastAPI, Request
from pydantic import Field, PrivateAttr

from nemo_gym import INSTALL_DIR
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    ReverifyMode,
    SessionStates,
    SimpleResourcesServer,
)
from nemo_gym.data.source_archives import SourceArchive, fetch_source, read_source
from nemo_gym.io.files import user_cache
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.sandbox import (
    Isolation,
    LazyRunner,
    Runner,
    SandboxError,
    SandboxLimits,
    SandboxSettings,
    World,
    WorldFileError,
    WorldSpec,
)
from nemo_gym.server_utils import SESSION_ID_KEY, close_with_app
from resources_servers.workspace.grading import Grade, difference, grade_workspace
from resources_servers.workspace.tasks import (
    WorkspaceChanges,
    WorkspacePackage,
    WorkspaceTask,
    WorkspaceVerifyRequest,
    WorkspaceVerifyResponse,
)
from resources_servers.workspace.tools import (
    Answer,
    EditFileArguments,
    ListFilesArguments,
    ReadFileArguments,
    RunArguments,
    SearchArguments,
    Toolbox,
    WriteFileArguments,
    use_tool,
)

logger = logging.getLogger(__name__)


class WorkspaceConfig(BaseResourcesServerConfig):
    """Where agents work, and within which limits."""

    REVERIFY_MODE = ReverifyMode.UNSUPPORTED

    grading: str = Field(default="all", pattern="^(all|fraction)$")
    sandbox_isolation: Isolation = "auto"
    sandbox_image: str = "python:3.12-slim"
    readable: list[str] = Field(default_factory=list)
    loopback: bool = False
    session_s: float = Field(default=3600, gt=0)
    command_s: float = Field(default=120, gt=0)
    tests_s: float = Field(default=120, gt=0)
    memory_mib: int = Field(default=2048, gt=0)
    processes: int = Field(default=128, gt=0)
    disk_mib: int = Field(default=512, gt=0)
    output_chars: int = Field(default=16_000, gt=0)
    diff_chars: int = Field(default=50_000, gt=0)


class WorkspaceSeedSessionResponse(BaseSeedSessionResponse):
    """The files of the workspace, for programs that work on a copy of their own."""

    workspace_files: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GradedWorkspace:
    """The grade of a workspace, and what changed in it."""

    grade: Grade
    diff: str


class OpenWorkspace:
    """The world of one rollout, and the workspace as it was at the start."""

    def __init__(self, world: World, start: IO[bytes], toolbox: Toolbox) -> None:
        self.world = world
        self.start = start
        self.toolbox = toolbox
        self._end: asyncio.TimerHandle | None = None

    def end_later(self, seconds: float, end: Callable[[], None]) -> None:
        """Call ``end`` when its time is over, unless it is closed before."""
        self._end = asyncio.get_running_loop().call_later(seconds, end)

    async def close(self) -> None:
        """Stop the world."""
        if self._end is not None:
            self._end.cancel()
        self.start.close()
        await self.world.stop()


class WorkspaceServer(SimpleResourcesServer):
    """A world for each rollout. Subclasses say what it starts from (``world_spec``, ``prepare``) and ``grade`` it."""

    config: WorkspaceConfig
    _runner: LazyRunner = PrivateAttr()
    _sessions: SessionStates[OpenWorkspace] = PrivateAttr()
    _closing: set[asyncio.Task[None]] = PrivateAttr(default_factory=set)

    def model_post_init(self, context: Any, /) -> None:
        """Configure the sandbox, which starts with the first rollout."""
        super().model_post_init(context)
        self._runner = LazyRunner(
            SandboxSettings(isolation=self.config.sandbox_isolation, image=self.config.sandbox_image)
        )
        self._sessions = SessionStates(on_drop=self._drop)

    def setup_webserver(self) -> FastAPI:
        """Add a route for each tool."""
        app = super().setup_webserver()
        for tool in (self.run, self.read_file, self.write_file, self.edit_file, self.list_files, self.search):
            app.post(f"/{tool.__name__}")(tool)
        close_with_app(app, self._close)
        return app

    async def world_spec(self, task: WorkspaceTask) -> WorldSpec:
        """What the world of a task is made from."""
        config = self.config
        limits = SandboxLimits(
            cpu_s=config.session_s,
            wall_s=max(config.command_s, config.tests_s),
            memory_mib=config.memory_mib,
            processes=config.processes,
            disk_mib=config.disk_mib,
            file_mib=config.disk_mib,
            disk_files=128 * config.disk_mib,
            open_files=1024,
        )
        return WorldSpec(
            root=task.world.image,
            environment=task.world.environment,
            limits=limits,
            readable=config.readable,
            loopback=config.loopback,
        )

    async def prepare(self, task: WorkspaceTask, world: World) -> None:
        """Put into a new world what the agent finds there."""
        start = task.world
        if start.package is not None:
            with tempfile.TemporaryDirectory() as folder:
                await asyncio.to_thread(unpack_package, start.package, Path(folder))
                await world.put_folder(folder, ".")
        if start.folder is not None:
            await world.put_folder(Path(INSTALL_DIR, start.folder), ".")
        for path, text in start.files.items():
            await world.write(path, text.encode())
        if start.setup is not None:
            result = await world.exec(start.setup)
            if not result.ok:
                reason = result.stderr.decode("utf-8", "replace")[-500:]
                raise SandboxError(f"the setup of the workspace ended with exit code {result.exit_code}: {reason}")

    async def grade(self, task: WorkspaceTask, world: World) -> Grade:
        """The grade of a frozen world."""
        spec = await self.world_spec(task)
        tests = task.tests.model_copy(update={"timeout_s": task.tests.timeout_s or self.config.tests_s})
        return await grade_workspace(await self.runner(task), world, tests, spec=spec)

    async def runner(self, task: WorkspaceTask) -> Runner:
        """What opens the worlds of a task."""
        del task  # subclasses may have several kinds
        return await self._runner.get()

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: WorkspaceTask
    ) -> WorkspaceSeedSessionResponse:
        """Open the world of a rollout."""
        await self.open_workspace(request.session[SESSION_ID_KEY], body)
        return WorkspaceSeedSessionResponse(workspace_files=body.world.files)

    async def open_workspace(self, session: str, task: WorkspaceTask) -> OpenWorkspace:
        """The world of a rollout, prepared and ready for its tools."""
        world = await (await self.runner(task)).open_world(await self.world_spec(task))
        start = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        try:
            await self.prepare(task, world)
            await world.pack_folder(".", start)
        except BaseException:
            start.close()
            await world.stop()
            raise
        toolbox = Toolbox(world, command_s=self.config.command_s, most_output=self.config.output_chars)
        opened = OpenWorkspace(world, start, toolbox)
        if (earlier := self._sessions.pop(session, None)) is not None:
            await earlier.close()
        self._sessions[session] = opened
        opened.end_later(self.config.session_s, lambda: self._expire(session, opened))
        return opened

    async def run(self, request: Request, body: RunArguments) -> Answer:
        """Runs a command in the shell. The working directory and exported variables are kept for the next command."""
        return await self._use(request, "run", body)

    async def read_file(self, request: Request, body: ReadFileArguments) -> Answer:
        """Reads a text file, or some of its lines."""
        return await self._use(request, "read_file", body)

    async def write_file(self, request: Request, body: WriteFileArguments) -> Answer:
        """Writes a text file. Its folders are made."""
        return await self._use(request, "write_file", body)

    async def edit_file(self, request: Request, body: EditFileArguments) -> Answer:
        """Replaces a part of a text file. The old text must occur exactly once."""
        return await self._use(request, "edit_file", body)

    async def list_files(self, request: Request, body: ListFilesArguments) -> Answer:
        """Lists the files below a folder."""
        return await self._use(request, "list_files", body)

    async def search(self, request: Request, body: SearchArguments) -> Answer:
        """Finds lines that match an extended regular expression, in all files below a folder."""
        return await self._use(request, "search", body)

    async def _use(self, request: Request, tool: str, arguments: Any) -> Answer:
        opened = self._sessions.get(request.session.get(SESSION_ID_KEY, ""))
        if opened is None:
            return {"error": "the rollout has not begun, or its time is over"}
        return await use_tool(opened.toolbox, tool, arguments)

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: WorkspaceVerifyRequest
    ) -> WorkspaceVerifyResponse:
        """Freeze the world and grade it."""
        graded = await self.close_and_grade(request.session.get(SESSION_ID_KEY, ""), body, body.workspace)
        return self._verdict(body, graded.grade, graded.diff)

    async def close_and_grade(
        self, session: str, task: WorkspaceTask, changes: WorkspaceChanges | None = None
    ) -> GradedWorkspace:
        """Freeze the world of a session, with the changes that a program made elsewhere, grade it and stop it."""
        opened = self._sessions.pop(session, None)
        if opened is None:
            raise SandboxError("the world of this rollout is gone: its time is over, or the server was started anew")
        try:
            if changes is not None:
                await _apply(opened.world, changes)
            await opened.world.freeze()
            diff = await difference(opened.start, opened.world, most=self.config.diff_chars)
            return GradedWorkspace(await self.grade(task, opened.world), diff)
        finally:
            await opened.close()

    def _verdict(self, body: WorkspaceVerifyRequest, grade: Grade, diff: str) -> WorkspaceVerifyResponse:
        accuracy = float(grade.fraction == 1.0)
        return WorkspaceVerifyResponse(
            **dict(body),
            reward=accuracy if self.config.grading == "all" else grade.fraction,
            accuracy=accuracy,
            fraction_passed=grade.fraction,
            tests_passed=grade.passed,
            tests_total=grade.total,
            reason=grade.reason,
            tests_output=grade.output[-self.config.output_chars :],
            workspace_diff=diff,
        )

    def _expire(self, session: str, opened: OpenWorkspace) -> None:
        if self._sessions.get(session) is opened:
            del self._sessions[session]
            self._drop(opened)

    def _drop(self, opened: OpenWorkspace) -> None:
        task = asyncio.ensure_future(opened.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self) -> None:
        for session in list(self._sessions):
            await self._sessions.pop(session).close()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._runner.aclose()

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Add pass@k."""
        return compute_pass_majority_metrics(tasks)[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The means, and pass@k at the highest k."""
        return {
            **super().get_key_metrics(agent_metrics),
            **highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"]),
        }


async def _apply(world: World, changes: WorkspaceChanges) -> None:
    """Carry over what a program changed in its own copy. A file that can't be written is left out."""
    for path in changes.removed:
        await world.exec(["rm", "-rf", "--", path])
    for path, text in changes.files.items():
        try:
            await world.write(path, text.encode("utf-8", "surrogateescape"))
        except (WorldFileError, FileNotFoundError) as error:
            logger.info("a program's file is left out: %s", error)


def unpack_package(package: WorkspacePackage, folder: Path) -> None:
    """Write the files of a package's source archive into a folder; the archive is fetched once and kept."""
    archive = SourceArchive(package.name, package.version, package.sha256)
    for name, content in read_source(fetch_source(archive, user_cache(os.environ) / "sources")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    WorkspaceServer.run_webserver()
