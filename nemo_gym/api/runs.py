"""A run and its rollouts, as Python reads them: ``for rollout in run``.

A ``Run`` is a rollout file and what lies beside it. Rollouts are read one at a time, so a run of any size can be
iterated over. Nothing here computes a number of its own: means and intervals come from the code that writes the metrics
file, exports and comparisons from that of the commands.
"""

import math
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol, Self

import msgspec

from nemo_gym.api.checked import checked_options, in_python
from nemo_gym.conversion.work import AgentResponse, ToolCall, chat_messages, prompt_items
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, counted
from nemo_gym.exporting.export_report import ExportReport
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.sft import UnfitError
from nemo_gym.filters import parse_filter
from nemo_gym.filters.marks import NO_MARK, Mark, mark_of, read_marks
from nemo_gym.io.files import RunFiles
from nemo_gym.metrics import compare as comparing
from nemo_gym.metrics.aggregate import mean_metrics
from nemo_gym.metrics.report import details
from nemo_gym.metrics.statistics import overall
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.rollouts.store.saved_lines import read_lines
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.schemas.record import REWARD, Record, outline_of, read_records
from nemo_gym.schemas.rows import ATTEMPT_KEY_NAME, RolloutKey
from nemo_gym.servers.scoring import task_of
from nemo_gym.training.sequences import TokenSequence, sequence_of, sequences_of


class ViewerPage(Protocol):
    """A viewer that this process serves (``notebook``, which is imported only to open one)."""

    url: str

    def show(self, *, wait: bool | None) -> None:
        """Wait until Ctrl-C if this is a script, whose end would be the end of the page."""

    def close(self) -> None:
        """End the viewer."""


class Estimate(float):
    """A mean with its 95 % interval: a number like any other, with ``low`` and ``high``."""

    low: float
    high: float

    def __new__(cls, mean: float, low: float = math.nan, high: float = math.nan) -> Self:
        """Make the number and remember its interval, which a single task does not have."""
        number = super().__new__(cls, mean)
        number.low, number.high = low, high
        return number

    def __repr__(self) -> str:
        return f"{float(self):.4g}" if math.isnan(self.low) else f"{float(self):.4g} [{self.low:.4g}, {self.high:.4g}]"

    __str__ = __repr__


class PlannedTasks:
    """The tasks of a plan by index. Only their places in the file are held in memory."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan

    @cached_property
    def _places(self) -> dict[int, int]:
        """Where the first row of each task begins."""
        places: dict[int, int] = {}
        for line in read_lines(self._plan) if self._plan.is_file() else ():
            task = Record(outline_of(line.text)).task
            if task is not None:
                places.setdefault(task, line.start)
        return places

    def read(self, task: int | None) -> dict[str, Any] | None:
        """The row of a task; None if the plan does not have it."""
        place = self._places.get(task) if task is not None else None
        if place is None:
            return None
        with self._plan.open("rb") as file:
            file.seek(place)
            return Record.parse(file.readline()).fields


class Rollout:
    """One completed rollout."""

    def __init__(self, record: Record, planned: PlannedTasks, mark: Mark = NO_MARK) -> None:
        self.record = record
        self.mark = mark  # what a person has said about it in the viewer: label, note, by, at
        self._planned = planned

    @property
    def key(self) -> RolloutKey | None:
        """Which task it belongs to, and which of the task's repeats it is."""
        return self.record.key

    @property
    def agent(self) -> str | None:
        """The agent that worked on it."""
        return self.record.agent

    @property
    def reward(self) -> float | None:
        """The reward; None if the verifier gave none."""
        return self.record.reward

    @cached_property
    def task(self) -> dict[str, Any]:
        """The fields of the task. If the run has no plan beside it, fields of the verdict are among them."""
        return task_of(self._planned.read(self.record.task) or self.record.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """Every field that is neither the request nor the response: those of the task and those of the verdict."""
        return task_of(self.record.fields)

    @cached_property
    def response(self) -> AgentResponse:
        """What the agent did, as a verifier sees it."""
        return AgentResponse(Record(self.record.with_prompts()).response)

    @property
    def text(self) -> str:
        """The final answer."""
        return self.response.text

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation as chat messages: the prompt, then what the model wrote and its tools returned."""
        return [*chat_messages(prompt_items(self.record.params)), *self.response.messages]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls in order, each with its arguments and its result."""
        return self.response.tool_calls

    @cached_property
    def tokens(self) -> TokenSequence | None:
        """The tokens as one sequence, with a mask of those that were sampled; None if they were not recorded."""
        try:
            return sequence_of(self.record.fields)
        except UnfitError:
            return None

    @property
    def sequences(self) -> list[TokenSequence]:
        """The tokens as one sequence for each trace; none if they were not recorded."""
        try:
            return sequences_of(self.record)
        except UnfitError:
            return []

    def __repr__(self) -> str:
        place = f"task {self.key.task}, repeat {self.key.rollout}" if self.key else "no index"
        return f"<Rollout {place}: reward {self.reward}, {self.text!r:.60}>"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that did not complete: its class, what went wrong, and the record as it was saved."""

    key: RolloutKey | None
    kind: str
    message: str
    attempt: int
    record: Record

    @classmethod
    def of(cls, record: Record) -> Self:
        """The attempt that a line of the file of failures describes."""
        attempt = record.fields.get(ATTEMPT_KEY_NAME)
        message = str(record.fields.get("error_message") or "")
        return cls(record.key, record.failure or "", message, attempt if isinstance(attempt, int) else 1, record)


class OwnedFolder:
    """A temporary folder that lives as long as the objects that refer to it."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="rollouts-"))
        self._removal = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def keep(self) -> None:
        """Leave the folder behind."""
        self._removal.detach()


class Run:
    """The rollouts of one run. Iterate over it; ``len`` is the number of completed rollouts."""

    def __init__(self, path: str | Path, *, owned: OwnedFolder | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ConfigPathNotFoundError(f"{self.path}: no such file", hint="name a rollout file")
        self.files = RunFiles.of(self.path)
        self._owned = owned
        self.viewer: ViewerPage | None = None  # once it is open

    def __iter__(self) -> Iterator[Rollout]:
        planned, marks = PlannedTasks(self.files.plan), read_marks(self.path)
        return (Rollout(line.record, planned, mark_of(marks, line.record)) for line in read_records(self.path))

    def select(self, condition: str) -> Iterator[Rollout]:
        """The rollouts that match a filter as in the viewer: ``run.select('label == "good" and reward < 1')``."""
        wanted = parse_filter(condition)
        return (each for each in self if wanted.matches(each.record, file=str(self.path), **each.mark.columns))

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def table(self) -> RolloutTable:
        """The numbers of all rollouts as columns."""
        return Shards([self.path], strict=False).table()

    @cached_property
    def _means(self) -> dict[str, Estimate]:
        means = mean_metrics(overall(self.table)) if len(self.table) else {}
        found = {name: Estimate(mean) for name, mean in means.items()}
        intervals = details(self.table)["intervals"] if found else {}
        return found | {name: Estimate(each["mean"], each["low"], each["high"]) for name, each in intervals.items()}

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the run by name; means are numbers with an interval.

        In a run with several agents, each agent's own metrics begin with its name: ``my_agent/mean/reward``.
        """
        agents = _read_metrics(self.files.metrics)
        found: dict[str, Any] = {}
        for entry in agents:
            prefix = f"{entry.agent_ref.get('name')}/" if len(agents) > 1 else ""
            found |= {f"{prefix}{name}": value for name, value in entry.agent_metrics.items()}
        return found | self._means

    @property
    def mean_reward(self) -> Estimate:
        """The mean reward of the completed rollouts, with its interval over tasks; NaN if there are none."""
        return self._means.get(f"mean/{REWARD}", Estimate(math.nan))

    @cached_property
    def failures(self) -> list[FailedAttempt]:
        """All attempts that failed, also those that a later attempt made up for."""
        path = self.files.failures
        return [FailedAttempt.of(line.record) for line in read_records(path)] if path.is_file() else []

    # ---- what to do with it ------------------------------------------------------------------------------------------
    def view(self, *, port: int = 7860, wait: bool | None = None) -> ViewerPage:
        """Show the rollouts in a browser page, and return its address.

        In a notebook or at a prompt the page is served until the process ends. A script waits until Ctrl-C, because the
        page would end with it; ``wait`` decides otherwise.
        """
        from nemo_gym.api.notebook import open_viewer  # noqa: PLC0415 - the viewer is large

        if self.viewer is None:
            self.viewer = open_viewer(self.path, port=port)
        self.viewer.show(wait=wait)
        return self.viewer

    @in_python()
    def export(self, format: str, output: str | Path, **rules: Any) -> ExportReport:  # noqa: A002 - as users call it
        """Write training data; the rules are the parameters of ``ng_export``, such as ``min_reward=0.5``.

        The formats ``sft``, ``sft_tokens`` and ``sharegpt`` take solved rollouts, unless ``min_reward="all"``.
        """
        given = {"input": str(self.path), "format": format, "output": str(output), **rules}
        return export_rollouts(checked_options(Recipe, given))

    def to_pandas(self) -> Any:
        """A pandas table with a row for each rollout: key, agent, reward, final text, and single values."""
        try:
            pandas: Any = import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas needs pandas", hint="pip install pandas") from None
        return pandas.DataFrame.from_records([_flat(rollout) for rollout in self])

    def __repr__(self) -> str:
        failed = f", {counted(len(self.failures), 'failed attempt')}" if self.failures else ""
        return f"<Run {self.path}: {counted(len(self), 'rollout')}, mean reward {self.mean_reward!r}{failed}>"

    def _repr_html_(self) -> str:
        from nemo_gym.api.notebook import run_as_html  # noqa: PLC0415 - the viewer is large

        return run_as_html(self)


class _AgentMetrics(msgspec.Struct):
    """An entry of a metrics file, without the metrics of each task, which may be millions."""

    agent_ref: dict[str, Any]
    agent_metrics: dict[str, Any]


def _read_metrics(path: Path) -> list[_AgentMetrics]:
    return msgspec.json.decode(path.read_bytes(), type=list[_AgentMetrics]) if path.is_file() else []


def _flat(rollout: Rollout) -> dict[str, Any]:
    task, repeat = rollout.key or (None, None)
    single = {name: value for name, value in rollout.fields.items() if not isinstance(value, dict | list)}
    own = {"task": task, "rollout": repeat, "agent": rollout.agent, REWARD: rollout.reward, "text": rollout.text}
    return {**own, "tool_calls": len(rollout.tool_calls), **{n: v for n, v in single.items() if n not in own}}


# ---- loading and comparing -------------------------------------------------------------------------------------------
def load(path: str | Path) -> Run:
    """The run in a rollout file."""
    return Run(path)


def compare(first: Run | str | Path, second: Run | str | Path, **options: Any) -> comparing.RunComparison:
    """Compare two runs over the same tasks, as ``ng_compare`` does."""
    sides = [run if isinstance(run, Run) else Run(run) for run in (first, second)]
    a, b = (comparing.ComparedRun(run.table, comparing.read_contents(run.path)) for run in sides)
    return comparing.compare_runs(a, b, **options)
