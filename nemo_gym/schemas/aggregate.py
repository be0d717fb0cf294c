"""Bodies of ``POST /aggregate_metrics``: scored rollouts in, metrics out. No behaviour."""

from typing import Any

from pydantic import BaseModel, Field


class AggregateMetricsRequest(BaseModel):
    """The scored rollouts of one agent, each with its task and rollout index."""

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Metrics of one agent: per task, overall, and the few that matter most."""

    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)
