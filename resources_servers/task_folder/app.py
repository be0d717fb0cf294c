"""Tasks in folders, in the format of Harbor: a world from ``environment/``, a reward from ``tests/test.sh``."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fastapi import HTTPException, Request, status
from pydantic import BaseModel, PrivateAttr

from nemo_gym.base_resources_server import BaseSeedSessionResponse, BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.data.task_folders import TaskFolder, read_task_folder, resolved
from nemo_gym.data.task_worlds import Where, find_engine, plan_world
from nemo_gym.sandbox import LazyRunner, ProgramEnding, Runner, SandboxError, SandboxSettings, World, WorldSpec
from nemo_gym.sandbox.containers import ContainerRunner
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.task_folder.rewards import main_reward, read_rewards
from resources_servers.task_folder.worlds import PreparedTask, check_health, prepare_task, run_script
from resources_servers.workspace.app import WorkspaceConfig, WorkspaceServer
from resources_servers.workspace.grading import Grade
from resources_servers.workspace.tools import Answer

_TESTS: Final = "/tests"
_SOLUTION: Final = "/solution"
# A user other than root can't replace the folders, but neither could the agent then.
_CLEAN: Final = (
    'for each; do rm -rf "$each" "$each"/* "$each"/.[!.]* 2>/dev/null; mkdir -p "$each"; chmod 777 "$each"; done'
)
_TIME_IS_OVER: Final = {"error": "the time that the task allows is over"}


class TaskFolderConfig(WorkspaceConfig):
    """Where tasks run: by default on this machine's system where that is enough, else in containers."""

    sandbox_isolation: Where = "auto"
    sandbox_image: str = "debian:stable-slim"


class TaskFolderRow(BaseModel):
    """The fields of a row that this environment reads. ``solved_by`` is set by the agents that need no model."""

    task_folder: str
    task_name: str
    solved_by: Literal["solution"] | None = None


class TaskFolderVerifyRequest(TaskFolderRow, BaseVerifyRequest):
    """A row with the agent's response."""

    difficulty: Any = None
    category: Any = None


class TaskFolderVerifyResponse(TaskFolderVerifyRequest, BaseVerifyResponse):
    """The row with its reward, all rewards by name, what the tests wrote, and what the agent changed."""

    accuracy: float
    rewards: dict[str, float]
    reason: str | None
    tests_output: str
    workspace_diff: str


@dataclass(frozen=True, slots=True)
class TaskGrade(Grade):
    """A grade with all rewards by name."""

    rewards: dict[str, float] = field(default_factory=dict)


class TaskFolderServer(WorkspaceServer):
    """A world for each rollout of a task folder."""

    config: TaskFolderConfig
    _local: LazyRunner = PrivateAttr()
    _containers: ContainerRunner | None = PrivateAttr(default=None)
    _prepared: dict[str, asyncio.Task[PreparedTask]] = PrivateAttr(default_factory=dict)
    _deadlines: dict[str, float] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Configure the sandbox of this machine, which starts with the first task that can use it."""
        super().model_post_init(context)
        self._local = LazyRunner(SandboxSettings(isolation="namespaces"))

    async def runner(self, task: TaskFolderRow) -> Runner:  # type: ignore[override]
        """What opens the worlds of a task."""
        prepared = await self.prepared(task)
        return await self._runner_of(prepared.world.level)

    async def world_spec(self, task: TaskFolderRow) -> WorldSpec:  # type: ignore[override]
        """The task's world as the agent finds it."""
        prepared = await self.prepared(task)
        return prepared.spec(user=prepared.task.settings.agent.user)

    async def prepare(self, task: TaskFolderRow, world: World) -> None:  # type: ignore[override]
        """Wait until the world is healthy."""
        settings = (await self.prepared(task)).task.settings.environment
        if settings.healthcheck is not None:
            await check_health(world, settings.healthcheck)

    async def prepared(self, task: TaskFolderRow) -> PreparedTask:
        """The task, with a world that was made once; several rollouts wait for the same one."""
        if task.task_folder not in self._prepared:
            self._prepared[task.task_folder] = asyncio.ensure_future(self._prepare(task.task_folder))
        try:
            return await asyncio.shield(self._prepared[task.task_folder])
        except SandboxError:
            self._prepared.pop(task.task_folder, None)  # the next attempt may succeed
            raise

    async def _prepare(self, folder: str) -> PreparedTask:
        task = await asyncio.to_thread(read_task_folder, Path(folder))
        where, image = self.config.sandbox_isolation, self.config.sandbox_image
        engine = await asyncio.to_thread(find_engine)
        plan = await asyncio.to_thread(
            plan_world, task, where=where, engine=engine, image=image, environment=os.environ
        )
        if isinstance(plan, list):
            raise SandboxError(f"{task.name} can't run here: {'; '.join(plan)}")
        runner = await self._runner_of(plan.level)
        return await prepare_task(runner, task, plan, engine=engine.command if engine else None)

    async def _runner_of(self, level: Literal["namespaces", "container"]) -> Runner:
        if level == "namespaces":
            return await self._local.get()
        if self._containers is None:
            engine = await asyncio.to_thread(find_engine)
            # Not tried out as other levels are: the images of tasks need not have what that takes.
            self._containers = ContainerRunner(
                image=self.config.sandbox_image, engine=engine.command if engine else None
            )
        return self._containers

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: TaskFolderRow
    ) -> BaseSeedSessionResponse:
        """Open the world of a rollout, and solve the task in it if the agent is the oracle."""
        session = request.session[SESSION_ID_KEY]
        if session in self._sessions:  # a model may call any route by its name
            raise HTTPException(status.HTTP_409_CONFLICT, "the rollout has begun already")
        opened = await self.open_workspace(session, body)  # type: ignore[arg-type]
        settings = (await self.prepared(body)).task.settings
        if settings.agent.timeout_sec is not None:
            self._deadlines[session] = asyncio.get_running_loop().time() + settings.agent.timeout_sec
        if body.solved_by == "solution":
            await self._solve(body, opened.world)
        return BaseSeedSessionResponse()

    async def _solve(self, row: TaskFolderRow, world: World) -> None:
        task = (await self.prepared(row)).task
        if not (task.solution_folder / "solve.sh").is_file():
            raise SandboxError(f"{task.name} has no solution/solve.sh")
        await world.put_folder(task.solution_folder, _SOLUTION)
        await run_script(
            world,
            f"{_SOLUTION}/solve.sh",
            log="/logs/agent/oracle.txt",
            environment={"DEBIAN_FRONTEND": "noninteractive", **resolved(task.settings.solution.env, os.environ)},
            timeout_s=task.settings.agent.timeout_sec,
        )

    async def _use(self, request: Request, tool: str, arguments: Any) -> Answer:
        """Use a tool, as long as the task allows."""
        deadline = self._deadlines.get(request.session.get(SESSION_ID_KEY, ""))
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            return dict(_TIME_IS_OVER)
        try:
            async with asyncio.timeout_at(deadline):
                return await super()._use(request, tool, arguments)
        except TimeoutError:
            return dict(_TIME_IS_OVER)

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: TaskFolderVerifyRequest
    ) -> TaskFolderVerifyResponse:
        """Freeze the world and run the task's tests on a copy of it."""
        session = request.session.get(SESSION_ID_KEY, "")
        self._deadlines.pop(session, None)
        graded = await self.close_and_grade(session, body)  # type: ignore[arg-type]
        assert isinstance(graded.grade, TaskGrade), "this is what grade returns"
        reward = main_reward(graded.grade.rewards)
        return TaskFolderVerifyResponse(
            **dict(body),
            reward=reward,
            accuracy=float(reward >= 1.0),
            rewards=graded.grade.rewards,
            reason=graded.grade.reason,
            tests_output=graded.grade.output[-self.config.output_chars :],
            workspace_diff=graded.diff,
        )

    async def grade(self, task: TaskFolderRow, world: World) -> TaskGrade:  # type: ignore[override]
        """Run ``test.sh`` in a copy of the frozen world, in which nothing runs that the agent started."""
        prepared = await self.prepared(task)
        asked = prepared.task.settings.verifier
        spec = prepared.spec(user=asked.user, environment=resolved(asked.env, os.environ))
        copy = await world.fork(spec)
        try:
            return await _tested(copy, prepared.task)
        finally:
            await copy.stop()

    async def _close(self) -> None:
        await super()._close()
        for preparing in self._prepared.values():
            if preparing.done() and not preparing.cancelled() and preparing.exception() is None:
                await preparing.result().snapshot.remove()
        self._prepared.clear()
        await self._local.aclose()
        if self._containers is not None:
            await self._containers.aclose()


async def _tested(world: World, task: TaskFolder) -> TaskGrade:
    # What the agent may have left in the verifier's places does not count.
    await world.exec(["/bin/sh", "-c", _CLEAN, "sh", _TESTS, "/logs/verifier"])
    await world.put_folder(task.tests_folder, _TESTS)
    seconds = task.settings.verifier.timeout_sec
    ending, code, output = await run_script(
        world, f"{_TESTS}/test.sh", log="/logs/verifier/test-stdout.txt", environment={}, timeout_s=seconds
    )
    if ending is ProgramEnding.WALL_TIME:
        return TaskGrade(0, 1, f"the tests took longer than {seconds:g} s", output, 0.0, {"reward": 0.0})
    if ending is not ProgramEnding.EXITED:
        return TaskGrade(0, 1, f"the tests were ended: {ending}", output, 0.0, {"reward": 0.0})
    try:
        rewards = await read_rewards(world)
    except SandboxError as error:
        raise SandboxError(f"{task.name}: {error} (exit code {code}): {output.strip()[-500:]}") from None
    reward = main_reward(rewards)
    return TaskGrade(int(reward >= 1), 1, None if reward >= 1 else f"a reward of {reward:g}", output, reward, rewards)


if __name__ == "__main__":
    TaskFolderServer.run_webserver()
