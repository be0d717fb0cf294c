"""Runs a program on this machine under a keeper, and returns how it ended when nothing of it runs any more.

Cancelling the call ends the program. If its keeper is killed, whatever it kept is found by a variable that all
descendants inherit, and ended from here.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from secrets import token_hex
from typing import Final

from nemo_gym.io.child_process import ChildProcess
from nemo_gym.programs.keeper import CLEANUP_S, ENDED_FILE, MODULE, Ended, Start, processes_of

logger = logging.getLogger(__name__)

MARK: Final = "NG_ATTEMPT"  # in the environment of the program and of everything it starts
_START_FILE: Final = "start.json"
_SWEEPS: Final = 50
_PAUSE_S: Final = 0.05


async def run_program(start: Start, scratch: Path, on_memory: Callable[[int], None]) -> Ended:
    """Run a program to its end. ``scratch`` is a private folder for the exchange with the keeper.

    ``on_memory`` is called in a thread with the memory of the program in bytes, each time that it has grown.
    """
    mark = token_hex(12)
    start = replace(start, environment={**start.environment, MARK: mark})
    file = scratch / _START_FILE
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(json.dumps(asdict(start)), "utf-8")
    keeper = ChildProcess(
        f"the keeper of {start.command[0]}",
        [sys.executable, "-P", "-m", MODULE, str(file)],
        on_line=lambda line: on_memory(int(line)) if line.isdigit() else logger.warning("keeper: %s", line),
    )
    try:
        await keeper.ended()
    except asyncio.CancelledError:
        await asyncio.shield(_stop(keeper, mark))
        raise
    try:
        return Ended(**json.loads((scratch / ENDED_FILE).read_bytes()))
    except OSError:
        await sweep(mark)
        return Ended(limit="stopped", error=f"the process that watched it ended: {keeper.end_text}")


async def _stop(keeper: ChildProcess, mark: str) -> None:
    await keeper.stop(grace_s=CLEANUP_S)
    await sweep(mark)


async def sweep(mark: str) -> None:
    """End all processes that carry a mark. Those that are just being started are found by looking again."""
    for _ in range(_SWEEPS):
        found = await asyncio.to_thread(lambda: list(processes_of(MARK, mark)))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(_PAUSE_S)
    logger.warning("some processes of a program could not be ended")
