"""What ``ng_status`` says of collections, by the files that they write."""

import asyncio
import json
from pathlib import Path
from time import time
from typing import Any

import pytest

from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.dispatch import Dispatch
from nemo_gym.rollouts.progress import Activity, read_activity
from nemo_gym.rollouts.store.outcome import Completed, Outcome, PlannedRollout
from nemo_gym.rollouts.tally import Tally

GYMS = {
    "nodes": 2,
    "gyms": [
        {"name": "node a", "state": "ready", "leases": 3, "finished": 10},
        {"name": "node a", "state": "starting", "leases": 0, "finished": 0},
        {"name": "node b", "state": "ready", "leases": 2, "finished": 7},
    ],
    "excluded": {"node c": "no such dataset"},
}


async def write_status(output: Path, **changes: Any) -> None:
    """The file of a collection in which one of three rollouts has ended and two are running."""
    release = asyncio.Event()

    async def attempt(planned: PlannedRollout) -> Outcome:
        if planned.key.task:
            await release.wait()
        return Completed(planned, b"{}", 0.0, 1.0, None)

    rows = [{"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}} for task in range(3)]
    output.parent.mkdir(exist_ok=True)
    activity, tally = Activity(attempt, RunFiles.of(output).status, lambda: GYMS | changes), Tally()
    dispatch = Dispatch(iter([PlannedRollout.of(row) for row in rows]), activity, limit=FixedLimit(8))
    async for outcomes in dispatch:
        tally.add(outcomes)
        if not release.is_set():
            activity.write(tally, dispatch, owed=3)
            release.set()


@pytest.fixture
def output(workspace: Path) -> Path:
    asyncio.run(write_status(Path("results/rollouts-0-of-2.jsonl")))
    return Path("results/rollouts.jsonl")


def test_a_running_collection_is_shown_with_gyms_leases_and_slow_rollouts(run: Any, output: Path) -> None:
    for shown in (run("ng_status", f"+output_jsonl_fpath={output}"), run("ng_status")):
        assert shown.code == 0, shown.err
        for text in (
            "1 of 3 ended (1 completed, 0 failed)",
            "2 running of 8 allowed",
            "3 Gyms in 2 places",
            "node a: 1 of 2 ready, 3 leases, 10 finished",
            "node c gets no Gym: no such dataset",
            "slowest: task 1 rollout 0 0 s, task 2 rollout 0 0 s",
        ):
            assert text in shown.out


def test_programs_get_it_as_json_and_an_old_file_is_not_a_running_collection(run: Any, output: Path) -> None:
    [state] = json.loads(run("ng_status", f"+output_jsonl_fpath={output}", "+json=true").out)
    assert (state["ended"], state["running"], len(state["gyms"])) == (1, 2, 3)
    path = Path(state.pop("status_file"))
    path.write_text(json.dumps(state | {"written_at": time() - 3600}))
    assert read_activity(path) is None
    assert run("ng_status", f"+output_jsonl_fpath={output}").out == f"No collection to {output} is running.\n"
    path.write_text("{}")
    assert read_activity(path) is None
