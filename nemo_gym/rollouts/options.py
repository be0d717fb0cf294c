"""The options of a collection that the shared interface does not have.

They are parameters like all others, but they are left out when a configuration is dumped: a dump holds what the
interface names and nothing else.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nemo_gym.rollouts.continuity_gate import TokenContinuity
from nemo_gym.rollouts.dispatch import DEFAULT_DRAIN_S
from nemo_gym.rollouts.outage import DEFAULT_PATIENCE_S
from nemo_gym.rollouts.store.journal import Fsync
from nemo_gym.rollouts.store.rollout_store import ResumeMode

DEFAULT_WINDOW = 1024
DEFAULT_TIMEOUT_S = 6 * 3600.0


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _word(value: Any) -> Any:
    return "off" if value is False else value  # which is how YAML reads the word


class CollectionOptions(BaseModel):
    """How a collection behaves: how many at once, how long, what to do about failures, how safely it is stored."""

    model_config = ConfigDict(defer_build=True)

    max_in_flight: int = Field(
        DEFAULT_WINDOW, ge=1, exclude=True, description="Most rollouts at once if num_samples_in_parallel sets none."
    )
    rollout_timeout_s: float | None = Field(
        DEFAULT_TIMEOUT_S, gt=0, exclude=True, description="Seconds after which a rollout is given up; null: never."
    )
    patience_s: float = Field(
        DEFAULT_PATIENCE_S,
        ge=0,
        exclude=True,
        description="Seconds to wait when nothing gets through to the servers or the model; then the rest stays owed.",
    )
    max_failures: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, exclude=True, description="Stop once more rollouts than this failed: a number, or a share like 0.1."
    )
    budget_tokens: int | None = Field(
        None, ge=1, exclude=True, description="Start no more rollouts once this run has used so many tokens."
    )
    budget_usd: float | None = Field(
        None, gt=0, exclude=True, description="The same for money; needs prices: {input: …, output: …} at the model."
    )
    budget_minutes: float | None = Field(None, gt=0, exclude=True, description="The same for time.")
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
        description="Start afresh although the output holds rollouts; they are moved to a numbered folder beside it.",
    )
    retry_failed: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        default_factory=list, exclude=True, description="Classes of failure to try again when resuming, e.g. [timeout]."
    )
    fsync: Fsync = Field(
        Fsync.INTERVAL, exclude=True, description="When results are forced to the disk: never, interval or always."
    )
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None, exclude=True, description="Processes to run the Gym in, each with a whole one; auto: one for each core."
    )
    token_continuity: Annotated[TokenContinuity, BeforeValidator(_word)] = Field(
        TokenContinuity.WARN,
        exclude=True,
        description="Rollouts whose token ids are not one sequence: warn at the end, fail them, or off: do not look.",
    )
    cache: str | None = Field(
        None, exclude=True, description="Folder to keep answers of models in; what is there is not generated again."
    )
    cache_max_gb: float = Field(10.0, gt=0, exclude=True, description="How large that folder may become.")
