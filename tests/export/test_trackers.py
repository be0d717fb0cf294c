"""Trackers: the real W&B client without a network, and trackers that fail."""

import asyncio
import importlib
import json
import logging
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.export.trackers import (
    BackgroundTracker,
    Trackers,
    WandbTracker,
    files_to_keep,
    flat,
    off_the_loop,
    tracking,
)
from nemo_gym.io.files import RunFiles
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.rollouts.outcome import Completed, Usage
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.rollouts.run_metrics import RunMetrics
from nemo_gym.schemas.rows import AggregateMetrics

ROOT = Path(__file__).absolute().parents[2]
METRICS = [
    RunMetrics(
        "a", AggregateMetrics(agent_metrics={"x": 1.5, "list": [1], "nan": float("nan")}, key_metrics={"y": True})
    )
]


class Recorder:
    """A tracker that notes what it gets, or fails at one thing."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.got: list[Any] = []

    def log_metrics(self, metrics: Any) -> None:
        self._note("metrics", metrics)

    def log_progress(self, metrics: Any, step: int) -> None:
        self._note("progress", (step, metrics))

    def log_rollouts(self, rollouts: Path) -> None:
        self._note("rollouts", rollouts)

    def log_files(self, files: Any) -> None:
        self._note("files", [path.name for path in files])

    def close(self) -> None:
        self._note("close", None)

    def _note(self, what: str, value: Any) -> None:
        if what == self.fails:
            raise ConnectionError(f"no {what}")
        self.got.append((what, value))


def test_metrics_are_flat_single_values() -> None:
    assert flat(METRICS) == {"a/x": 1.5, "key_metrics/a/y": True}


def test_default_metrics_are_flat_too() -> None:
    builder = MetricsBuilder()
    builder.add({"reward": 1.0, "agent_ref": {"name": "a"}})
    found = flat([RunMetrics("a", builder.table())])
    assert found["a/std/reward"] == 0.0
    assert found["key_metrics/a/mean/reward"] == 1.0


def test_a_tracker_that_fails_is_a_warning_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = tmp_path / "r.jsonl"
    rollouts.touch()
    bad, good = Recorder("metrics"), Recorder()
    Trackers([bad, good]).log(METRICS, rollouts=rollouts)
    assert bad.got == [("rollouts", rollouts)]
    assert good.got == [("metrics", flat(METRICS)), ("rollouts", rollouts)]
    assert "no metrics (the run itself is not affected)" in caplog.text


def test_rollouts_are_handed_over_only_if_asked_for(tmp_path: Path) -> None:
    tracker = Recorder()
    Trackers([tracker]).log(METRICS)
    Trackers([tracker]).log(METRICS, rollouts=tmp_path / "missing.jsonl")
    assert [what for what, _ in tracker.got] == ["metrics", "metrics"]


def test_a_tracker_that_can_not_start_or_is_not_wanted_is_no_tracker(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise RuntimeError("no key")

    with tracking(fail) as trackers:
        assert trackers.all == []
    assert "W&B: RuntimeError: no key" in caplog.text
    with tracking(lambda: None) as trackers:
        assert trackers.all == []


def test_a_tracker_that_is_not_wanted_leaves_no_thread_behind() -> None:
    with tracking(lambda: None) as trackers:
        assert not trackers.all
        left = [thread for thread in threading.enumerate() if thread.name == "W&B"]
    for thread in left:
        thread.join(10)
        assert not thread.is_alive()


def test_a_tracker_that_never_starts_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    tracker = BackgroundTracker("slow", lambda: Recorder() if go_on.wait() else None, unreached_s=0.02)
    assert not tracker.is_off(within_s=0.01)
    tracker.log_metrics({"x": 1.0})
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        tracker.close()
    go_on.set()
    assert not caplog.records


def test_calls_wait_until_a_tracker_has_started() -> None:
    go_on, late = threading.Event(), Recorder()
    tracker = BackgroundTracker("late", lambda: late if go_on.wait() else None)
    tracker.log_progress({"x": 1.0}, 3)
    tracker.log_metrics({"y": 2.0})
    assert late.got == []
    go_on.set()
    tracker.close()
    assert late.got == [("progress", (3, {"x": 1.0})), ("metrics", {"y": 2.0}), ("close", None)]


@pytest.mark.parametrize(("gives_up", "expected"), [(True, []), (False, ["rollouts", "close"])])
def test_a_tracker_goes_on_after_a_failure_or_gives_up(
    gives_up: bool, expected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Recorder("metrics")
    tracker = BackgroundTracker("bad", lambda: bad, gives_up=gives_up)
    tracker.log_metrics({})
    tracker.log_rollouts(tmp_path)
    tracker.close()
    assert [what for what, _ in bad.got] == expected
    assert [record.getMessage() for record in caplog.records] == [
        "bad: ConnectionError: no metrics (the run itself is not affected)"
    ]


def completed(number: int) -> Completed:
    row = {"_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}}
    return Completed(PlannedRollout.of(row, last_attempt=1), b"{}", 1.0, 0.5, Usage(10, 2))


def test_trackers_hear_of_progress_now_and_then_and_at_the_end() -> None:
    tracker = Recorder()
    trackers = Trackers([tracker])
    for number in range(100):
        trackers.follow([completed(number)])
    trackers.log([])
    told = [value for what, value in tracker.got if what == "progress"]
    assert [step for step, _ in told] == [1, 100]
    last = told[-1][1]
    assert (last["progress/completed"], last["progress/mean_reward"], last["progress/tokens"]) == (100, 0.5, 1200)
    assert Trackers([]).listener is None


def test_only_the_trackers_that_are_named_are_started(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Recorder()
    with tracking(pytest.fail, ["mlflow"], others={"MLflow": lambda: tracker}) as trackers:
        trackers.log(METRICS)
    assert [what for what, _ in tracker.got] == ["metrics", "close"]
    with tracking(lambda: None, ["wandb"]) as trackers:
        assert trackers.all == []
    assert "needs wandb_project, wandb_name and wandb_api_key" in caplog.text


def test_tensorboard_reads_progress_and_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard itself is not installed"
    )
    from nemo_gym.export.tensorboard_tracker import TensorBoardTracker, events_folder

    folder = events_folder(tmp_path / "out.jsonl")
    assert folder.parent == tmp_path / "tensorboard" / "out"
    start = partial(TensorBoardTracker, folder, parameters={"num_repeats": 4})
    with tracking(pytest.fail, ["tensorboard"], others={"TensorBoard": start}) as trackers:
        trackers.follow([completed(0)])
        trackers.follow([completed(1)])
        trackers.log([*METRICS, RunMetrics("b", AggregateMetrics(agent_metrics={"best": "yes"}, key_metrics={}))])
    found = reader.EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in found.Scalars("progress/completed")] == [(1, 1.0), (2, 2.0)]
    assert [event.value for event in found.Scalars("a/x")] == [1.5]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0] for tag in found.Tags()["tensors"]}
    assert {tag.removesuffix("/text_summary"): text for tag, text in texts.items()} == {
        "parameters": b'    {\n      "num_repeats": 4\n    }\n',
        "b/best": b"yes",
    }


def test_mlflow_records_parameters_series_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from nemo_gym.export.mlflow_tracker import MlflowTracker

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    files = RunFiles.of(tmp_path / "out.jsonl")
    files.rollouts.write_text("{}\n")
    files.metrics.write_text("[]")
    settings = {"num_repeats": 4, "responses_create_params": {"temperature": 0.7}, "limit": None}

    def start() -> MlflowTracker:
        return MlflowTracker(uri, experiment="e", name="out", parameters=settings)

    with tracking(pytest.fail, ["mlflow"], others={"MLflow": start}) as trackers:
        trackers.follow([completed(0)])
        trackers.follow([completed(1)])
        trackers.log(METRICS, rollouts=files.rollouts, files=files_to_keep(files, content=True))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert (run.info.run_name, run.info.status) == ("out", "FINISHED")
    assert run.data.params == {"num_repeats": "4", "responses_create_params.temperature": "0.7"}
    assert run.data.metrics["a/x"] == 1.5
    series = client.get_metric_history(run.info.run_id, "progress/completed")
    assert [(point.step, point.value) for point in series] == [(1, 1.0), (2, 2.0)]
    assert {found.path for found in client.list_artifacts(run.info.run_id)} == {
        "out.jsonl",
        "out_aggregate_metrics.json",
    }


@pytest.mark.skipif(find_spec("sqlalchemy") is not None, reason="the whole mlflow is installed")
def test_without_an_mlflow_server_it_is_said_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from nemo_gym.export.mlflow_tracker import MlflowTracker

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    start = partial(MlflowTracker, None, experiment="e", name="n", parameters={})
    with tracking(pytest.fail, ["mlflow"], others={"MLflow": start}):
        pass
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "pip install mlflow" in warned
    assert "+mlflow_uri=http://localhost:5000" in warned


def test_an_mlflow_server_that_is_down_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from nemo_gym.export.mlflow_tracker import MlflowTracker

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    start = partial(MlflowTracker, "http://127.0.0.1:9", experiment="e", name="n", parameters={})
    with tracking(pytest.fail, ["mlflow"], others={"MLflow": start}) as trackers:
        trackers.follow([completed(0)])
        trackers.log(METRICS)
    (warned,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned.startswith("MLflow: ")


async def test_the_event_loop_goes_on_while_a_tracker_sends_its_last() -> None:
    went_on = threading.Event()

    class Slow(Recorder):
        def close(self) -> None:
            assert went_on.wait(30)

    async with off_the_loop(tracking(pytest.fail, ["slow"], others={"Slow": Slow})) as trackers:
        trackers.log(METRICS)
        asyncio.get_running_loop().call_later(0.05, went_on.set)
    assert went_on.is_set()


class Run:
    """Stands for a W&B run."""

    def __init__(self) -> None:
        self.finished = False

    def finish(self) -> None:
        self.finished = True


def test_a_run_of_somebody_else_is_left_open() -> None:
    mine, theirs = Run(), Run()
    WandbTracker(mine, owned=True).close()
    WandbTracker(theirs, owned=False).close()
    assert (mine.finished, theirs.finished) == (True, False)


PROGRAM = """
import asyncio
from pathlib import Path
import wandb
from nemo_gym.export.trackers import tracking
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.io.files import RunFiles

files = RunFiles.of(Path("out.jsonl"))
with tracking(lambda: wandb.init(project="p", name="n", dir=".", mode="offline")) as trackers:
    trackers.log(asyncio.run(aggregate_run(files, None)), rollouts=files.rollouts, files=[files.metrics])
"""


def records_in(path: Path) -> Iterator[bytes]:
    """The records of a W&B run file: a log of blocks, in which a record may come in parts."""
    content, place, record = path.read_bytes(), 7, b""
    while place + 7 < len(content):
        room = 2**15 - place % 2**15
        if room < 7:
            place += room
            continue
        length, kind = struct.unpack("<xxxxHB", content[place : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield record
            record = b""


def test_the_real_client_records_metrics_and_rollouts_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    lines = [json.dumps({"_ng_task_index": n, "reward": n / 2, "agent_ref": {"name": "a"}}) for n in range(3)]
    (tmp_path / "out.jsonl").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "the run itself is not affected" in done.stderr) == (0, False), done.stderr
    (run_file,) = tmp_path.rglob("run-*.wandb")
    records = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    logged: dict[str, Any] = {}
    for content in records_in(run_file):
        for item in records.FromString(content).history.item:
            logged["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    assert logged["key_metrics/a/mean/reward"] == 0.5
    assert logged["a/max/reward"] == 1.0
    (table,) = tmp_path.rglob("Rollouts_*.table.json")
    assert json.loads(table.read_text()) == {"columns": ["Rollout"], "data": [[line] for line in lines]}
