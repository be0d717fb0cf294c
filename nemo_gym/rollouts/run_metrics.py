"""Turns the completed rollouts of one or several runs into metrics and details.

What an agent's metrics are is up to the agent: its ``/aggregate_metrics`` gets its rollouts and replies. They are
computed here, from numbers read in one pass, only if the reply is known to be the standard one. That can be known only
for servers in this process: a handler of ``/aggregate_metrics`` says where its reply comes from
(``computes_standard_metrics``, ``forwards_metrics_to``), and the reply is the standard one if the handler computes it
and neither hook is replaced. An agent that can't reply loses only its own metrics. Both files are replaced as a whole.

Transcripts are not sent: metrics need the scores, and the token counts in ``response.usage``. The request is written to
a file beside the output and sent from there, so its size costs no memory, unless the agent lives here.

How complete the rollouts are follows from the plans and the failures beside them (``PlannedKeys``).
"""

import asyncio
import logging
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeAlias

import numpy as np
from pydantic import ValidationError

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import OutputPathError, RunFiles, follow_link, replacing, role_of, storage_errors
from nemo_gym.io.json import encode
from nemo_gym.metrics.aggregate import (
    METRICS_SOURCE,
    AggregateMetricsMixin,
    mean_metrics,
    with_coverage,
    write_metrics_file,
)
from nemo_gym.metrics.report import Coverage, Report, coverage, write_details
from nemo_gym.metrics.statistics import overall
from nemo_gym.metrics.table import Ints, RolloutTable, RowKeys
from nemo_gym.rollouts.agents import AgentClient, Agents, agents_of
from nemo_gym.rollouts.classify import expected_errors, failure_of_error, failure_of_status
from nemo_gym.rollouts.store.output import check_output, is_taken, move_to_backup
from nemo_gym.rollouts.store.saved_lines import as_written, expand_globs, key_in_line, read_lines
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.rollouts.tally import Spending, read_spending
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record, Row, outline_of
from nemo_gym.schemas.rows import (
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    AggregateMetrics,
    RolloutKey,
)

logger = logging.getLogger(__name__)

Shift: TypeAlias = Callable[[int, Ints], Ints]


# ---- what was planned ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PlannedKeys:
    """The rollouts that some plans ask for, and the failures of attempts in the order in which they happened."""

    by_agent: Mapping[str | None, RowKeys]  # None stands for rows that name no agent
    failures: list[tuple[RolloutKey, str]]

    @classmethod
    def of(cls, rollouts: Sequence[Path], shift: Shift = lambda _, task: np.zeros(len(task), np.int64)) -> Self | None:
        """What lies beside these rollout files; None if one of them has no plan.

        ``shift`` returns what is added to the rollout indices of some tasks in a file.
        """
        files = [RunFiles.of(path) for path in rollouts]
        if not all(each.plan.is_file() for each in files):
            return None
        planned, failures = defaultdict[str | None, list[RowKeys]](list), list[tuple[RolloutKey, str]]()
        for number, each in enumerate(files):
            for agent, (task, rollout) in _planned(each.plan).items():
                planned[agent].append(RowKeys(task, rollout + shift(number, task)))
            for key, kind in _failures(each.failures):
                added = int(shift(number, np.array([key.task]))[0])
                failures.append((RolloutKey(key.task, key.rollout + added), kind))
        return cls({agent: _joined(parts) for agent, parts in planned.items()}, failures)

    @property
    def agents(self) -> list[str]:
        """The agents that the plans name."""
        return sorted(agent for agent in self.by_agent if agent is not None)

    def keys(self) -> RowKeys:
        return _joined(self.by_agent.values())

    def keys_of(self, agent: str) -> RowKeys:
        """The keys of the rollouts that were planned for an agent."""
        return self.by_agent.get(agent) or RowKeys.of(())


def _joined(parts: Iterable[RowKeys]) -> RowKeys:
    task, rollout = zip(RowKeys.of(()), *parts, strict=True)
    return RowKeys(np.concatenate(task), np.concatenate(rollout))


def _planned(path: Path) -> dict[str | None, RowKeys]:
    """The keys in a plan by agent. Lines that are not rows of a plan are left out."""
    found: defaultdict[str | None, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("q")))
    for line in read_lines(path):
        try:
            row = Record(outline_of(line.text))
            task, rollout = row.task, row.rollout
        except RolloutFormatError:
            continue
        if task is not None and rollout is not None:
            tasks, rollouts = found[row.agent]
            tasks.append(task)
            rollouts.append(rollout)
    return {agent: RowKeys(*(np.array(column, np.int64) for column in keys)) for agent, keys in found.items()}


def _failures(path: Path) -> Iterator[tuple[RolloutKey, str]]:
    for line in read_lines(path) if path.is_file() else ():
        with suppress(RolloutFormatError):  # torn; the next run sets it aside
            record = Record.parse(line.text)
            if (key := record.key) is not None:
                yield key, record.failure or ""


# ---- the metrics of a run --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one agent: its reply, or the numbers from which the default metrics are computed."""

    agent: str
    metrics: AggregateMetrics | RolloutTable
    report: Report | None = None

    @property
    def agent_metrics(self) -> dict[str, Any]:
        """The metrics over all of its rollouts."""
        metrics = self.metrics
        if isinstance(metrics, RolloutTable):
            return dict(overall(metrics)) | metrics.coverage_metrics()
        return metrics.agent_metrics

    @property
    def key_metrics(self) -> dict[str, Any]:
        """The few that matter most."""
        metrics = self.metrics
        if isinstance(metrics, RolloutTable):
            return mean_metrics(self.agent_metrics) | metrics.coverage_metrics()
        return metrics.key_metrics


async def aggregate_run(files: RunFiles, client: AgentClient | None) -> list[RunMetrics]:
    """The metrics of a run and the files with them."""
    shards = await asyncio.to_thread(Shards, [files.rollouts], strict=False)
    return await aggregate_shards(shards, files.rollouts, client)


async def aggregate_shards(shards: Shards, output: Path, client: AgentClient | None) -> list[RunMetrics]:
    """The metrics of rollouts and the files with them, named after the output. Without a client: the default ones."""
    agents = agents_of(client) if client is not None else None
    files = RunFiles.of(output)
    planned = await asyncio.to_thread(PlannedKeys.of, shards.paths, shards.shift)
    tables = {agent: shards.table_of(agent) for agent in shards.agents}
    spent = Spending(agents.prices if agents is not None else {})
    if spent.prices:
        spent = await asyncio.to_thread(read_spending, shards.paths, spent.prices)
    reports = await asyncio.to_thread(_reports, tables, planned, spent)
    found = await asyncio.gather(*(_metrics(agent, tables[agent], shards, agents, output) for agent in tables))
    metrics = [
        RunMetrics(agent, metrics, reports[agent])
        for agent, metrics in zip(tables, found, strict=True)
        if metrics is not None
    ]
    if metrics:
        await asyncio.to_thread(write_metrics, files.metrics, metrics)
    else:
        files.metrics.unlink(missing_ok=True)  # files of an earlier run would mislead
    with storage_errors(files.details, "write"):
        write_details(files.details, {agent: report.details for agent, report in reports.items()})
    return metrics


async def _metrics(
    agent: str, table: RolloutTable, shards: Shards, agents: Agents | None, output: Path
) -> AggregateMetrics | RolloutTable | None:
    if agents is None or has_default_metrics(agents.servers, agents.routing.doors.get(agent, agent)):
        return table
    measured = (scores(record) for record in shards.records_of(agent) if not record.is_masked)
    metrics = await ask(agent, measured, agents, output.parent) if len(table) else AggregateMetrics()
    return None if metrics is None else with_coverage(metrics, table)


def _reports(tables: Mapping[str, RolloutTable], planned: PlannedKeys | None, spent: Spending) -> dict[str, Report]:
    reports = {}
    for agent in sorted({*tables, *(planned.agents if planned else ())}):
        table = tables.get(agent) or RolloutTable.empty()
        prices, usd = spent.prices.get(agent), spent.usd_by_agent.get(agent)
        reports[agent] = Report.of(agent, table, _coverage(agent, table, planned), prices, usd)
    return reports


def _coverage(agent: str, table: RolloutTable, planned: PlannedKeys | None) -> Coverage | None:
    if planned is None:
        return None
    return coverage(planned.keys_of(agent), table.key_columns(), planned.failures, table.masked)


def write_metrics(path: Path, metrics: Sequence[RunMetrics]) -> None:
    """Replace the metrics file."""
    with storage_errors(path, "write"):
        write_metrics_file(path, {each.agent: each.metrics for each in metrics})


# ---- an agent's own metrics ------------------------------------------------------------------------------------------
METRICS_PATH: Final = "/aggregate_metrics"


def has_default_metrics(servers: Mapping[str, Any], name: str) -> bool:
    """Whether a server, given all those of this process, would reply with the default metrics."""
    handler = _handler(servers.get(name))
    server = getattr(handler, "__self__", None)
    if server is None:
        return False
    source: str | None = getattr(handler, METRICS_SOURCE, None)
    if source:
        return has_default_metrics(servers, getattr(server.config, source).name)
    hooks = ("compute_metrics", "get_key_metrics", "compute_repeat_metrics")
    return source is not None and all(_is_default(server, hook) for hook in hooks)


def _handler(local: Any) -> Any:
    """The handler of a server in this process of ``/aggregate_metrics``."""
    for route in local.app.routes if local is not None else ():
        if getattr(route, "path", None) == METRICS_PATH and "POST" in (getattr(route, "methods", None) or ()):
            return route.endpoint
    return None


def _is_default(server: Any, hook: str) -> bool:
    return getattr(getattr(server, hook, None), "__func__", None) is getattr(AggregateMetricsMixin, hook)


_TRANSCRIPT: Final = frozenset({RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME})


def scores(record: Record) -> Row:
    """The fields of a rollout that metrics need."""
    fields = {name: value for name, value in record.fields.items() if name not in _TRANSCRIPT}
    usage = record.response.get("usage")
    return {**fields, RESPONSE_KEY_NAME: {"usage": usage}} if usage else fields


async def ask(agent: str, rows: Iterable[Row], agents: Agents, folder: Path | None = None) -> AggregateMetrics | None:
    """The agent's metrics of these rollouts; None, with a warning, if it has none. ``folder`` holds the request."""
    # Beside the output, where there is room for rollouts; the folder for temporary files may be in memory.
    with tempfile.NamedTemporaryFile(prefix=".aggregate-", dir=folder) as file:
        await asyncio.to_thread(_write, file, rows)
        try:
            reply = await agents.post_file(agent, METRICS_PATH, Path(file.name))
            body = await reply.read()
            if reply.status < 400:
                return AggregateMetrics.model_validate_json(body)
            reason = failure_of_status(reply.status, reply.headers, body).message
        except expected_errors() as error:
            reason = failure_of_error(error).message
        except ConfigError as error:  # there is no such server
            reason = str(error)
        except ValidationError as error:
            reason = f"its reply is not what {METRICS_PATH} returns: {error}"
    logger.warning("No metrics for %s: %s", agent, reason)
    return None


def _write(file: Any, rows: Iterable[Row]) -> None:
    out: BinaryIO = file
    out.write(b'{"verify_responses":[')
    separators = chain([b""], repeat(b","))
    out.writelines(separator + encode(row) for separator, row in zip(separators, rows, strict=False))
    out.write(b"]}")
    out.flush()


# ---- results in memory -----------------------------------------------------------------------------------------------
def by_agent(records: Iterable[Record]) -> dict[str, list[Row]]:
    """The scores of each agent, in the order of their keys. Records without an agent are left out."""
    groups: dict[str, list[Row]] = {}
    for record in sorted(records, key=Record.sort_key):
        if name := record.agent:
            groups.setdefault(name, []).append(scores(record))
    return groups


async def ask_for_metrics(groups: Mapping[str, Sequence[Row]], client: AgentClient) -> list[RunMetrics]:
    """Ask every agent for the metrics of its rollouts; agents in alphabetical order."""
    names, agents = sorted(groups), agents_of(client)
    found = await asyncio.gather(*(ask(name, groups[name], agents) for name in names))
    return [RunMetrics(name, metrics) for name, metrics in zip(names, found, strict=True) if metrics is not None]


# ---- the metrics of several runs -------------------------------------------------------------------------------------
_SHOWN: Final = 5  # files in an error message


def find_shards(patterns: str, output: Path) -> list[Path]:
    """The rollout files that the patterns match.

    Other matches are left out: an earlier merge, which holds nothing new, and the files beside rollouts.
    """
    merged = RunFiles.of(output).rollouts.absolute()
    found = [path for path in map(Path, expand_globs(patterns)) if follow_link(path).absolute() != merged]
    paths = [path for path in found if path.is_file() and role_of(path) is None]
    if paths:
        return paths
    if not found and Path(patterns).is_file():
        raise OutputPathError(f"the output {output} is the only input", hint="choose another output_jsonl_fpath")
    left_out = f" (only {', '.join(path.name for path in found[:_SHOWN])})" if found else ""
    raise ConfigPathNotFoundError(
        f"no file matches {patterns!r}{left_out}",
        hint="correct +input_glob=… (or --input-glob …); patterns need quotes",
    )


def write_merged(shards: Shards, output: Path) -> None:
    """Write all rollouts into one file, in the order of their keys. A file with others is moved aside first."""
    files = RunFiles.of(output)
    check_output(files)
    if is_taken(files):
        if files.manifest.exists() or files.plan.exists():
            raise OutputPathError(
                f"{output} is the output of a collection, and is not among the files to merge",
                hint="choose another output_jsonl_fpath for the merged rollouts",
            )
        # An earlier merge of the same files may be replaced. Anything that is nowhere else may not.
        held = {key_in_line(line.text) for line in read_lines(files.rollouts)}
        if not held <= shards.keys():
            move_to_backup(files)
    with replacing(files.rollouts) as file:
        file.writelines(as_written(files.rollouts, (line + b"\n" for line in shards.lines())))


async def merge_shards(
    shards: Shards, output: Path, client: AgentClient | None, *, keep_merged: bool = True
) -> Sequence[RunMetrics]:
    """Merge, compute, save. Without a client the metrics are the default ones."""
    logger.info("Shards:\n%s", "\n".join(f"  {path}" for path in shards.paths))
    output.parent.mkdir(parents=True, exist_ok=True)
    if keep_merged:
        await asyncio.to_thread(write_merged, shards, output)
    return await aggregate_shards(shards, output, client) if shards.agents else ()
