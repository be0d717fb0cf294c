"""Turns completed rollouts into metrics: each agent's own ``/aggregate_metrics`` gets its rollouts and answers.

Transcripts are not sent: what metrics need is the scores, and the token counts in ``response.usage``. An agent that
can't answer loses its own metrics and nobody else's.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from nemo_gym.rollouts.attempt import AgentClient, Answer
from nemo_gym.rollouts.classify import EXPECTED_ERRORS, failure_of_error, failure_of_status
from nemo_gym.rollouts.keyed import sort_key
from nemo_gym.rollouts.plan import agent_name
from nemo_gym.rollouts.store.files import replacing
from nemo_gym.schemas.aggregate import AggregateMetrics
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME

logger = logging.getLogger(__name__)

METRICS_PATH = "/aggregate_metrics"
_TRANSCRIPT = frozenset({RESPONSE_KEY_NAME, RESPONSES_CREATE_PARAMS_KEY_NAME})
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The metrics of one agent."""

    agent: str
    metrics: AggregateMetrics

    def entry(self) -> dict[str, Any]:
        """As it stands in the metrics file."""
        return {
            AGENT_REF_KEY_NAME: {"name": self.agent},
            "agent_metrics": self.metrics.agent_metrics,
            "key_metrics": self.metrics.key_metrics,
            "group_level_metrics": self.metrics.group_level_metrics,
        }


def scores(record: Record) -> dict[str, Any]:
    """What metrics need of a rollout."""
    kept = {name: value for name, value in record.items() if name not in _TRANSCRIPT}
    response = record.get(RESPONSE_KEY_NAME)
    usage = response.get("usage") if isinstance(response, dict) else None
    return {**kept, RESPONSE_KEY_NAME: {"usage": usage}} if usage else kept


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
    answers = await asyncio.gather(*(_ask(name, groups[name], client) for name in names))
    return [AgentMetrics(name, metrics) for name, metrics in zip(names, answers, strict=True) if metrics is not None]


async def _ask(agent: str, records: Sequence[Record], client: AgentClient) -> AggregateMetrics | None:
    try:
        answer: Answer = await client.post(
            server_name=agent, url_path=METRICS_PATH, json={"verify_responses": list(records)}
        )
        body = await answer.read()
        if answer.status < 400:
            return AggregateMetrics.model_validate_json(body)
        reason = failure_of_status(answer.status, answer.headers, body).message
    except EXPECTED_ERRORS as error:
        reason = failure_of_error(error).message
    except ValidationError as error:
        reason = f"its answer is not what {METRICS_PATH} returns: {error}"
    logger.warning("No metrics for %s: %s", agent, reason)
    return None


def write_metrics(path: Path, metrics: Sequence[AgentMetrics]) -> None:
    """Replace the metrics file."""
    with replacing(path) as file:
        file.write(orjson.dumps([agent.entry() for agent in metrics], option=orjson.OPT_INDENT_2))
