"""Chooses how programs are isolated from this machine: by default with the strongest level that works here.

==============  =====================================================================================
``namespaces``  namespaces, seccomp and limits of the kernel; for root and ordinary users
``landlock``    Landlock and seccomp, for machines and containers that do not allow user namespaces
``container``   Docker or Podman, with gVisor where it is installed
``none``        limits only; used only if it is requested by name
==============  =====================================================================================
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.boxes import Runner
from nemo_gym.sandbox.containers import ContainerRunner
from nemo_gym.sandbox.inside.limits import SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxCreateVerificationError
from nemo_gym.sandbox.jail import Jail

logger = logging.getLogger(__name__)

Isolation = Literal["auto", "namespaces", "landlock", "container", "none"]
_IN_ORDER: Final[Sequence[Isolation]] = ("namespaces", "landlock", "container")
_HINT: Final = (
    "install Podman (apt-get install podman) or Docker and pull the image, allow user namespaces (sysctl -w "
    "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0), or, if you trust the code "
    "and lose nothing with this machine, ask for no isolation (isolation: none; sandbox_isolation: none for a server)"
)
# Run once after the start: isolation is trusted only after it has been tested.
_TRIAL: Final = """
import os, socket
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
    print("there is a way into the network")
except OSError:
    pass
for path in ("/etc/sandbox-trial", "/usr/sandbox-trial", os.path.expanduser("~/../sandbox-trial")):
    try:
        open(path, "w")
        print("it is possible to write", path)
    except OSError:
        pass
"""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How programs are isolated. ``modules`` names the Python modules that all programs can import."""

    isolation: Isolation = "auto"
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    readable: Sequence[str | Path] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    image: str = "python:3.12-slim"
    parallel: int | None = None


async def open_runner(settings: SandboxSettings | None = None) -> Runner:
    """The strongest isolation that works here, started and tested. The caller has to close it."""
    settings = settings or SandboxSettings()
    levels = _IN_ORDER if settings.isolation == "auto" else (settings.isolation,)
    reasons = []
    for level in levels:
        runner = _make(level, settings)
        try:
            await runner.start()
            await _test_isolation(runner)
        except SandboxCreateError as error:
            reasons.append(str(error))
            await runner.aclose()
            continue
        log = logger.warning if level == "none" else logger.info
        log("programs run in a sandbox isolated by: %s", level)
        return runner
    raise ConfigError("no sandbox works on this machine:\n  " + "\n  ".join(reasons), hint=_HINT)


class LazyRunner:
    """A runner for servers: opened by the first call, whichever event loop it comes from."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._runner: Runner | None = None

    async def get(self) -> Runner:
        """The runner; raises ``ConfigError`` if no sandbox works here."""
        if self._runner is None:
            await asyncio.to_thread(self._open)
        assert self._runner is not None, "opened or raised"
        return self._runner

    async def aclose(self) -> None:
        """Close it if it was opened; a later call opens it again."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.aclose()

    def _open(self) -> None:
        # A lock of asyncio belongs to one loop; callers from several loops need a thread's lock, held off the loops.
        with self._lock:
            if self._runner is None:  # another thread may have opened it meanwhile
                # The event loop of this call ends at once; a runner holds nothing that belongs to a loop.
                self._runner = asyncio.run(open_runner(self._settings))


@asynccontextmanager
async def sandbox_runner(settings: SandboxSettings | None = None) -> AsyncIterator[Runner]:
    """``open_runner`` as a context."""
    runner = await open_runner(settings)
    try:
        yield runner
    finally:
        await runner.aclose()


def _make(level: Isolation, settings: SandboxSettings) -> Runner:
    if level == "container":
        return ContainerRunner(
            image=settings.image, limits=settings.limits, modules=settings.modules, parallel=settings.parallel
        )
    return Jail(
        level,
        limits=settings.limits,
        readable=settings.readable,
        modules=settings.modules,
        parallel=settings.parallel,
    )


async def _test_isolation(runner: Runner) -> None:
    if runner.level == "none":
        return
    result = await runner.run(_TRIAL)
    if not result.ok or result.stdout:
        found = result.text or result.stderr.decode("utf-8", "replace")
        raise SandboxCreateVerificationError(f"isolation by {runner.level} does not hold: {found.strip()}")
