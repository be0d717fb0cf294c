"""Collects a few rollouts and then runs code that does not stop; started by test_stopping.py.

stuck_host.py HOW OUTPUT
"""

import asyncio
import os
import re
import sys
import threading
import time
from pathlib import Path

from nemo_gym.cli import console
from nemo_gym.cli.signals import run_async, stopped_by_signals
from nemo_gym.rollouts.classify import outcome_of_record
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.run import CollectionRun, RunControl, StopSwitch, run_collection
from nemo_gym.rollouts.store.outcome import Outcome, PlannedRollout
from nemo_gym.rollouts.store.output import Request

TASKS, GOOD = 8, 3


async def swallow() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def spin() -> None:
    while True:
        pass


def saved(output: Path) -> int:
    return output.read_bytes().count(b"\n") if output.exists() else 0


async def misbehave(how: str, output: Path) -> None:
    while saved(output) < GOOD:  # noqa: ASYNC110 - a file has no event to wait for
        await asyncio.sleep(0.01)
    console.note("stuck")
    if how == "blocks the loop":
        time.sleep(3600)  # noqa: ASYNC251 - that is the point
    elif how == "spins":
        spin()
    elif how == "matches for ever":
        re.match(r"(a|a)*b", "a" * 200)
    elif how == "swallows cancellation":
        await swallow()
    elif how == "hangs in a thread":
        threading.Thread(target=time.sleep, args=[3600]).start()
        await asyncio.to_thread(time.sleep, 3600)


def main() -> None:
    how, output = sys.argv[1], Path(sys.argv[2])
    os.nice(10)  # some spin for seconds, which is no reason to take the time of other tests

    async def attempt(planned: PlannedRollout) -> Outcome:
        if planned.key.task >= GOOD:
            await misbehave(how, output)
        return outcome_of_record(planned, {"reward": 1.0}, 0.0)

    async def work() -> None:
        rows = [
            {"_ng_task_index": n, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}, "responses_create_params": {}}
            for n in range(TASKS)
        ]
        run = CollectionRun(output=output, rows=lambda: rows, request=Request({}))
        stop = StopSwitch(drain_s=3600)
        with stopped_by_signals(stop):
            await run_collection(run, attempt, RunControl(limit=FixedLimit(TASKS), stop=stop))

    run_async(work())
    sys.exit(130)


if __name__ == "__main__":
    main()
