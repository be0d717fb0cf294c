"""The keys of rollout rows, the identity of a rollout, classes of failures, and the bodies of ``/aggregate_metrics``.

A row is a JSON object of which the program reads only the keys named here; everything else passes through untouched.
The names are part of the file format: changing one makes older files unreadable.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

TASK_INDEX_KEY_NAME: Final = "_ng_task_index"
ROLLOUT_INDEX_KEY_NAME: Final = "_ng_rollout_index"
ATTEMPT_INDEX_KEY_NAME: Final = "_ng_attempt_index"
ATTEMPT_KEY_NAME: Final = "_ng_attempt"  # counted from one
ROLLOUT_ID_KEY_NAME: Final = "_ng_rollout_id"
AGENT_REF_KEY_NAME: Final = "agent_ref"
RESPONSES_CREATE_PARAMS_KEY_NAME: Final = "responses_create_params"
RESPONSE_KEY_NAME: Final = "response"
SKILLS_REF_KEY_NAME: Final = "skills_ref"

# What the result of a failed attempt may say about itself.
NG_FAILURE_CLASS_KEY: Final = "_ng_failure_class"
NG_NO_PERSIST_KEY: Final = "_ng_no_persist"
NG_TERMINAL_KEY: Final = "_ng_failure_terminal"
# Set if the cause lay outside the rollout: the failure is recorded but does not count as an attempt.
NG_OWED_KEY: Final = "_ng_owed"
# The failure class as a header of an error answer, so that it survives servers that only pass the error on.
FAILURE_CLASS_HEADER: Final = "X-NG-Failure-Class"
USAGE_HEADER: Final = "X-NG-Usage"  # of an error: the tokens that were spent before it
JUDGE_USAGE_KEY: Final = "_ng_judge_usage"

MAX_ROLLOUTS: Final = 1 << 32  # of one task


class RolloutKey(NamedTuple):
    """The identity of a rollout: its task and which of the task's repeats it is. Sorts in the order of the plan."""

    task: int
    rollout: int

    @classmethod
    def of(cls, record: Any) -> Self | None:
        """The key of a parsed row or result; None if it has none."""
        # Almost always a dictionary, which is quick to check; checking for a mapping takes longer than all the rest.
        if type(record) is not dict and not isinstance(record, Mapping):
            return None
        task, rollout = record.get(TASK_INDEX_KEY_NAME), record.get(ROLLOUT_INDEX_KEY_NAME)
        # Not isinstance, because True is an int too.
        if type(task) is not int or type(rollout) is not int or not 0 <= rollout < MAX_ROLLOUTS:
            return None
        return tuple.__new__(cls, (task, rollout))  # the constructor is a function in Python, which takes longer


class FailureClass(StrEnum):
    """Why an attempt failed. Agents may use other names; these are ours."""

    TIMEOUT = "timeout"  # it took longer than allowed
    RATE_LIMITED = "rate_limited"  # an endpoint refused for now
    CONNECTION = "connection"  # a server could not be reached, or the connection was lost
    MODEL_ERROR = "model_error"  # the model endpoint failed
    TOOL_ERROR = "tool_error"  # a tool failed, and its server did not turn that into an answer
    VERIFIER_ERROR = "verifier_error"  # the rollout ran but could not be scored
    JUDGE_FAILED = "judge_failed"  # the model that should have scored it gave no verdict
    INVALID_RESPONSE = "invalid_response"  # an answer that can't be read
    STALE = "stale"  # it was made with weights that are older than a trainer allows
    WORKER_DIED = "worker_died"  # the process that ran it died
    AUTH = "auth"  # an endpoint does not accept our key
    REJECTED = "rejected"  # an endpoint refused the request, and would refuse it again
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
    """USD per million tokens, set in a model server's configuration: ``prices: {input: 0.15, output: 0.60}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
