"""The reply to ``/aggregate_metrics``: what an environment and its agent report about a set of scored rollouts.

The default metrics never depend on a hook. A hook that raises, or returns something other than an object, loses only
what it would have added: the error is logged and is reported in the metrics as ``errors/<hook>``.

The entries of tasks are made one after the other, so that a file of any size can be written without holding them all.
The file ``*_aggregate_metrics.json`` has one entry per agent, as JSON with an indent of two. Infinite and undefined
numbers become ``null``, because JSON has no way to write them.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np

from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.statistics import defined, overall, table_statistics
from nemo_gym.metrics.table import Column, RolloutTable
from nemo_gym.schemas.record import REWARD, Record
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, AggregateMetrics

logger = logging.getLogger(__name__)


_SLAB: Final = 256  # tasks turned into Python objects at a time: few enough to stay in the processor's cache

METRICS_SOURCE: Final = (
    "_metrics_source"  # of a handler: the setting that names the server that computes them; empty: itself
)

Handler = TypeVar("Handler", bound=Callable[..., Any])
Entry = dict[str, Any]
SampleOf = Callable[[int], Any]


def anonymous_sample(_task: int) -> Entry:
    """The sample where only results are known: a constant of the interface."""
    return {"agent_ref": {"name": "agent"}}


def task_entries(
    table: RolloutTable, *, sample_of: SampleOf = anonymous_sample, expected: Mapping[int, int] | None = None
) -> Iterator[Entry]:
    """One entry per task in order. ``expected`` is how many rollouts were planned; by default as many as there are."""
    starts = table.task_starts()
    names, statistics = table_statistics(table.metrics(), starts)
    ends = np.r_[starts[1:], len(table)]
    for first in range(0, len(starts), _SLAB):
        part = slice(first, first + _SLAB)
        infos = iter(rollout_infos(table, int(starts[first]), int(ends[part][-1])))
        tasks, sizes = table.task[starts[part]].tolist(), (ends - starts)[part].tolist()
        for task, size, row in zip(tasks, sizes, statistics[part].tolist(), strict=True):
            planned = size if expected is None else expected.get(task, size)
            yield {
                TASK_INDEX_KEY_NAME: task,
                **defined(names, row),
                "sample": sample_of(task),
                **_completion(size, planned),
                "rollout_infos": list(islice(infos, size)),
            }


def _completion(done: int, expected: int) -> Entry:
    """How many of the planned rollouts of a task there are."""
    return {
        "num_rollouts": done,
        "expected_num_rollouts": expected,
        "missing_num_rollouts": max(expected - done, 0),
        "reward_profile_completion_pct": 100.0 * done / expected if expected else 100.0,
    }


def rollout_infos(table: RolloutTable, start: int, stop: int) -> list[Entry]:
    """The fields of each rollout in a range of rows; unlike in statistics, a field of the record wins over usage."""
    columns = _info_columns(table)
    names = ["rollout_id", TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, *columns]
    tasks, rollouts = table.task[start:stop].tolist(), table.rollout[start:stop].tolist()
    ids = [f"{task}:{rollout}" for task, rollout in zip(tasks, rollouts, strict=True)]
    rows = zip(ids, tasks, rollouts, *(column.plain(start, stop) for column in columns.values()), strict=True)
    infos: list[Entry] = [dict(zip(names, row, strict=True)) for row in rows]
    # Absent fields are deleted afterwards, because nearly all rollouts have all fields.
    for name, column in columns.items():
        for row in np.flatnonzero(~column.present[start:stop]).tolist():
            del infos[row][name]
    for row, reward in table.odd_rewards.items():
        if start <= row < stop:
            infos[row - start] = _with_reward(infos[row - start], reward)
    return infos


def _info_columns(table: RolloutTable) -> dict[str, Column]:
    """The fields of ``rollout_infos`` in their order: reward, usage, the rest of the record."""
    columns = {**table.usage, **table.top}
    first = {REWARD: table.top[REWARD]} if REWARD in table.top else {}
    usage = {name: _beneath(table.top.get(name), column) for name, column in table.usage.items() if name != REWARD}
    return first | usage | {name: column for name, column in columns.items() if name not in first and name not in usage}


def _beneath(top: Column | None, usage: Column) -> Column:
    """A usage column, for rows whose record does not have the field itself."""
    if top is None:
        return usage
    values = np.where(top.present, top.values, usage.values)
    return Column(values, top.present | usage.present, top.integral and usage.integral)


def _with_reward(info: Entry, reward: Any) -> Entry:
    """Put a reward that is not a number back in its usual place, unchanged."""
    head = dict(list(info.items())[:3])
    return head | {REWARD: reward} | info


Metrics = dict[str, Any]
Records = Sequence[dict[str, Any]]
ComputeMetrics = Callable[[list[list[dict[str, Any]]]], Metrics]
GetKeyMetrics = Callable[[Metrics], Metrics]

PER_TASK: Final = "per_task_metrics"


class AggregateMetricsMixin:
    """The hooks with which an environment shapes its metrics."""

    def compute_repeat_metrics(self, tasks: list[list[dict[str, Any]]]) -> Metrics:  # noqa: ARG002  # for overriding
        """More metrics of one repeat, from its scored rollouts, one for each task."""
        return {}

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> Metrics:  # noqa: ARG002  # for those who override it
        """More metrics, from the scored rollouts of each task. A list ``per_task_metrics`` goes to the tasks."""
        return {}

    def get_key_metrics(self, agent_metrics: Metrics) -> Metrics:
        """The few metrics that matter most."""
        return mean_metrics(agent_metrics)


def computes_standard_metrics(handler: Handler) -> Handler:
    """Mark a handler of ``/aggregate_metrics`` that replies as ``compute_aggregate_metrics`` does with the hooks."""
    setattr(handler, METRICS_SOURCE, "")
    return handler


def forwards_metrics_to(setting: str) -> Callable[[Handler], Handler]:
    """Mark a handler of ``/aggregate_metrics`` that passes the request on to the server which a setting names."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, METRICS_SOURCE, setting)
        return handler

    return mark


def mean_metrics(agent_metrics: Mapping[str, Any]) -> Metrics:
    """All means: the key metrics unless an environment says otherwise."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def group_by_task(verify_responses: Records) -> list[list[dict[str, Any]]]:
    """The responses of each task in the order given, tasks sorted by index; a missing index counts as 0."""
    tasks: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for response in verify_responses:
        tasks[Record(response).task or 0].append(response)
    return [tasks[index] for index in sorted(tasks)]


def compute_aggregate_metrics(
    verify_responses: Records,
    compute_metrics_fn: ComputeMetrics | None = None,
    get_key_metrics_fn: GetKeyMetrics | None = None,
    compute_repeat_metrics_fn: ComputeMetrics | None = None,
) -> AggregateMetrics:
    """Statistics of every numeric field per task, overall and per repeat, extended by the hooks."""
    if not verify_responses:
        return AggregateMetrics()
    builder = MetricsBuilder()
    for response in verify_responses:
        builder.add(response)
    table, groups = builder.table(), list[Metrics]()
    agent_metrics: Metrics = dict(overall(table))
    if len(table):
        groups = list(task_entries(table))
        if compute_metrics_fn is not None:
            measured = [response for response in verify_responses if not Record(response).is_masked]
            extra = call_hook("compute_metrics", compute_metrics_fn, group_by_task(measured))
            _merge_per_task(groups, extra.pop(PER_TASK, None))
            agent_metrics |= extra
    chosen = key_metrics(agent_metrics, get_key_metrics_fn) if len(table) else {}
    return with_coverage(
        AggregateMetrics.model_construct(
            group_level_metrics=groups,
            agent_metrics=agent_metrics,
            key_metrics=chosen,
            repeat_level_metrics=_with_repeat_hook(repeat_entries(table), compute_repeat_metrics_fn, verify_responses),
            perf_summary=None,
        ),
        table,
    )


def repeat_entries(table: RolloutTable) -> list[Entry]:
    """One entry for each repeat: the statistics over all tasks, and how many tasks have no result in it."""
    entries = []
    tasks = len(table.task_starts())
    for repeat in np.unique(table.rollout).tolist():
        part = table.take(np.flatnonzero(table.rollout == repeat))
        entry = {ROLLOUT_INDEX_KEY_NAME: repeat, "sample_count": len(part), "missing_count": tasks - len(part)}
        entries.append({**entry, **overall(part), **_spread(part)})
    return entries


def _spread(table: RolloutTable) -> Metrics:
    found: Metrics = {}
    for name, column in table.metrics().items():
        values = column.values[column.known]
        if len(values) and np.isfinite(values).all():
            with np.errstate(all="ignore"):  # values may be so large that their squares are infinite
                found[f"p25/{name}"], found[f"p75/{name}"] = (float(np.percentile(values, part)) for part in (25, 75))
                found[f"sem/{name}"] = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return found


def _with_repeat_hook(entries: list[Entry], hook: ComputeMetrics | None, responses: Records) -> list[Entry]:
    if hook is None:
        return entries
    for entry in entries:
        mine = [each for each in responses if Record(each).rollout == entry[ROLLOUT_INDEX_KEY_NAME]]
        measured = [each for each in mine if not Record(each).is_masked]
        entry.update(call_hook("compute_repeat_metrics", hook, group_by_task(measured)))
    return entries


def with_coverage(metrics: AggregateMetrics, table: RolloutTable) -> AggregateMetrics:
    """The metrics, with the number of rollouts that they are about if some were not measured."""
    known = table.coverage_metrics()
    metrics.agent_metrics, metrics.key_metrics = metrics.agent_metrics | known, metrics.key_metrics | known
    return metrics


def key_metrics(agent_metrics: Metrics, get_key_metrics_fn: GetKeyMetrics | None = None) -> Metrics:
    """What the hook selects; the means if there is no hook or it failed."""
    if get_key_metrics_fn is None:
        return mean_metrics(agent_metrics)
    selected = call_hook("get_key_metrics", get_key_metrics_fn, dict(agent_metrics))
    failed = {name: value for name, value in selected.items() if name == "errors/get_key_metrics"}
    agent_metrics |= failed
    return mean_metrics(agent_metrics) if failed else selected


def call_hook(name: str, hook: Callable[[Any], Any], argument: Any) -> Metrics:
    """What the hook returns, as a new object; the error under ``errors/<name>`` if it fails."""
    try:
        return _as_object(name, hook(argument))
    except Exception as error:
        logger.exception("%s failed; its metrics are missing", name)
        return {f"errors/{name}": f"{type(error).__name__}: {error}"}


def _as_object(name: str, returned: Any) -> Metrics:
    if not isinstance(returned, Mapping):
        raise TypeError(f"{name} must return an object, not {type(returned).__name__}")
    return dict(returned)


def _merge_per_task(groups: list[Metrics], per_task: Any) -> None:
    """Add the metrics of a task to its entry. Tasks that do not exist are ignored."""
    if not isinstance(per_task, Sequence):
        return
    by_task = {group[TASK_INDEX_KEY_NAME]: group for group in groups}
    for metrics in per_task:
        if isinstance(metrics, Mapping) and metrics.get(TASK_INDEX_KEY_NAME) in by_task:
            by_task[metrics[TASK_INDEX_KEY_NAME]].update(metrics)


# ---- the file --------------------------------------------------------------------------------------------------------
_GROUP: Final = b"\n" + 6 * b" "  # a new line at the depth of a task


def write_metrics_file(path: Path, agents: Mapping[str, AggregateMetrics | RolloutTable]) -> None:
    """Replace the file by the metrics of these agents, sorted by name. Of a table the default ones are written."""
    with replacing(path) as file:
        file.write(b"[")
        for number, agent in enumerate(sorted(agents)):
            file.write(b",\n  " if number else b"\n  ")
            _write_entry(file, agent, agents[agent])
        file.write(b"\n]\n")


def _write_entry(file: BinaryIO, agent: str, metrics: AggregateMetrics | RolloutTable) -> None:
    if isinstance(metrics, RolloutTable):
        agent_metrics: dict[str, Any] = dict(overall(metrics)) | metrics.coverage_metrics()
        key_metrics, entries = mean_metrics(agent_metrics) | metrics.coverage_metrics(), task_entries(metrics)
    else:
        agent_metrics, key_metrics = metrics.agent_metrics, metrics.key_metrics
        entries = iter(metrics.group_level_metrics)
    head = {AGENT_REF_KEY_NAME: {"name": agent}, "agent_metrics": agent_metrics, "key_metrics": key_metrics}
    file.write(_indented(head, b"\n  ").removesuffix(b"\n  }"))
    file.write(b',\n    "group_level_metrics": [')
    for number, group in enumerate(entries):
        file.write(b"," + _GROUP if number else _GROUP)
        file.write(_indented(group, _GROUP))
    file.write(b"\n    ]\n  }")


def _indented(value: Any, newline: bytes) -> bytes:
    return to_json(value, indent=True).replace(b"\n", newline)
