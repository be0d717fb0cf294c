"""Trackers: those of an installed package, the real clients without a network, and trackers that fail."""

import asyncio
import importlib
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from zipfile import ZipFile

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.rollouts.options import TRACKERS, TelemetryOptions
from nemo_gym.rollouts.run_metrics import RunMetrics
from nemo_gym.rollouts.store.outcome import Completed, PlannedRollout
from nemo_gym.schemas.record import Usage
from nemo_gym.schemas.rows import AggregateMetrics
from nemo_gym.telemetry.listeners import telemetry
from nemo_gym.telemetry.trackers import Metrics, TrackedRun, Tracker, TrackerListener, flat, tracking
from nemo_gym.telemetry.wandb_tracker import default_trackers, open_wandb_run

ROOT = Path(__file__).absolute().parents[2]
METRICS = [
    RunMetrics(
        "a", AggregateMetrics(agent_metrics={"x": 1.5, "list": [1], "nan": float("nan")}, key_metrics={"y": True})
    )
]


class Recorder(Tracker):
    """A tracker that notes what it gets, or fails at one thing."""

    fails: ClassVar[str] = ""
    got: ClassVar[list[Any]]

    def __init_subclass__(cls) -> None:
        cls.got = []

    def log_metrics(self, metrics: Metrics) -> None:
        self._note("metrics", metrics)

    def log_progress(self, metrics: Metrics, step: int) -> None:
        self._note("progress", (step, metrics))

    def log_rollouts(self, rollouts: Path) -> None:
        self._note("rollouts", rollouts)

    def log_files(self, files: Sequence[Path]) -> None:
        self._note("files", [path.name for path in files])

    def close(self) -> None:
        self._note("close", None)

    def _note(self, what: str, value: Any) -> None:
        if what == self.fails:
            raise ConnectionError(f"no {what}")
        self.got.append((what, value))


def run_in(folder: Path, *, configuration: dict[str, Any] | None = None, **options: Any) -> TrackedRun:
    return TrackedRun(
        files=RunFiles.of(folder / "out.jsonl"),
        settings={"num_repeats": 4, "responses_create_params": {"temperature": 0.7}, "limit": None},
        options=TelemetryOptions(**options),
        configuration=lambda: configuration or {},
    )


def completed(number: int) -> Completed:
    row = {"_ng_task_index": number, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}}
    return Completed(PlannedRollout.of(row, last_attempt=1), b"{}", 1.0, 0.5, Usage(10, 2))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_metrics_are_flat_single_values() -> None:
    assert flat(METRICS) == {"a/x": 1.5, "key_metrics/a/y": True}


def test_default_metrics_are_flat_too() -> None:
    builder = MetricsBuilder()
    builder.add({"reward": 1.0, "agent_ref": {"name": "a"}})
    found = flat([RunMetrics("a", builder.table())])
    assert found["a/std/reward"] == 0.0
    assert found["key_metrics/a/mean/reward"] == 1.0


# ---- threads ---------------------------------------------------------------------------------------------------------
async def test_a_tracker_that_fails_is_one_warning_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Recorder):
        fails = "metrics"
        gives_up = False

    class Working(Recorder):
        pass

    run = run_in(tmp_path)
    run.files.rollouts.touch()
    async with tracking(run, {"bad": Failing, "good": Working}) as listener:
        listener.metrics_computed(METRICS)
        listener.metrics_computed(METRICS)
        listener.run_ended(run.files)
    assert Failing.got == [("rollouts", run.files.rollouts), ("close", None)]
    values = ("metrics", flat(METRICS))
    assert Working.got == [values, values, ("rollouts", run.files.rollouts), ("close", None)]
    assert warnings_in(caplog) == ["tracker bad: ConnectionError: no metrics (the run itself is not affected)"]


async def test_a_tracker_that_gives_up_gets_no_further_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recorder):
        fails = "metrics"

    run = run_in(tmp_path)
    run.files.rollouts.touch()
    async with tracking(run, {"bad": Failing}) as listener:
        listener.metrics_computed(METRICS)
        listener.run_ended(run.files)
    assert Failing.got == []
    assert len(warnings_in(caplog)) == 1


async def test_a_tracker_that_can_not_start_is_a_warning_and_leaves_no_thread_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(Tracker):
        def __init__(self, run: TrackedRun) -> None:
            raise RuntimeError("no key")

    async with tracking(run_in(tmp_path), {"refusing": Refusing}) as listener:
        listener.metrics_computed(METRICS)
    assert warnings_in(caplog) == ["tracker refusing: RuntimeError: no key (the run itself is not affected)"]
    assert "tracker refusing" not in [thread.name for thread in threading.enumerate()]


async def test_a_tracker_that_never_starts_holds_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    class Slow(Recorder):
        unreached_s = 0.02

        def __init__(self, run: TrackedRun) -> None:
            go_on.wait()

    async with tracking(run_in(tmp_path), {"slow": Slow}) as listener:
        listener.metrics_computed(METRICS)
    go_on.set()
    assert warnings_in(caplog) == [
        "tracker slow: TimeoutError: not everything arrived within 0.02 s (the run itself is not affected)"
    ]


async def test_calls_wait_until_a_tracker_has_started(tmp_path: Path) -> None:
    go_on = threading.Event()

    class Late(Recorder):
        def __init__(self, run: TrackedRun) -> None:
            go_on.wait()

    async with tracking(run_in(tmp_path), {"late": Late}) as listener:
        listener.outcomes_saved([completed(0)])
        listener.metrics_computed(METRICS)
        assert Late.got == []
        go_on.set()
    assert [what for what, _ in Late.got] == ["progress", "metrics", "close"]


async def test_the_event_loop_goes_on_while_a_tracker_sends_its_last(tmp_path: Path) -> None:
    went_on = threading.Event()

    class Slow(Tracker):
        def close(self) -> None:
            assert went_on.wait(30)

    async with tracking(run_in(tmp_path), {"slow": Slow}):
        asyncio.get_running_loop().call_later(0.05, went_on.set)
    assert went_on.is_set()


# ---- what trackers get -----------------------------------------------------------------------------------------------
async def test_trackers_get_the_progress_at_intervals_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Following(Recorder):
        pass

    run = run_in(tmp_path)
    async with tracking(run, {"following": Following}) as listener:
        listener.tick()  # nothing has ended
        for number in range(100):
            listener.outcomes_saved([completed(number)])
        now = time.monotonic()
        monkeypatch.setattr("nemo_gym.telemetry.trackers.monotonic", lambda: now + 11)
        listener.tick()  # nothing ends, and time passes
        listener.tick()
        listener.run_ended(run.files)
    progress = [value for what, value in Following.got if what == "progress"]
    assert [step for step, _ in progress] == [1, 100, 100]
    last = progress[-1][1]
    assert (last["progress/completed"], last["progress/mean_reward"], last["progress/tokens"]) == (100, 0.5, 1200)


@pytest.mark.parametrize("uploads", [True, False])
def test_files_with_messages_are_handed_over_only_if_they_may_be_uploaded(tmp_path: Path, uploads: bool) -> None:
    files = RunFiles.of(tmp_path / "out.jsonl")
    for path in (files.rollouts, files.failures, files.metrics):
        path.touch()
    works: list[Any] = []

    class Thread:
        def do(self, work: Any) -> None:
            works.append(work)

    class Uploading(Recorder):
        pass

    TrackerListener([Thread()], uploads_rollouts=uploads).run_ended(files)  # type: ignore[list-item]
    for work in works:
        work(Uploading(run_in(tmp_path)))
    names = [files.metrics.name, *([files.failures.name] if uploads else [])]
    assert Uploading.got == [("files", names), *([("rollouts", files.rollouts)] if uploads else [])]


# ---- by name ---------------------------------------------------------------------------------------------------------
def test_ours_are_registered_like_those_of_other_packages() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ours = declared["project"]["entry-points"][TRACKERS]
    assert set(ours) == {"mlflow", "tensorboard", "wandb"}
    assert {point.name: point.value for point in entry_points(group=TRACKERS)} == ours, "pip install -e . is due"


def test_unknown_trackers_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no tracker 'wandv', only mlflow, tensorboard, wandb") as refused:
        TelemetryOptions(trackers="wandv")
    assert "install the package" in str(refused.value.hint)


def code_in(page: Path, heading: str, language: str) -> str:
    """The first block of code in a language under a heading."""
    section = page.read_text("utf-8").partition(f"\n### {heading}\n")[2]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def write_wheel(folder: Path, code: str, project: dict[str, Any]) -> Path:
    """A wheel as build backends make it, of which tests can't count on any."""
    ((group, named),) = project["entry-points"].items()
    name, version = project["name"], project["version"]
    about = f"{name.replace('-', '_')}-{version}"
    files = {
        "my_tracker.py": code,
        f"{about}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}.dist-info/entry_points.txt": f"[{group}]\n"
        + "".join(f"{key} = {value}\n" for key, value in named.items()),
    }
    record = f"{about}.dist-info/RECORD"
    files[record] = "".join(f"{path},,\n" for path in [*files, record])
    path = folder / f"{about}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        for inside, text in files.items():
            wheel.writestr(inside, text)
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package from the documentation, installed by pip into a folder of its own."""
    page = ROOT / "docs/telemetry.md"
    project = tomllib.loads(code_in(page, "Write a tracker", "toml"))["project"]
    wheel = write_wheel(tmp_path, code_in(page, "Write a tracker", "python"), project)
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield importlib.import_module("my_tracker")
    del sys.modules["my_tracker"]


async def test_the_tracker_of_an_installed_package_is_called(
    tmp_path: Path, installed: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_in(tmp_path, trackers=["mine"])
    async with telemetry(run) as [listener]:
        listener.outcomes_saved([completed(0)])
        listener.metrics_computed(METRICS)
        listener.run_ended(run.files)
    lines = [json.loads(line) for line in (tmp_path / "out_tracked.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in lines] == [None, 1, None, 1]
    assert lines[0] == {"settings": dict(run.settings)}
    assert lines[2] == {"a/x": 1.5, "key_metrics/a/y": True}
    assert not warnings_in(caplog)


async def test_what_is_not_a_tracker_is_refused_before_the_run_begins(tmp_path: Path, installed: ModuleType) -> None:
    installed.MyTracker = print  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"registered as my_tracker:MyTracker, which is not a subclass of nemo_gym"):
        async with telemetry(run_in(tmp_path, trackers=["mine"])):
            pass


WANDB = {"wandb_project": "p", "wandb_name": "n", "wandb_api_key": "k"}


def test_wandb_is_the_default_if_it_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    assert default_trackers(lambda: WANDB) == ["wandb"]
    assert default_trackers(dict) == []
    assert default_trackers(lambda: {**WANDB, "wandb_api_key": "****"}) == []
    assert not warnings_in(caplog)
    assert default_trackers(lambda: {**WANDB, "wandb_name": ""}) == []
    assert default_trackers(lambda: {}["nothing"]) == []
    assert warnings_in(caplog) == [
        "no W&B run: wandb_name is missing; all of wandb_project, wandb_name, wandb_api_key are needed",
        "tracker wandb: KeyError: 'nothing' (the run itself is not affected)",
    ]


async def test_wandb_without_its_keys_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with telemetry(run_in(tmp_path, trackers=["wandb"])):
        pass
    (warned,) = warnings_in(caplog)
    assert "needs wandb_project, wandb_name, wandb_api_key" in warned


# ---- ours, with the real clients -------------------------------------------------------------------------------------
async def test_tensorboard_reads_progress_and_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard itself is not installed"
    )
    async with telemetry(run_in(tmp_path, trackers=["tensorboard"])) as [listener]:
        listener.outcomes_saved([completed(0)])
        listener.outcomes_saved([completed(1)])
        listener.metrics_computed(
            [*METRICS, RunMetrics("b", AggregateMetrics(agent_metrics={"best": "yes"}, key_metrics={}))]
        )
        listener.run_ended(RunFiles.of(tmp_path / "out.jsonl"))
    (folder,) = (tmp_path / "tensorboard" / "out").iterdir()
    found = reader.EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in found.Scalars("progress/completed")] == [(1, 1.0), (2, 2.0)]
    assert [event.value for event in found.Scalars("a/x")] == [1.5]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0] for tag in found.Tags()["tensors"]}
    by_tag = {tag.removesuffix("/text_summary"): text for tag, text in texts.items()}
    assert set(by_tag) == {"parameters", "b/best"}
    assert json.loads(by_tag["parameters"])["num_repeats"] == 4
    assert by_tag["b/best"] == b"yes"


async def test_mlflow_records_parameters_series_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "e")
    run = run_in(tmp_path, trackers=["mlflow"])
    run.files.rollouts.write_text("{}\n")
    run.files.metrics.write_text("[]")
    async with telemetry(run) as [listener]:
        listener.outcomes_saved([completed(0)])
        listener.outcomes_saved([completed(1)])
        listener.metrics_computed(METRICS)
        listener.run_ended(run.files)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (logged,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert (logged.info.run_name, logged.info.status) == ("out", "FINISHED")
    assert logged.data.params == {"num_repeats": "4", "responses_create_params.temperature": "0.7"}
    assert logged.data.metrics["a/x"] == 1.5
    series = client.get_metric_history(logged.info.run_id, "progress/completed")
    assert [(point.step, point.value) for point in series] == [(1, 1.0), (2, 2.0)]
    assert {found.path for found in client.list_artifacts(logged.info.run_id)} == {
        "out.jsonl",
        "out_aggregate_metrics.json",
    }


@pytest.mark.skipif(find_spec("sqlalchemy") is not None, reason="the whole mlflow is installed")
async def test_without_an_mlflow_server_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    async with telemetry(run_in(tmp_path, trackers=["mlflow"])):
        pass
    (warned,) = warnings_in(caplog)
    assert "pip install mlflow" in warned
    assert "MLFLOW_TRACKING_URI=http://localhost:5000" in warned


async def test_an_mlflow_server_that_is_down_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    async with telemetry(run_in(tmp_path, trackers=["mlflow"])) as [listener]:
        listener.outcomes_saved([completed(0)])
        listener.metrics_computed(METRICS)
    (warned,) = warnings_in(caplog)
    assert warned.startswith("tracker mlflow: ")


PROGRAM = """
import asyncio
from pathlib import Path
import wandb
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.options import TelemetryOptions
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.telemetry.listeners import telemetry
from nemo_gym.telemetry.trackers import TrackedRun

files = RunFiles.of(Path("out.jsonl"))
keys = dict.fromkeys(("wandb_project", "wandb_name", "wandb_api_key"), "x")
options = TelemetryOptions(trackers=["wandb"])
run = TrackedRun(files=files, settings={}, options=options, configuration=lambda: keys)

async def main():
    async with telemetry(run) as [listener]:
        listener.metrics_computed(await aggregate_run(files, None))
        listener.run_ended(files)

wandb.init(project="p", name="n", dir=".", mode="offline")
asyncio.run(main())
assert wandb.run is not None  # was open before, and is left open
wandb.finish()
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


def test_wandb_writes_where_it_is_told_or_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None, init=lambda **given: given["dir"]))
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.chdir(tmp_path)
    keys = {"wandb_project": "p", "wandb_name": "n", "wandb_api_key": "k"}
    monkeypatch.delenv("WANDB_DIR", raising=False)
    assert open_wandb_run(keys) == str(tmp_path / "results" / "wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    assert open_wandb_run(keys) == str(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere").is_dir()
