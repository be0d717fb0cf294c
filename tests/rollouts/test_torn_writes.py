"""A disk that runs full, breaks, or takes less than it is given, at any byte: what was saved stays, the rest is due."""

import errno
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.io.files import RunFiles, StorageError
from nemo_gym.rollouts.classify import failed, outcome_of_record
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.plan import PlanSource, PlanSpec
from nemo_gym.rollouts.run import RunControl, run_owed
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.outcome import Failure, Outcome, PlannedRollout
from nemo_gym.rollouts.store.rollout_store import open_plan, open_store
from nemo_gym.rollouts.store.saved_lines import key_in_line, read_lines
from nemo_gym.schemas.rows import FailureClass
from tests.forked_commands import ForkedCommands

if TYPE_CHECKING:
    from conftest import MockModel

EXAMPLE = "resources_servers/example_single_tool_call"
TASKS, REPEATS = 5, 3
PLAN = [(task, rollout) for task in range(TASKS) for rollout in range(REPEATS)]
ENDLESS = 1 << 40


def has_zstandard() -> bool:
    return bool(find_spec("compression") or find_spec("zstandard"))


# ---- a layer of our own between the store and the file ---------------------------------------------------------------
@dataclass
class Disk:
    """Takes so many bytes in all, never more than ``mouthful`` at once, and then fails with ``error``."""

    room: int
    error: int = errno.ENOSPC
    mouthful: int = ENDLESS

    def write(self, descriptor: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(self.error, os.strerror(self.error))
        written = os.write(descriptor, data[: min(self.room, self.mouthful)])
        self.room -= written
        return written


@dataclass
class Agents:
    """Answers of some length, one in four a failure; what is long, and what fails, is left to chance."""

    chance: random.Random

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        if self.chance.random() < 0.25:
            return failed(planned, Failure(kind=FailureClass.TIMEOUT, message="late", transient=True), 0.1)
        return outcome_of_record(planned, {"reward": 1.0, "text": "é" * self.chance.randrange(300)}, 0.1)


async def run_on(disk: Disk, tasks: Path, output: Path, chance: random.Random) -> None:
    source = PlanSource(str(tasks), None, PlanSpec(agent="alpha", repeats=REPEATS))
    with open_store(output, write=disk.write) as store:
        plan = open_plan(store, source.rows, source.request, resume=True, policy=AttemptPolicy(ENDLESS))
        control = RunControl(limit=FixedLimit(3), pause=lambda *_: 0.0)
        await run_owed(plan, store, Agents(chance), control)


async def error_on(disk: Disk, tasks: Path, output: Path, chance: random.Random) -> StorageError | None:
    """Run on a disk that may not last until the end."""
    try:
        await run_on(disk, tasks, output, chance)
    except StorageError as error:
        return error
    return None


def whole_lines(path: Path) -> Iterator[bytes]:
    for line in read_lines(path) if path.exists() else ():
        assert line.text.endswith(b"\n")
        json.loads(line.text)
        yield line.text


def check_files(files: RunFiles) -> None:
    """Whole lines everywhere, rollouts of the plan, none of them twice."""
    keys = Counter(key_in_line(line) for line in whole_lines(files.rollouts))
    assert set(keys) <= set(PLAN)
    assert set(keys.values()) <= {1}
    for line in whole_lines(files.failures):
        assert json.loads(line)["_ng_failure_class"] == "timeout"


def bytes_of(*paths: Path) -> list[bytes]:
    return [path.read_bytes() if path.exists() else b"" for path in paths]


disks = st.builds(
    Disk,
    room=st.integers(0, 6000),
    error=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EDQUOT]),
    mouthful=st.sampled_from([1, 7, 100, ENDLESS]),
)


outputs = st.sampled_from(["out.jsonl", "out.jsonl.zst"] if has_zstandard() else ["out.jsonl"])


@settings(max_examples=40)
@given(bad=st.lists(disks, min_size=1, max_size=8), seed=st.integers(0, 2**32), output=outputs)
async def test_whatever_a_disk_does_a_run_on_a_better_one_completes_the_plan(
    tmp_path_factory: pytest.TempPathFactory, bad: list[Disk], seed: int, output: str
) -> None:
    folder, chance = tmp_path_factory.mktemp("disk"), random.Random(seed)
    tasks, files = folder / "tasks.jsonl", RunFiles.of(folder / output)
    rows = ({"responses_create_params": {"input": "q"}, "n": n} for n in range(TASKS))
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for disk in bad:
        before = bytes_of(files.rollouts, files.failures)
        error = await error_on(disk, tasks, files.rollouts, chance)
        assert error is None or os.strerror(disk.error) in str(error)
        assert error is None or "+resume_from_cache=true" in (error.hint or "")
        check_files(files)
        for earlier, now in zip(before, bytes_of(files.rollouts, files.failures), strict=True):
            assert now.startswith(earlier)
    await run_on(Disk(ENDLESS), tasks, files.rollouts, chance)
    assert sorted(key_in_line(line) or (-1, -1) for line in whole_lines(files.rollouts)) == PLAN
    assert not list(folder.glob("*.torn")), "a failed write is undone, so there is nothing to set aside"


# ---- a real command under a limit that the kernel keeps --------------------------------------------------------------
def test_a_disk_that_runs_full_stops_the_command_and_loses_nothing(
    commands: ForkedCommands, mock_model: "MockModel", tmp_path: Path
) -> None:
    files, chance = RunFiles.of(tmp_path / "results" / "out.jsonl"), random.Random(11)
    configs = (
        f"{EXAMPLE}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    )
    command = [
        *("ng_collect_rollouts", f"+config_paths=[{configs}]", "+agent_name=example_single_tool_call_simple_agent"),
        *(f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"),
        *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", "+output_jsonl_fpath=results/out.jsonl"),
        *(f"+num_repeats={REPEATS}", "+resume_from_cache=true"),
    ]
    largest = 0
    for number in count():
        # From no room at all over every size that some file of the run reaches, each time at another byte.
        room = chance.randrange(largest, largest + 10_000) if number else 0
        before = bytes_of(files.rollouts, files.failures)
        ran = commands.run(*command, folder=tmp_path, file_bytes=room)
        check_files(files)
        after = bytes_of(files.rollouts, files.failures)
        for earlier, now in zip(before, after, strict=True):
            assert now.startswith(earlier)
        assert "Traceback" not in ran.err, ran.err
        if ran.code == 0:
            break
        # Rollouts that end together are written together, so a run may end before it has saved anything.
        assert ran.code == (3 if after != before else 1), ran.err
        assert "error: can't " in ran.err
        assert "File too large" in ran.err
        assert "with +resume_from_cache=true" in ran.err
        largest = room
    assert number >= 5
    assert sorted(key_in_line(line) or (-1, -1) for line in whole_lines(files.rollouts)) == PLAN
    assert json.loads(files.metrics.read_text())[0]["agent_metrics"]["mean/reward"] == 1.0
