"""Turns completed rollouts into metrics, and what is known beside them.

An agent's metrics are its own affair: its ``/aggregate_metrics`` gets its rollouts and answers. Only where it is known
that the answer would be the default one is it computed here, from numbers read in one pass, without asking. An agent
that can't answer loses its own metrics and nobody else's. Both files are replaced as a whole.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.prices import prices_by_agent
from nemo_gym.metrics import metrics_file
from nemo_gym.metrics.aggregate import mean_metrics
from nemo_gym.metrics.coverage import Coverage, coverage
from nemo_gym.metrics.details import details_path, write_details
from nemo_gym.metrics.report import Report
from nemo_gym.metrics.statistics import overall
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.rollouts.attempt import AgentClient
from nemo_gym.rollouts.hooks import has_default_metrics
from nemo_gym.rollouts.keyed import sort_key
from nemo_gym.rollouts.metrics_request import ask, scores
from nemo_gym.rollouts.plan import agent_name
from nemo_gym.rollouts.planned_keys import PlannedKeys
from nemo_gym.rollouts.store.files import RunFiles, storage_errors
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.schemas.aggregate import AggregateMetrics
from nemo_gym.schemas.prices import Prices

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The metrics of one agent: what it answered, or the numbers of which the default ones are made."""

    agent: str
    metrics: AggregateMetrics | RolloutTable
    report: Report | None = None

    @property
    def agent_metrics(self) -> dict[str, Any]:
        """Over all its rollouts."""
        return dict(overall(self.metrics)) if isinstance(self.metrics, RolloutTable) else self.metrics.agent_metrics

    @property
    def key_metrics(self) -> dict[str, Any]:
        """The few that matter most."""
        metrics = self.metrics
        return mean_metrics(self.agent_metrics) if isinstance(metrics, RolloutTable) else metrics.key_metrics


async def aggregate_run(files: RunFiles, client: AgentClient | None) -> list[AgentMetrics]:
    """The metrics of a run and the files with them."""
    shards = await asyncio.to_thread(Shards, [files.rollouts], strict=False)
    return await aggregate_shards(shards, files.rollouts, client)


async def aggregate_shards(shards: Shards, output: Path, client: AgentClient | None) -> list[AgentMetrics]:
    """The metrics of rollouts and the files with them, named after the output. Without a client: the default ones."""
    planned = await asyncio.to_thread(PlannedKeys.of, shards.paths)
    tables = {agent: shards.table_of(agent) for agent in shards.agents}
    reports = await asyncio.to_thread(_reports, tables, planned, _prices(client))
    found = await asyncio.gather(*(_metrics(agent, tables[agent], shards, client, output) for agent in tables))
    metrics = [
        AgentMetrics(agent, answer, reports[agent])
        for agent, answer in zip(tables, found, strict=True)
        if answer is not None
    ]
    if metrics:
        await asyncio.to_thread(write_metrics, RunFiles.of(output).metrics, metrics)
    with storage_errors(details_path(output), "write"):
        write_details(details_path(output), {agent: report.details for agent, report in reports.items()})
    return metrics


async def _metrics(
    agent: str, table: RolloutTable, shards: Shards, client: AgentClient | None, output: Path
) -> AggregateMetrics | RolloutTable | None:
    if client is None or has_default_metrics(getattr(client, "local_servers", {}), agent):
        return table
    return await ask(agent, shards.records_of(agent), client, output.parent)


def _prices(client: AgentClient | None) -> Mapping[str, Prices]:
    config = getattr(client, "global_config_dict", None)
    return {} if config is None else prices_by_agent(config)


def _reports(
    tables: Mapping[str, RolloutTable], planned: PlannedKeys | None, prices: Mapping[str, Prices]
) -> dict[str, Report]:
    reports = {}
    for agent in sorted({*tables, *(planned.agents if planned else ())}):
        table = tables.get(agent) or RolloutTable.empty()
        reports[agent] = Report.of(agent, table, _coverage(agent, table, planned), prices.get(agent))
    return reports


def _coverage(agent: str, table: RolloutTable, planned: PlannedKeys | None) -> Coverage | None:
    if planned is None:
        return None
    return coverage(planned.keys_of(agent), table.key_columns(), planned.failures)


def write_metrics(path: Path, metrics: Sequence[AgentMetrics]) -> None:
    """Replace the metrics file."""
    with storage_errors(path, "write"):
        metrics_file.write_metrics_file(path, [metrics_file.AgentMetrics(each.agent, each.metrics) for each in metrics])


# ---- for results at hand ---------------------------------------------------------------------------------------------
def by_agent(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """The scores of each agent, in the order of their keys. Records that name no agent belong to nobody."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if name := agent_name(record):
            groups.setdefault(name, []).append(scores(record))
    for group in groups.values():
        group.sort(key=sort_key)
    return groups


async def ask_for_metrics(groups: Mapping[str, Sequence[Record]], client: AgentClient) -> list[AgentMetrics]:
    """Ask every agent for the metrics of its rollouts; agents in alphabetical order."""
    names = sorted(groups)
    answers = await asyncio.gather(*(ask(name, groups[name], client) for name in names))
    return [AgentMetrics(name, metrics) for name, metrics in zip(names, answers, strict=True) if metrics is not None]
