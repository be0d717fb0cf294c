"""From a task folder to a world: its Dockerfile is followed once, and every rollout starts from the result."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from nemo_gym.data.dockerfiles import CopyStep, RunStep
from nemo_gym.data.task_folders import HealthcheckSection, TaskFolder, resolved
from nemo_gym.data.task_worlds import TaskWorld
from nemo_gym.sandbox import ProgramEnding, Result, Runner, SandboxError, SandboxLimits, World, WorldSpec
from nemo_gym.sandbox.worlds import WORLD_LIMITS, WorldSnapshot

# Made at the start, because a user other than root could not make them later.
PLACES: Final = ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution")
_MOST_OUTPUT_KIB: Final = 64
_ROOT: Final = ("root", "0", 0, None)


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A task whose world has been made once, and the snapshot that its rollouts start from."""

    task: TaskFolder
    world: TaskWorld
    environment: Mapping[str, str]
    snapshot: WorldSnapshot

    def spec(self, *, user: str | int | None, environment: Mapping[str, str] | None = None) -> WorldSpec:
        """A world of this task for a user. Every user but root is the same one."""
        return replace(_spec(self.task, self.world, {**self.environment, **(environment or {})}),
                       user=user_id(user), snapshot=self.snapshot)  # fmt: skip


def user_id(user: str | int | None) -> int:
    """The user of a world: root unless somebody else is named."""
    return 0 if user in _ROOT else 1000


async def prepare_task(runner: Runner, task: TaskFolder, world: TaskWorld, *, engine: str | None) -> PreparedTask:
    """Take the steps of a task's Dockerfile; raises ``SandboxError`` if one fails."""
    settings = task.settings.environment
    if world.builds:
        await _build_image(engine or "docker", task, world)
    async with runner.world(_spec(task, world, {})) as first:
        known = await _variables(first)
        recipe = task.recipe
        ours = {} if recipe is None or world.builds else recipe.environment
        environment = {**resolved_here(ours, known), **resolved(settings.env, os.environ)}
        folders = [world.workdir, *PLACES]
        _require(
            await first.exec(["/bin/sh", "-c", 'mkdir -p "$@" && chmod 777 "$@"', "sh", *folders]), "making folders"
        )
        if recipe is None and task.image is None and await asyncio.to_thread(task.environment_folder.is_dir):
            await first.put_folder(task.environment_folder, world.workdir)
        for step in [] if recipe is None or world.builds else recipe.steps:
            if isinstance(step, CopyStep):
                await _copy(first, task.environment_folder, step)
            else:
                await _run(first, step, environment, settings.build_timeout_sec)
        return PreparedTask(task, world, environment, await first.snapshot())


async def check_health(world: World, check: HealthcheckSection) -> None:
    """Wait until the command of a health check succeeds; raises ``SandboxError`` if it does not."""
    loop = asyncio.get_running_loop()
    grace = loop.time() + check.start_period_sec
    failures = 0
    while True:
        result = await world.exec(["/bin/sh", "-c", check.command], timeout_s=check.timeout_sec)
        if result.ok:
            return
        is_starting = loop.time() < grace
        failures += 0 if is_starting else 1
        if failures > 0 and failures >= check.retries:
            said = (result.stdout + result.stderr).decode("utf-8", "replace").strip()[-300:]
            raise SandboxError(f"the health check of the task failed {failures} times: {said or check.command}")
        await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)


async def run_script(
    world: World, path: str, *, log: str, environment: Mapping[str, str], timeout_s: float | None
) -> tuple[ProgramEnding, int, str]:
    """Run a script that was put into a world, with its output in a file as well; how it ended and what it wrote."""
    quoted = 'chmod +x "$1" && "$1" > "$2" 2>&1; code=$?; tail -c 65536 "$2"; exit $code'
    result = await world.exec(
        ["/bin/sh", "-c", quoted, "sh", path, log],
        environment=environment,
        timeout_s=timeout_s,
        output_kib=2 * _MOST_OUTPUT_KIB,
    )
    return result.ending, result.exit_code, result.text


def limits_of(task: TaskFolder) -> SandboxLimits:
    """The limits of a task's world; what the task does not say is as for every world."""
    asked = task.settings
    seconds = max(asked.agent.timeout_sec or 0, asked.verifier.timeout_sec, WORLD_LIMITS.cpu_s)
    limits = replace(WORLD_LIMITS, cpu_s=seconds * max(1.0, asked.environment.cpus or 1), wall_s=seconds, processes=256)
    if asked.environment.memory_mb:
        limits = replace(limits, memory_mib=asked.environment.memory_mb)
    if asked.environment.storage_mb:
        disk = asked.environment.storage_mb
        limits = replace(limits, disk_mib=disk, file_mib=disk, disk_files=max(limits.disk_files, 64 * disk))
    return limits


def resolved_here(variables: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Variables of a Dockerfile that build on those of its image, such as ``PATH=/opt/bin:$PATH``."""
    found: dict[str, str] = {}
    for name, value in variables.items():
        filled = value
        for other, text in known.items():
            filled = filled.replace(f"${{{other}}}", text).replace(f"${other}", text)
        found[name] = filled
    return found


def _spec(task: TaskFolder, world: TaskWorld, environment: Mapping[str, str]) -> WorldSpec:
    return WorldSpec(
        root=world.image, workdir=world.workdir, environment=environment, limits=limits_of(task), user=0, loopback=True
    )


async def _variables(world: World) -> dict[str, str]:
    lines = (await world.exec(["/bin/sh", "-c", 'echo "$PATH"; echo "$HOME"'])).text.splitlines()
    return {"PATH": lines[0], "HOME": lines[1]} if len(lines) == 2 else {}


async def _copy(world: World, folder: Path, step: CopyStep) -> None:
    for path in _sources(folder, step):
        if path.is_dir():
            await world.put_folder(path, step.target)
            continue
        into = step.into or (await world.exec(["test", "-d", step.target])).ok
        target = str(PurePosixPath(step.target, path.name)) if into else step.target
        mode = step.mode if step.mode is not None else path.stat().st_mode & 0o777
        await world.write(target, await asyncio.to_thread(path.read_bytes), mode=mode)


def _sources(folder: Path, step: CopyStep) -> list[Path]:
    """The files and folders that a step copies; none is outside of the task's folder."""
    found: list[Path] = []
    for source in step.sources:
        named = [folder] if source in (".", "./", "/") else sorted(folder.glob(source.lstrip("/")))
        if not named:
            raise SandboxError(f"the Dockerfile copies {source}, which is not in {folder}")
        if not all(path.resolve().is_relative_to(folder.resolve()) for path in named):
            raise SandboxError(f"the Dockerfile copies {source}, which leads out of {folder}")
        found += named
    return found


async def _run(world: World, step: RunStep, environment: Mapping[str, str], seconds: float) -> None:
    _require(await world.exec(["mkdir", "-p", step.folder]), "making a folder")
    result = await world.exec(list(step.arguments), folder=step.folder, environment=environment, timeout_s=seconds)
    _require(result, f"line {step.line} of the Dockerfile")


def _require(result: Result, what: str) -> None:

    if not result.ok:
        said = (result.stdout + result.stderr).decode("utf-8", "replace").strip()[-500:]
        raise SandboxError(f"{what} ended with exit code {result.exit_code} ({result.ending}): {said}")


async def _build_image(engine: str, task: TaskFolder, world: TaskWorld) -> None:
    """Have the engine build what only an engine can build."""
    assert world.image is not None
    command = [engine, "build", "--tag", world.image, str(task.environment_folder)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(task.settings.environment.build_timeout_sec):
            output, _ = await process.communicate()
    except TimeoutError:
        raise SandboxError(f"{engine} build took longer than the task allows") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise SandboxError(f"{engine} build failed: {output.decode('utf-8', 'replace').strip()[-500:]}")
