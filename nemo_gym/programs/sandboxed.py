"""Runs a program where it sees itself, its home, its workspace and one address, and nothing else of this machine.

The folders of the attempt are copied into a world, and the workspace is copied back when everything in it has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from nemo_gym.programs.attempt_folder import AttemptFolder
from nemo_gym.programs.keeper import MOST_OUTPUT, MOST_PROCESSES, Ended, Limit
from nemo_gym.sandbox.boxes import Runner
from nemo_gym.sandbox.inside.limits import KIB, MIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError
from nemo_gym.sandbox.worlds import WORLD_LIMITS, World, WorldSpec

_NO_LIMIT_MIB: Final = 1 << 20
_DISK_MIB: Final = 4096
_LIMITS: Final[dict[ProgramEnding, Limit]] = {
    ProgramEnding.WALL_TIME: "time",
    ProgramEnding.CPU_TIME: "time",
    ProgramEnding.MEMORY: "memory",
}


@dataclass(frozen=True, slots=True)
class ProgramWorld:
    """A world for one program, and where its folders are inside."""

    world: World

    @property
    def workspace(self) -> str:
        return self.world.workdir

    @property
    def home(self) -> str:
        return str(PurePosixPath(self.world.workdir).parent / "home")

    @property
    def temporary(self) -> str:
        return self.world.scratch

    async def run(
        self, command: Sequence[str], environment: dict[str, str], folder: AttemptFolder, timeout_s: float
    ) -> Ended:
        """Run the program to its end, and bring its workspace back."""
        await self.world.put_folder(folder.home, self.home)
        await self.world.put_folder(folder.workspace, self.workspace)
        kept = MOST_OUTPUT // KIB
        try:
            result = await self.world.exec(
                [*command], folder=self.workspace, environment=environment, timeout_s=timeout_s, output_kib=kept
            )
        except SandboxError as error:
            return Ended(error=str(error))
        await self.world.freeze()
        await self.world.get_folder(self.workspace, folder.workspace)
        return _ended(result)


async def open_program_world(
    runner: Runner, *, readable: Sequence[Path], port: int, memory_mb: int | None, timeout_s: float
) -> ProgramWorld:
    """A world in which a program may use the port of the opening and read the folders with its packages."""
    limits: SandboxLimits = replace(
        WORLD_LIMITS,
        cpu_s=timeout_s * 64,
        wall_s=timeout_s,
        memory_mib=memory_mb or _NO_LIMIT_MIB,
        processes=MOST_PROCESSES,
        disk_mib=_DISK_MIB,
        file_mib=_DISK_MIB,
    )
    spec = WorldSpec(limits=limits, readable=readable, opening=("127.0.0.1", port))
    try:
        return ProgramWorld(await runner.open_world(spec))
    except SandboxCreateError as error:
        raise SandboxError(f"where: sandbox needs a sandbox with an opening for the network: {error}") from error


def _ended(result: Result) -> Ended:
    return Ended(
        exit_code=result.exit_code,
        limit=_LIMITS.get(result.ending),
        seconds=round(result.wall_s, 3),
        cpu_s=round(result.cpu_s, 3),
        peak_bytes=int(result.peak_memory_mib * MIB),
        stdout=result.stdout.decode(errors="replace"),
        stderr=result.stderr.decode(errors="replace"),
    )
