"""Rollouts as token sequences, and the sequences of a task as a group, in plain lists that are ready to become tensors.

A sequence is what ``exporting.tokens`` makes of a rollout: the exact tokens that were read and sampled. This module
adds rewards and names, for trainers that drive a running Gym and for those that read an export of the format ``rl``.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.conversion.parts import POLICY_VERSION
from nemo_gym.errors import ConfigError
from nemo_gym.exporting.dpo import best_with_worst
from nemo_gym.exporting.select import SAME, has_log_probs, seeded_bytes
from nemo_gym.exporting.sft import UnfitError
from nemo_gym.exporting.tokens import TokenSpan, advantages, token_spans
from nemo_gym.io.json import decode
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.schemas.call_tokens import TRAINABLE, RolloutFormatError, common_prefix
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RolloutKey


@dataclass(frozen=True, slots=True)
class TokenSequence(TokenSpan):
    """One rollout, or one of its traces: its tokens, which of them the model sampled, and how good the rollout was."""

    key: RolloutKey
    reward: float
    versions: list[int | None] = field(default_factory=list)  # of the policy, for each model call of the rollout


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task."""

    task: int
    sequences: list[TokenSequence]

    def advantages(self) -> list[float]:
        """The advantage of each sequence's rollout over the others, in standard deviations; zeros if all are equal.

        A rollout counts once, however many sequences it has.
        """
        rewards = {sequence.key: sequence.reward for sequence in self.sequences}
        by_key = dict(zip(rewards, advantages(list(rewards.values())), strict=True))
        return [by_key[sequence.key] for sequence in self.sequences]

    def pairs(self, count: int, *, seed: int = 0) -> list[tuple[TokenSequence, TokenSequence]]:
        """Pairs of a better and a worse rollout, widest margins first; no rollout is used twice."""
        rollouts = {sequence.key: sequence for sequence in reversed(self.sequences)}.values()  # the first of each
        ranked = sorted(rollouts, key=lambda one: (-one.reward, seeded_bytes(seed, *one.key)))
        return [(good, bad) for good, bad in best_with_worst(ranked) if good.reward - bad.reward > SAME][:count]


def sequences_of(record: Record, key: RolloutKey | None = None) -> list[TokenSequence]:
    """The tokens of a rollout: one sequence, or one for each of its traces; ``UnfitError`` if there are none.

    A rollout without traces whose tokens do not form one sequence is unfit as well.
    """
    output, traces, reward = record.items, record.traces, record.reward
    continuity = check_continuity(output)
    if not continuity.ok and not traces:
        raise UnfitError(f"is not one sequence of tokens ({continuity.breaks[0].reason})")
    spans = token_spans(output, traces)
    items = [item for each in (output, *(trace.get("output") or () for trace in traces)) for item in each]
    if not has_log_probs(items):
        raise UnfitError("has no log-probabilities")
    if reward is None or math.isinf(reward):
        raise UnfitError("has no reward")
    try:
        key = key or record.key
    except RolloutFormatError as error:
        raise UnfitError(f"has no key: {error}") from None
    if key is None:
        raise UnfitError("has no task and rollout index")
    versions = [item.get(POLICY_VERSION) for item in items if item.get(TRAINABLE) is not None]
    return [
        TokenSequence(
            ids=span.ids,
            mask=span.mask,
            log_probs=span.log_probs,
            turn_starts=span.turn_starts,
            key=key,
            reward=reward,
            versions=versions,
        )
        for span in spans
    ]


def sequence_of(fields: Mapping[str, Any], key: RolloutKey | None = None) -> TokenSequence:
    """The tokens of a rollout that is one sequence; ``UnfitError`` if they are missing or are several."""
    found = sequences_of(Record(fields), key)
    if len(found) > 1:
        raise UnfitError("is not one sequence of tokens")
    return found[0]


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
            return group_sequences(_from_row(decode(line)) for line in file)
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path} does not hold token sequences", hint="make it with ng_export +format=rl +metadata=true"
            ) from None


def _from_row(row: Mapping[str, Any]) -> TokenSequence:
    key = RolloutKey(row["task"], row["rollout"])
    starts = row.get("turn_starts", [])  # files of earlier versions have none
    return TokenSequence(row["input_ids"], row["loss_mask"], row["log_probs"], key, row["reward"], turn_starts=starts)


def common_start(sequences: Sequence[TokenSequence]) -> int:
    """How many tokens all sequences have in common before any of them was sampled."""
    first = sequences[0].ids
    end = min(sequence.start for sequence in sequences)
    for sequence in sequences[1:]:
        end = common_prefix(sequence.ids[:end], first[:end])
    return end
