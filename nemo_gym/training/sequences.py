"""Rollouts as token sequences, and the sequences of a task as a group, in plain lists that are ready to become tensors.

A sequence is what ``export.tokens`` makes of a rollout: the exact tokens that were read and sampled. This module adds
rewards and names, both for trainers that drive a running Gym and for those that read an export of the format ``rl``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.conversion.parts import POLICY_VERSION
from nemo_gym.errors import ConfigError
from nemo_gym.export.dpo import best_with_worst
from nemo_gym.export.select import SAME, has_log_probs, seeded_bytes
from nemo_gym.export.sft import UnfitError
from nemo_gym.export.tokens import TokenSpan, advantages, only_span
from nemo_gym.io.json import parse_line
from nemo_gym.metrics.continuity import TRAINABLE, check_continuity
from nemo_gym.metrics.fields import output_of
from nemo_gym.schemas.rows import RolloutKey


@dataclass(frozen=True, slots=True)
class TokenSequence(TokenSpan):
    """One rollout: its tokens, which of them the model sampled, and how good it was."""

    key: RolloutKey
    reward: float
    versions: list[int | None] = field(default_factory=list)  # of the policy, for each model call


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task."""

    task: int
    sequences: list[TokenSequence]

    @property
    def is_mixed(self) -> bool:
        """Whether the rewards differ. There is nothing to learn from a task that is always or never solved."""
        rewards = [sequence.reward for sequence in self.sequences]
        return max(rewards) - min(rewards) > SAME

    def advantages(self) -> list[float]:
        """The advantage of each rollout over the others, in standard deviations; zeros if all are equal."""
        return advantages([sequence.reward for sequence in self.sequences])

    def pairs(self, count: int, *, seed: int = 0) -> list[tuple[TokenSequence, TokenSequence]]:
        """Pairs of a better and a worse rollout, widest margins first; no rollout is used twice."""
        ranked = sorted(self.sequences, key=lambda one: (-one.reward, seeded_bytes(seed, *one.key)))
        return [(good, bad) for good, bad in best_with_worst(ranked) if good.reward - bad.reward > SAME][:count]


def sequence_of(record: Mapping[str, Any], key: RolloutKey | None = None) -> TokenSequence:
    """The tokens of a rollout record; ``UnfitError`` if they are missing or do not form one sequence."""
    output = [item for item in output_of(record) or () if isinstance(item, Mapping)]
    continuity = check_continuity(output)
    if not continuity.ok:
        raise UnfitError(f"is not one sequence of tokens ({continuity.breaks[0].reason})")
    span = only_span(output)
    if not has_log_probs(output):
        raise UnfitError("has no log-probabilities")
    if not isinstance(record.get("reward"), int | float):
        raise UnfitError("has no reward")
    key = key or RolloutKey.of(record)
    if key is None:
        raise UnfitError("has no task and rollout index")
    return TokenSequence(
        ids=span.ids,
        mask=span.mask,
        log_probs=span.log_probs,
        key=key,
        reward=float(record["reward"]),
        versions=[item.get(POLICY_VERSION) for item in output if item.get(TRAINABLE) is not None],
    )


def group_sequences(sequences: Iterable[TokenSequence]) -> list[Group]:
    """Sequences by task, in the order of their keys."""
    groups: dict[int, list[TokenSequence]] = {}
    for sequence in sorted(sequences, key=lambda one: one.key):
        groups.setdefault(sequence.key.task, []).append(sequence)
    return [Group(task, members) for task, members in groups.items()]


def read_groups(path: Path) -> list[Group]:
    """The groups of an export of the format ``rl`` with ``metadata``; the order of its rows does not matter."""
    with path.open("rb") as file:
        try:
            return group_sequences(_from_row(parse_line(line)) for line in file)
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path} does not hold token sequences", hint="make it with ng_export +format=rl +metadata=true"
            ) from None


def _from_row(row: Mapping[str, Any]) -> TokenSequence:
    key = RolloutKey(row["task"], row["rollout"])
    return TokenSequence(row["input_ids"], row["loss_mask"], row["log_probs"], key, row["reward"])


def common_start(sequences: Sequence[TokenSequence]) -> int:
    """How many tokens all sequences have in common before any of them was sampled."""
    first = sequences[0].ids
    end = min(sequence.start for sequence in sequences)
    for sequence in sequences[1:]:
        # Prompts of one task are nearly always the same, so this hardly ever takes a step.
        while sequence.ids[:end] != first[:end]:
            end -= 1
    return end
