"""The parameters of an export: which files, which rollouts, which format. A preset sets defaults for several of them.

They are the parameters of both ``ng_export`` and ``export_rollouts``; the descriptions are the command's help.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from nemo_gym.schemas.record import PASS_THRESHOLD

Format = Literal["sft", "sft_tokens", "dpo", "kto", "rl", "sharegpt", "atif", "rollouts", "parquet", "hf"]
Container = Literal["jsonl", "parquet", "hf"]
TOKEN_FORMATS: Final = frozenset({"sft_tokens", "rl"})
IMITATED: Final = frozenset({"sft", "sft_tokens", "sharegpt"})  # a model learns to repeat what these rows show
# The thresholds of NeMo Gym's tutorial on offline training.
NEMO: Final[Mapping[str, Any]] = {
    "min_reward": 0.5,
    "success": True,
    "min_turns": 2,
    "max_turns": 20,
    "complete": False,
}
_ENDINGS: Final = {"", ".jsonl", ".json", ".parquet"}
NEMO_PAIRS: Final[Mapping[str, Any]] = {"min_margin": 0.1, "complete": False}


class Recipe(BaseModel):
    """Parameters of ``ng_export``."""

    input: str | list[str] = Field(description="Rollout file, pattern (`'results/*.jsonl'`), or several of them.")
    output: str = Field(description="File (.jsonl, .parquet) or, for a dataset, folder to write.")
    format: Format = Field(description="What rows to make; parquet and hf are sft rows in that container.")
    container: Container | None = Field(
        default=None, description="How rows are stored; by default according to the name of the output."
    )
    preset: Literal["nemo"] | None = Field(
        default=None, description="nemo: thresholds and rows of NeMo Gym's tutorial on offline training."
    )
    seed: int = Field(
        default=0, description="Seed of all random choices: the split, and which of several equal rollouts are taken."
    )
    overwrite: bool = Field(default=False, description="Replace the output if it exists.")

    filter: str = Field(
        default="", description="Take only rollouts that match this filter, written as in the viewer: `tool_calls > 3`."
    )
    model: str | None = Field(default=None, description="Take the rollouts of this model only.")
    mixed_models: bool = Field(default=False, description="Allow rollouts of several models in one export.")
    min_reward: float | Literal["all"] | None = Field(
        default=None,
        description="Lowest reward of a rollout that is taken, or all; sft, sft_tokens and sharegpt take what reaches "
        "pass_threshold, unless min_reward, max_reward or success is given.",
    )
    max_reward: float | None = Field(default=None, description="Highest reward of a rollout that is taken.")
    success: bool | None = Field(
        default=None,
        description="Take what succeeded (or, if false, what did not): field success, else pass_threshold.",
    )
    complete: bool | None = Field(
        default=None, description="Leave out answers that were cut off; default for sft, sft_tokens and sharegpt."
    )
    continuity: bool | None = Field(
        default=None, description="Leave out rollouts whose tokens are not one sequence; always so for rl."
    )
    min_turns: int | None = Field(default=None, ge=0, description="Fewest turns of the model.")
    max_turns: int | None = Field(default=None, ge=0, description="Most turns of the model.")
    min_tokens: int | None = Field(default=None, ge=0, description="Fewest tokens the model wrote.")
    max_tokens: int | None = Field(default=None, ge=0, description="Most tokens the model wrote.")
    unique: bool = Field(
        default=False,
        description="Leave out answers to a prompt that repeat an earlier one but for case, spaces and punctuation.",
    )
    near_duplicates: float | None = Field(
        default=None, gt=0, lt=1, description="Leave out rollouts at least this similar (Jaccard) to one taken before."
    )
    decontaminate: str | list[str] | None = Field(
        default=None, description="Task files held out for evaluation: leave out rollouts that share text with them."
    )
    decontaminate_words: int = Field(default=13, ge=1, description="How many consecutive words count as shared text.")
    decontaminate_common: int = Field(
        default=10,
        ge=1,
        description="Sequences of words in more held-out tasks than this belong to a template and do not count.",
    )

    pass_threshold: float = Field(
        default=PASS_THRESHOLD, description="Lowest reward with which a rollout solves its task."
    )
    mixed_rewards: bool = Field(default=False, description="Only tasks whose rollouts got different rewards.")
    min_solve_rate: float | None = Field(
        default=None, ge=0, le=1, description="Only tasks with at least this solve rate."
    )
    max_solve_rate: float | None = Field(
        default=None, ge=0, le=1, description="Only tasks with at most this solve rate."
    )
    best_per_task: int | None = Field(
        default=None, ge=1, description="The n rollouts of each task with the highest rewards."
    )
    first_solved: int | None = Field(
        default=None, ge=1, description="The first n rollouts of each task that solved it."
    )
    max_per_task: int | None = Field(
        default=None, ge=1, description="At most n rollouts of each task, drawn at random by the seed."
    )
    balance_by: str | None = Field(default=None, description="Field by whose values rollouts are balanced.")
    max_per_value: int = Field(default=100, ge=1, description="Maximum rollouts for each value of balance_by.")
    validation: float = Field(default=0.0, ge=0, lt=1, description="Share of tasks for a validation split.")

    shape: Literal["messages", "prompt_completion"] = Field(
        default="messages", description="sft: one list of messages, or prompt and completion apart."
    )
    reasoning: Literal["think", "reasoning_content", "drop"] = Field(
        default="think", description="Reasoning: inside the text, in a separate field, or left out."
    )
    arguments: Literal["text", "object"] = Field(
        default="text", description="Arguments of tool calls: JSON text as OpenAI requires, or objects (jsonl only)."
    )
    metadata: bool = Field(default=False, description="Add task, rollout, reward, agent and model to each row.")
    on_break: Literal["drop", "split"] = Field(
        default="drop", description="sft_tokens: what to do if the tokens are not one sequence."
    )
    prompts: Literal["added", "full"] = Field(
        default="added", description="rollouts: prompts of model calls as what they add, or whole."
    )
    names: Literal["plain", "verl", "skyrl", "openrlhf"] = Field(
        default="plain", description="rl: field names of this trainer."
    )
    pairs: Literal["best_worst", "all"] = Field(default="best_worst", description="dpo: which pairs of a task.")
    pairs_per_task: int = Field(default=1, ge=1, description="dpo: maximum number of pairs of a task.")
    min_margin: float = Field(default=1e-6, ge=0, description="dpo: smallest difference of rewards.")
    max_length_ratio: float | None = Field(
        default=None, ge=1, description="dpo: how many times longer one answer of a pair may be."
    )
    rows_per_file: int = Field(default=50_000, ge=1, description="hf: rows in each file.")
    licence: str = Field(default="other", description="hf: licence named on the card.")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("preset") != "nemo":
            return given
        return {**(NEMO_PAIRS if given.get("format") == "dpo" else NEMO), **given}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.arguments == "object" and self.stored_as != "jsonl":
            raise ValueError("arguments=object needs a .jsonl output: a column of a table has one type")
        if self.preset == "nemo" and (self.rows not in ("sft", "dpo") or self.stored_as != "jsonl"):
            raise ValueError("preset=nemo has rows for format=sft and format=dpo, in a .jsonl file")
        if self.container is None and self.format != "hf" and Path(self.output).suffix not in _ENDINGS:
            raise ValueError(
                f"output: the ending {Path(self.output).suffix} is unknown; files have .jsonl, .json or .parquet, a "
                "dataset folder has none; container=jsonl, parquet or hf allows any name"
            )
        if self.rows == "rollouts" and self.stored_as != "jsonl":
            raise ValueError("format=rollouts needs a .jsonl output")
        if self.rows == "sharegpt" and self.reasoning == "reasoning_content":
            raise ValueError("sharegpt has no field for reasoning: choose reasoning=think or reasoning=drop")
        return self

    @property
    def rows(self) -> str:
        """The form of the rows, regardless of the file format."""
        return "sft" if self.format in ("parquet", "hf") else self.format

    @property
    def stored_as(self) -> Container:
        """The file format that holds the rows."""
        if self.container or self.format in ("parquet", "hf"):
            return self.container or ("parquet" if self.format == "parquet" else "hf")
        if self.output.endswith(".parquet"):
            return "parquet"
        return "jsonl" if self.output.endswith((".jsonl", ".json")) else "hf"

    @property
    def only_complete(self) -> bool:
        """Whether answers that were cut off are left out."""
        return self.rows in IMITATED if self.complete is None else self.complete

    @property
    def only_solved(self) -> bool:
        """Whether unsolved rollouts are left out because nothing else is said about rewards."""
        given = (self.min_reward, self.max_reward, self.success)
        return self.rows in IMITATED and all(rule is None for rule in given)

    @property
    def lowest_reward(self) -> float | None:
        """The lowest reward that is taken; None if every reward is."""
        if self.only_solved:
            return self.pass_threshold
        return None if self.min_reward == "all" else self.min_reward

    @property
    def by_task(self) -> bool:
        """Whether a rollout can be judged only once all rollouts of its task are known."""
        rules = (self.min_solve_rate, self.max_solve_rate, self.best_per_task, self.first_solved, self.max_per_task)
        limits = any(rule is not None for rule in (*rules, self.balance_by))
        return self.rows in ("dpo", "rl") or self.mixed_rewards or limits
