"""The options of a collection that the shared interface does not have.

They are parameters like all others, but they are left out when a configuration is dumped: a dump holds what the
interface names and nothing else. ``REMOVED`` lists the parameters that no longer exist, ``ELSEWHERE`` those that only
newer releases of NeMo Gym have, both with what to use instead; giving one of them is an error, on the command line, in
a file and from Python.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.dispatch import DEFAULT_DRAIN_S
from nemo_gym.rollouts.gates import TokenContinuity
from nemo_gym.rollouts.outage import DEFAULT_PATIENCE_S
from nemo_gym.rollouts.store.rollout_store import ResumeMode
from nemo_gym.rollouts.tasks import Shard

DEFAULT_WINDOW = 1024
DEFAULT_TIMEOUT_S = 6 * 3600.0
TRACKERS: Final = "rollout_gym.trackers"  # the group of entry points under which packages register trackers

REMOVED: Final[Mapping[str, str]] = {
    "executor_host": "start Ray with --node-ip-address=<address>; the collector listens at the address that Ray uses",
    "fsync": "leave it out: results are forced to the disk every few seconds and survive the end of the process anyway",
    "max_in_flight": "use num_samples_in_parallel=<number>",
    "mlflow_experiment": "set MLflow's own environment variable MLFLOW_EXPERIMENT_NAME",
    "mlflow_uri": "set MLflow's own environment variable MLFLOW_TRACKING_URI",
    "ray_address": "use ray_head_node_address=<address>, or the environment variable RAY_ADDRESS",
    "runtime_env": "give it to the job: ray job submit --runtime-env-json '{…}' -- ng_collect_rollouts …",
    "worker_window": "use num_samples_in_parallel=<number>, which is divided among the workers",
}

_FAILURES: Final = "a failure is never a reward here; the share of measured rollouts stands beside every mean"
ELSEWHERE: Final[Mapping[str, str]] = {
    "agent_map": "write the agent into agent_ref of each row, and num_repeats={agent: number, …} for different repeats",
    "count_failure_classes_as_zero": _FAILURES,
    "count_missing_rollouts_as_zero": _FAILURES,
    "disable_health_check": "leave it out: rollouts are checked when you ask for it, with ng_audit",
    "dispatch_budget_s": "use budget_minutes=<number>; rollouts that run then are finished",
    "dispatch_longest_first": "leave it out: rollouts start in the order of the plan",
    "drain_margin_s": "use drain_timeout_s=<seconds>",
    "fan_out": "give each row once per agent, with the agent in agent_ref",
    "health_check_ignored_checks": "leave it out: rollouts are checked when you ask for it, with ng_audit",
    "health_check_workers": "leave it out: rollouts are checked when you ask for it, with ng_audit",
    "interleave_repeats": "leave it out: the repeats of a task start together, so that groups are complete early",
    "max_resident_rollout_tasks": "use num_samples_in_parallel=<number>; only that many rollouts are in memory",
    "require_complete": "leave it out: a run with missing rollouts ends with exit code 3",
    "retain_results_in_memory": "leave it out: results are never kept in memory",
    "retry_invalid_judge_responses": "use retry_failed=[judge_failed] when you resume",
    "retry_terminal_timeouts": "use retry_failed=[timeout] when you resume",
    "route_failures_to_sidecar": "leave it out: every failure is recorded in the failures file and ends nothing",
}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _word(value: Any) -> Any:
    return "off" if value is False else value  # which is how YAML reads the word


def _shard(value: str) -> str:
    return str(Shard.parse(value))


def find_tracker(name: str) -> EntryPoint:
    """Where an installed package, ours or another, registered a tracker under this name."""
    known = {point.name: point for point in entry_points(group=TRACKERS)}
    if name not in known:
        raise ConfigError(
            f"trackers: there is no tracker '{name}', only {', '.join(sorted(known))}",
            hint=f"correct the name, or install the package that registers it in the group {TRACKERS}",
        )
    return known[name]


def _trackers(names: list[str]) -> list[str]:
    for name in names:
        find_tracker(name)
    return names


class TlsFiles(BaseModel):
    """The certificate and key with which the collector encrypts the connections of workers."""

    certificate: str
    key: str


class WorkerOptions(BaseModel):
    """Where rollouts run: in this process, in several, or on a cluster."""

    help_section: ClassVar[str] = "Workers and clusters"

    removed: ClassVar[Mapping[str, str]] = REMOVED
    elsewhere: ClassVar[Mapping[str, str]] = ELSEWHERE

    model_config = ConfigDict(defer_build=True)

    executor: Literal["local", "ray"] = Field(
        "local", exclude=True, description="Where the Gym runs: on this machine, or on every node of a Ray cluster."
    )
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        exclude=True,
        description="Number of processes, each with a whole Gym; auto: one for each core that this process may use. "
        "On a cluster: the total number, spread over the nodes; auto or null: on every node, including nodes that "
        "join later.",
    )
    worker_cpus: Annotated[float, Field(gt=0)] | Literal["node"] = Field(
        1.0, exclude=True, description="On a cluster: CPUs for each worker; node: one worker on each node."
    )
    worker_resources: dict[str, float] = Field(
        default_factory=dict, exclude=True, description="On a cluster: other resources that each worker takes."
    )
    worker_overrides: dict[str, Any] = Field(
        default_factory=dict,
        exclude=True,
        description="On a cluster: settings that differ between nodes; {node_ip} and {node_id} are filled in: "
        "'+worker_overrides={policy_base_url: \"http://{node_ip}:8000/v1\"}'.",
    )
    executor_port: int = Field(
        0, ge=0, le=65535, exclude=True, description="Port at which workers reach this machine; 0: any."
    )
    executor_tls: TlsFiles | None = Field(
        None,
        exclude=True,
        description="Encrypt the connections to workers, which carry the keys of models: "
        "{certificate: cert.pem, key: key.pem}.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, given: Any) -> Any:
        names = given if isinstance(given, dict) else {}
        gone = [f"{name} was removed: {advice}" for name, advice in REMOVED.items() if name in names]
        gone += [f"{name} does not exist here: {advice}" for name, advice in ELSEWHERE.items() if name in names]
        if gone:
            raise ValueError("; ".join(gone))
        return given


class TelemetryOptions(BaseModel):
    """Where a run reports what it does while it is running."""

    help_section: ClassVar[str] = "Metrics, spans and trackers"

    model_config = ConfigDict(defer_build=True)

    steps: bool = Field(
        False, exclude=True, description="Record every call of a rollout and how long it took, beside the output."
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, exclude=True, description="Serve metrics for Prometheus at this port; 0: any free one."
    )
    metrics_host: str = Field("127.0.0.1", exclude=True, description="Address at which the metrics are served.")
    otel_endpoint: str | None = Field(
        None,
        exclude=True,
        description="Send the spans of every rollout to this OTLP endpoint: http://localhost:4318/v1/traces.",
    )

    trackers: Annotated[list[str], BeforeValidator(_as_list), AfterValidator(_trackers)] | None = Field(
        None,
        exclude=True,
        description="Where metrics go: wandb, mlflow, tensorboard, or what other packages register; default: W&B if it "
        "is configured.",
    )

    @model_validator(mode="after")
    def _record_for_telemetry(self) -> Self:
        """Turn on the recording of steps if something reports them."""
        if self.otel_endpoint is not None and not self.steps and "steps" in self.model_fields_set:
            raise ValueError("otel_endpoint needs the steps of rollouts: leave out steps=false")
        if "steps" not in self.model_fields_set:
            self.steps = self.otel_endpoint is not None or self.metrics_port is not None
            self.model_fields_set.discard("steps")
        return self


class CollectionOptions(TelemetryOptions, WorkerOptions):
    """How a collection behaves: how many at once, how long, what to do about failures, how safely it is stored."""

    help_section: ClassVar[str] = "Limits, failures and storage"

    rollout_timeout_s: float | None = Field(
        DEFAULT_TIMEOUT_S, gt=0, exclude=True, description="Seconds after which a rollout is given up; null: never."
    )
    patience_s: float = Field(
        DEFAULT_PATIENCE_S,
        ge=0,
        exclude=True,
        description="Seconds to keep trying when the servers or the model can't be reached any more; then the run ends "
        "and can be resumed. A model that never answered gets 20 at most.",
    )
    max_failures: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, exclude=True, description="Stop once more rollouts than this have failed: a number, or a share like 0.1."
    )
    budget_tokens: int | None = Field(
        None, ge=1, exclude=True, description="Start no more rollouts once this run has used this many tokens."
    )
    budget_usd: float | None = Field(
        None,
        gt=0,
        exclude=True,
        description="Start no more rollouts once this run has spent this much; needs prices: {input: …, "
        "output: …} at the model.",
    )
    budget_minutes: float | None = Field(
        None, gt=0, exclude=True, description="Start no more rollouts after this many minutes."
    )
    drain_timeout_s: float = Field(
        DEFAULT_DRAIN_S, ge=0, exclude=True, description="When stopping, seconds that running rollouts get to finish."
    )
    resume_mode: ResumeMode = Field(
        ResumeMode.STRICT,
        exclude=True,
        description="When resuming with other settings: strict refuses, extend runs what is new, force keeps the plan.",
    )
    overwrite: bool = Field(
        False,
        exclude=True,
        description="Start over even if the output holds an unfinished run; it moves to a numbered folder beside it.",
    )
    retry_failed: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        default_factory=list, exclude=True, description="Classes of failure to try again when resuming, e.g. [timeout]."
    )
    shard: Annotated[str, AfterValidator(_shard)] | None = Field(
        None,
        exclude=True,
        description="Collect only a part of the tasks: 3/16 takes those whose index has remainder 3 when "
        "divided by 16. The part is added to the name of the output: rollouts-03-of-16.jsonl.",
    )
    token_continuity: Annotated[TokenContinuity, BeforeValidator(_word)] = Field(
        TokenContinuity.WARN,
        exclude=True,
        description="What to do about rollouts whose token ids are not one sequence: warn at the end, fail "
        "them, or do not check (off).",
    )
    token_ids: Literal["added", "full", "items"] = Field(
        "added",
        exclude=True,
        description="How the token ids of model calls are kept: each call's prompt as what it adds to the one before; "
        "full, with every prompt whole; or items, where they also travel with the items between agent and model.",
    )
    cache: str | None = Field(
        None,
        exclude=True,
        description="Folder in which completions of models are stored, so that they are not generated again.",
    )
    cache_max_gb: float = Field(10.0, gt=0, exclude=True, description="Maximum size of that folder.")
