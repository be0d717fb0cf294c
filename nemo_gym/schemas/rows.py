"""The keys that rollout rows carry, the identity of a rollout, why one fails, and the bodies of ``/aggregate_metrics``.

A row is a JSON object of which the program reads only the keys named here; everything else passes through untouched.
The names are part of the file format: changing one makes older files unreadable. No behaviour.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

TASK_INDEX_KEY_NAME: Final = "_ng_task_index"
ROLLOUT_INDEX_KEY_NAME: Final = "_ng_rollout_index"
ATTEMPT_INDEX_KEY_NAME: Final = "_ng_attempt_index"
ROLLOUT_ID_KEY_NAME: Final = "_ng_rollout_id"
AGENT_REF_KEY_NAME: Final = "agent_ref"
RESPONSES_CREATE_PARAMS_KEY_NAME: Final = "responses_create_params"
RESPONSE_KEY_NAME: Final = "response"
SKILLS_REF_KEY_NAME: Final = "skills_ref"

# What a result may say about itself when it is a failure.
NG_FAILURE_CLASS_KEY: Final = "_ng_failure_class"
NG_NO_PERSIST_KEY: Final = "_ng_no_persist"
NG_TERMINAL_KEY: Final = "_ng_failure_terminal"
# A failed attempt whose cause lay outside the rollout: it is recorded, but does not count as an attempt.
NG_OWED_KEY: Final = "_ng_owed"
# The same class as a header of an error answer, so that it survives servers which only pass the error on.
FAILURE_CLASS_HEADER: Final = "X-NG-Failure-Class"


class RolloutKey(NamedTuple):
    """Identity of a rollout: the task and which of its repeats. Sorts in the order of the plan."""

    task: int
    rollout: int


class FailureClass(StrEnum):
    """Why an attempt failed. Agents may use words of their own; these are ours."""

    TIMEOUT = "timeout"  # it took longer than it may
    RATE_LIMITED = "rate_limited"  # an endpoint refused for now
    CONNECTION = "connection"  # a server could not be reached, or went away in the middle
    MODEL_ERROR = "model_error"  # the model endpoint failed
    TOOL_ERROR = "tool_error"  # a tool failed in a way that its server did not turn into an answer
    VERIFIER_ERROR = "verifier_error"  # the rollout ran but could not be scored
    JUDGE_FAILED = "judge_failed"  # the model that was to score it gave no verdict
    INVALID_RESPONSE = "invalid_response"  # an answer that can't be read
    STALE = "stale"  # it was made with weights that are older than a trainer allows
    WORKER_DIED = "worker_died"  # the process that ran it is gone
    AUTH = "auth"  # an endpoint does not accept our key
    REJECTED = "rejected"  # an endpoint refused the request, and would again
    AGENT_ERROR = "agent_error"  # anything else that an agent answered with an error


class AggregateMetricsRequest(BaseModel):
    """The scored rollouts of one agent, each with its task and rollout index."""

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Metrics of one agent: per task, overall, and the few that matter most."""

    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)


class Prices(BaseModel):
    """USD for a million tokens; in the configuration of a model server: ``prices: {input: 0.15, output: 0.60}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
