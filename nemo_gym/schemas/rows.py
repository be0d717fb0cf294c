"""The keys of rollout rows, the identity of a rollout, classes of failures, and the bodies of ``/aggregate_metrics``.

A row is a JSON object of which the program reads only the keys named here (``record`` says what they mean); everything
else passes through untouched. The names are part of the file format: changing one makes older files unreadable.
"""

import re
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

TASK_INDEX_KEY_NAME: Final = "_ng_task_index"
ROLLOUT_INDEX_KEY_NAME: Final = "_ng_rollout_index"
ATTEMPT_INDEX_KEY_NAME: Final = "_ng_attempt_index"
ATTEMPT_KEY_NAME: Final = "_ng_attempt"  # counted from one
ROLLOUT_ID_KEY_NAME: Final = "_ng_rollout_id"
ROLLOUT_ID_PATTERN: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # it is part of paths and file names
AGENT_REF_KEY_NAME: Final = "agent_ref"
RESPONSES_CREATE_PARAMS_KEY_NAME: Final = "responses_create_params"
RESPONSE_KEY_NAME: Final = "response"
TRACES_KEY_NAME: Final = "traces"  # chains of model calls beside the one in the response
SKILLS_REF_KEY_NAME: Final = "skills_ref"
TASK_SOURCE_KEY_NAME: Final = "task_source"  # the server that declares the dataset of a task
ENVIRONMENT_SERVER_STAMP_KEY_NAME: Final = "_ng_environment_server"
RESULT_TYPE_KEY_NAME: Final = "_ng_result_type"  # the implementation of that environment server
TASK_ID_KEY_NAME: Final = "_ng_task_id"  # of an episode: the task set and the task

# What a verdict may say about itself: its reward is not a measurement, and why.
MASK_KEY_NAME: Final = "mask_sample"
FAILURE_KIND_KEY_NAME: Final = "failure_kind"
FAILURE_REASON_KEY_NAME: Final = "failure_reason"

# In rows of a run that was resumed with other models: how they differ from those of the first rows.
MODEL_CHANGES_KEY_NAME: Final = "_ng_model_changes"

# What the result of a failed attempt may say about itself.
NG_FAILURE_CLASS_KEY: Final = "_ng_failure_class"
NG_NO_PERSIST_KEY: Final = "_ng_no_persist"
NG_TERMINAL_KEY: Final = "_ng_failure_terminal"
# Set if the cause lay outside the rollout: the failure is recorded but does not count as an attempt.
NG_OWED_KEY: Final = "_ng_owed"
# The failure class as a header of an error reply, so that it survives servers that only pass the error on.
FAILURE_CLASS_HEADER: Final = "X-NG-Failure-Class"
SESSION_LOST_STATUS: Final = 503  # of the reply to a call in a session that ended when its server crashed
USAGE_HEADER: Final = "X-NG-Usage"  # of an error: the tokens that were spent before it
# How many model calls of the response have no tokens, because the model server that kept them forgot them.
LOST_CALLS_KEY: Final = "_ng_lost_calls"
JUDGE_USAGE_KEY: Final = "_ng_judge_usage"
# In a usage: the tokens that were paid for, where the other numbers do not tell (completions from a cache cost nothing,
# and agents do not sum the details of several turns).
SPENT: Final = "spent"

MAX_ROLLOUTS: Final = 1 << 32  # of one task


class RolloutKey(NamedTuple):
    """The identity of a rollout: its task and which of the task's repeats it is. Sorts in the order of the plan."""

    task: int
    rollout: int


class FailureClass(StrEnum):
    """Why an attempt failed. Agents may use other names; these are ours."""

    TIMEOUT = "timeout"  # it took longer than allowed
    RATE_LIMITED = "rate_limited"  # an endpoint refused for now
    CONNECTION = "connection"  # a server could not be reached, or the connection was lost
    UNREACHABLE = "unreachable"  # there is nothing usable at an endpoint's address, and there never was
    MODEL_ERROR = "model_error"  # the model endpoint failed
    TOOL_ERROR = "tool_error"  # a tool failed, and its server did not turn that into a reply
    VERIFIER_ERROR = "verifier_error"  # the rollout ran but could not be scored
    JUDGE_FAILED = "judge_failed"  # the model that should have scored it gave no verdict
    INVALID_RESPONSE = "invalid_response"  # a completion or reply that can't be read
    STALE = "stale"  # it was made with weights that are older than a trainer allows
    SERVER_CRASHED = "server_crashed"  # the process of a server that it was using ended
    WORKER_DIED = "worker_died"  # the process that ran it died
    AUTH = "auth"  # an endpoint does not accept our key
    QUOTA = "quota"  # the account at the provider has nothing left to spend
    REJECTED = "rejected"  # an endpoint refused the request, and would refuse it again
    AGENT_START = "agent_start"  # a program as agent never asked the model
    AGENT_TIMEOUT = "agent_timeout"  # it was not ready in time
    AGENT_MEMORY = "agent_memory"  # it used more memory than it may
    AGENT_CRASH = "agent_crash"  # it ended with an error
    GATEWAY_REFUSED = "gateway_refused"  # we did not accept one of its requests
    AGENT_ERROR = "agent_error"  # any other error that an agent replied with


class AggregateMetricsRequest(BaseModel):
    """The scored rollouts of one agent, each with its task and rollout index."""

    verify_responses: list[dict[str, Any]]


class AggregateMetrics(BaseModel):
    """Metrics of one agent: per task, overall, the few that matter most, and per repeat."""

    group_level_metrics: list[dict[str, Any]] = Field(default_factory=list)
    agent_metrics: dict[str, Any] = Field(default_factory=dict)
    key_metrics: dict[str, Any] = Field(default_factory=dict)
    repeat_level_metrics: list[dict[str, Any]] = Field(default_factory=list)  # one entry for each repeat of the tasks
    perf_summary: dict[str, Any] | None = None  # what an agent reports about its speed

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what newer releases added, unless there is something to say."""
        fields: dict[str, Any] = serialize(self)
        added = ("repeat_level_metrics", "perf_summary")
        return {name: value for name, value in fields.items() if value or name not in added}


class Prices(BaseModel):
    """USD per million tokens, set in a model server's configuration: ``prices: {input: 0.15, output: 0.60}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
