"""``/aggregate_metrics``: what an environment and its agent report about a set of scored rollouts.

The default metrics never depend on a hook. A hook that raises or returns something else than an object loses only what
it would have added: the error is logged and stands in the metrics as ``errors/<hook>``.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.fields import task_index_of
from nemo_gym.metrics.groups import task_entries
from nemo_gym.metrics.statistics import overall
from nemo_gym.schemas.aggregate import AggregateMetrics
from nemo_gym.schemas.rows import TASK_INDEX_KEY_NAME

logger = logging.getLogger(__name__)

Metrics = dict[str, Any]
Records = Sequence[dict[str, Any]]
ComputeMetrics = Callable[[list[list[dict[str, Any]]]], Metrics]
GetKeyMetrics = Callable[[Metrics], Metrics]

PER_TASK: Final = "per_task_metrics"


class AggregateMetricsMixin:
    """The two hooks with which an environment shapes its metrics."""

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> Metrics:  # noqa: ARG002  # for those who override it
        """More metrics, from the scored rollouts of each task. A list ``per_task_metrics`` goes to the tasks."""
        return {}

    def get_key_metrics(self, agent_metrics: Metrics) -> Metrics:
        """The few metrics that matter most."""
        return mean_metrics(agent_metrics)


def mean_metrics(agent_metrics: Mapping[str, Any]) -> Metrics:
    """All means: the key metrics unless an environment says otherwise."""
    return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}


def group_by_task(verify_responses: Records) -> list[list[dict[str, Any]]]:
    """The responses of each task in the order given, tasks sorted by index; a missing index counts as 0."""
    tasks: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for response in verify_responses:
        tasks[task_index_of(response)].append(response)
    return [tasks[index] for index in sorted(tasks)]


def compute_aggregate_metrics(
    verify_responses: Records,
    compute_metrics_fn: ComputeMetrics | None = None,
    get_key_metrics_fn: GetKeyMetrics | None = None,
) -> AggregateMetrics:
    """Statistics of every numeric field per task and overall, extended by the hooks."""
    if not verify_responses:
        return AggregateMetrics()
    builder = MetricsBuilder()
    for response in verify_responses:
        builder.add(response)
    table = builder.table()
    agent_metrics: Metrics = dict(overall(table))
    groups = list(task_entries(table))
    if compute_metrics_fn is not None:
        extra = call_hook("compute_metrics", compute_metrics_fn, group_by_task(verify_responses))
        _merge_per_task(groups, extra.pop(PER_TASK, None))
        agent_metrics |= extra
    return AggregateMetrics.model_construct(
        group_level_metrics=groups,
        agent_metrics=agent_metrics,
        key_metrics=key_metrics(agent_metrics, get_key_metrics_fn),
    )


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
