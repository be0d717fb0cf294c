"""Runs one command inside a sandbox, and ends it with all its descendants. One file, standard library only.

It is uploaded into a sandbox and run there: ``python process_supervisor.py --timeout S --receipt PATH [--stop-file
PATH] [--cleanup-timeout S] -- COMMAND…``. The command is stopped when its time is over or the stop file exists. The
receipt is written when nothing of it runs any more, as JSON with cleanup_confirmed, return_code, error and timed_out.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEFAULT_CLEANUP_TIMEOUT = 10.0
PAUSE_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36


def exec_timeout(*, timeout: float, cleanup_timeout: float = DEFAULT_CLEANUP_TIMEOUT) -> float:
    """How long whoever starts the supervisor should wait for it."""
    return timeout + 3 * cleanup_timeout + 30


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none of them escapes."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """The processes below this one that still run."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found: set[int] = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def end_all(cleanup_timeout: float) -> bool:
    """Kill all descendants; whether none of them runs any more."""
    end = time.monotonic() + cleanup_timeout
    while True:
        _reap()
        left = descendants()
        if not left:
            return True
        if time.monotonic() > end:
            return False
        for pid in left:
            _kill(pid)
        time.sleep(PAUSE_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def supervise(command: list[str], *, timeout: float, stop_file: Path | None, cleanup_timeout: float) -> dict[str, Any]:
    """Run a command to its end; what the receipt says about it."""
    receipt: dict[str, Any] = {"cleanup_confirmed": False, "return_code": None, "error": None, "timed_out": False}
    end = time.monotonic() + timeout
    try:
        process = subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        return {**receipt, "cleanup_confirmed": True, "error": f"{type(error).__name__}: {error}"}
    while process.poll() is None:
        if time.monotonic() > end:
            receipt["timed_out"] = True
            break
        if stop_file is not None and stop_file.exists():
            receipt["error"] = "stopped"
            break
        time.sleep(PAUSE_S)
    receipt["return_code"] = process.poll()
    receipt["cleanup_confirmed"] = end_all(cleanup_timeout)
    return receipt


def run_supervised(arguments: list[str]) -> int:
    """Supervise the command after ``--``, and write the receipt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--receipt", type=Path, required=True)
    parser.add_argument("--cleanup-timeout", type=float, default=DEFAULT_CLEANUP_TIMEOUT)
    parser.add_argument("--stop-file", type=Path)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    adopt_orphans()
    receipt = supervise(
        given.command, timeout=given.timeout, stop_file=given.stop_file, cleanup_timeout=given.cleanup_timeout
    )
    aside = given.receipt.with_name(f"{given.receipt.name}.{os.getpid()}")
    aside.write_text(json.dumps(receipt))
    aside.replace(given.receipt)
    code = receipt["return_code"]
    return 124 if receipt["timed_out"] else 1 if code is None else code % 256


if __name__ == "__main__":
    sys.exit(run_supervised(sys.argv[1:]))
