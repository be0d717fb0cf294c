"""The file ``*_aggregate_metrics.json``: one entry per agent, written as a stream.

It holds a few numbers of every rollout, so it can be large; the default metrics go from columns to text without ever
being objects. The text is JSON with an indent of two. Infinite and undefined numbers become ``null``, because JSON has
no way to write them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import orjson

from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.aggregate import (
    ROLLOUT_INFOS,
    TaskBlock,
    anonymous_sample,
    completion,
    entry_head,
    info_columns,
    mean_metrics,
    rollout_infos,
    task_blocks,
)
from nemo_gym.metrics.statistics import defined, overall
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, AggregateMetrics

_GROUP: Final = b"\n" + 6 * b" "  # a new line at the depth of a task, and further in
_INFO: Final = b"\n" + 10 * b" "
_INFOS_START: Final = b"," + _GROUP + b'  "' + ROLLOUT_INFOS.encode() + b'": [' + _INFO
_GROUP_END: Final = _GROUP + b"  ]" + _GROUP + b"}"
_INFO_FIELD: Final = b"\n" + 12 * b" "
_NEXT_GROUP: Final = b"," + _GROUP
_NEXT_INFO: Final = b"," + _INFO


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The metrics of one agent: as an environment reported them, or a table of which the default ones are written."""

    agent: str
    metrics: AggregateMetrics | RolloutTable


def write_metrics_file(path: Path, agents: Iterable[AgentMetrics]) -> None:
    """Replace the file by the metrics of these agents, sorted by name."""
    with replacing(path) as file:
        file.write(b"[")
        for number, entry in enumerate(sorted(agents, key=lambda entry: entry.agent)):
            file.write(b",\n  " if number else b"\n  ")
            _write_entry(file, entry)
        file.write(b"\n]\n")


def _write_entry(file: BinaryIO, entry: AgentMetrics) -> None:
    metrics = entry.metrics
    if isinstance(metrics, RolloutTable):
        agent_metrics: dict[str, Any] = dict(overall(metrics))
        key_metrics, groups = mean_metrics(agent_metrics), table_groups(metrics)
    else:
        agent_metrics, key_metrics = metrics.agent_metrics, metrics.key_metrics
        groups = (_indented(group, _GROUP) for group in metrics.group_level_metrics)
    head = {AGENT_REF_KEY_NAME: {"name": entry.agent}, "agent_metrics": agent_metrics, "key_metrics": key_metrics}
    file.write(_indented(head, b"\n  ").removesuffix(b"\n  }"))
    file.write(b',\n    "group_level_metrics": [')
    for number, group in enumerate(groups):
        file.write(_NEXT_GROUP if number else _GROUP)
        file.write(group)
    file.write(b"\n    ]\n  }")


def table_groups(table: RolloutTable) -> Iterator[bytes]:
    """The text of the tasks' entries, many of them at a time."""
    for block in task_blocks(table):
        infos = _info_texts(table, block.start, block.stop)
        ends = accumulate(block.sizes)
        lists = [_NEXT_INFO.join(infos[end - size : end]) for size, end in zip(block.sizes, ends, strict=True)]
        entries = zip(_head_texts(block), lists, strict=True)
        yield _NEXT_GROUP.join([b"%b%b%b" % (head, infos, _GROUP_END) for head, infos in entries])


def _head_texts(block: TaskBlock) -> list[bytes]:
    """The text of each entry up to its first rollout."""
    if np.isnan(block.statistics).any():
        rows = zip(block.tasks, block.sizes, block.statistics.tolist(), strict=True)
        return [_head_text(task, defined(block.names, row), completion(size, size)) for task, size, row in rows]
    width = len(block.names)
    tasks, sizes, statistics = _texts(block.tasks), _texts(block.sizes), _texts(block.statistics.ravel().tolist())
    return _filled(_head_template(block.names), [tasks, *(statistics[i::width] for i in range(width)), sizes, sizes])


def _head_text(task: Any, statistics: dict[str, Any], counts: dict[str, Any]) -> bytes:
    head = entry_head(task, statistics, anonymous_sample(0), counts)
    return _indented(head, _GROUP).removesuffix(_GROUP + b"}") + _INFOS_START


def _head_template(names: list[str]) -> list[bytes]:
    """The text of an entry that lacks no statistic, cut where there are numbers that differ between tasks."""
    hole = "\0"  # stands for a number: as a value it is written in a way that no name can be
    counts = completion(1, 1) | {"num_rollouts": hole, "expected_num_rollouts": hole}
    parts = _head_text(hole, dict.fromkeys(names, hole), counts).split(b": " + to_json(hole))
    return [*(part + b": " for part in parts[:-1]), parts[-1]]


def _info_texts(table: RolloutTable, start: int, stop: int) -> list[bytes]:
    """The text of each rollout in a range of rows."""
    columns = info_columns(table)
    if not all(column.present[start:stop].all() for column in columns.values()):
        return [_indented(info, _INFO) for info in rollout_infos(table, start, stop)]
    tasks, rollouts = _texts(table.task[start:stop].tolist()), _texts(table.rollout[start:stop].tolist())
    fields = [TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, *columns]
    names = [_INFO_FIELD + orjson.dumps(name) + b": " for name in fields]
    template = [b"{" + _INFO_FIELD + b'"rollout_id": "', b":", b'",' + names[0], *(b"," + name for name in names[1:])]
    numbers = (_texts(column.plain(start, stop)) for column in columns.values())
    return _filled([*template, _INFO + b"}"], [tasks, rollouts, tasks, rollouts, *numbers])


def _filled(template: Sequence[bytes], columns: Sequence[Sequence[bytes]]) -> list[bytes]:
    """A text for each row: the parts of the template with the row's columns between them."""
    rows, width = len(columns[0]), len(template) + len(columns)
    # All rows at once: setting a column in one step is several times faster than formatting row after row.
    parts = [b""] * (rows * width)
    for place, part in enumerate(template):
        parts[2 * place :: width] = [part] * rows
    for place, column in enumerate(columns):
        parts[2 * place + 1 :: width] = column
    return [b"".join(parts[start : start + width]) for start in range(0, len(parts), width)]


def _texts(numbers: list[Any]) -> list[bytes]:
    """Each number as JSON; formatting them together is much faster than one by one."""
    try:
        return orjson.dumps(numbers)[1:-1].split(b",")
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return [str(number).encode() for number in numbers]


def _indented(value: Any, newline: bytes) -> bytes:
    return to_json(value, indent=True).replace(b"\n", newline)
