"""Rollouts as token sequences, and the sequences of a task as a group. Plain lists, ready to become tensors.

A sequence holds the very tokens that were read and sampled, never text that was tokenized again. A rollout becomes a
sequence only if its turns are one growing sequence of tokens; everything else is left out and counted by reason.
Failed rollouts are not in a rollout file and never become a sequence with reward 0.
"""

import itertools
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from nemo_gym.conversion.parts import POLICY_VERSION
from nemo_gym.errors import ConfigError
from nemo_gym.metrics.continuity import TRAINABLE, check_continuity
from nemo_gym.metrics.fields import output_of
from nemo_gym.schemas.rows import RolloutKey

# Rewards closer than this are the same: there is nothing to prefer.
SAME: Final = 1e-6


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One rollout. ``mask`` is true for tokens that the model sampled; other tokens have the log-probability 0."""

    key: RolloutKey
    ids: list[int]
    mask: list[bool]
    log_probs: list[float]
    reward: float
    cut_off: bool = False
    versions: list[int | None] = field(default_factory=list)  # of the policy, for each model call

    @property
    def start(self) -> int:
        """Where the first sampled token is."""
        return self.mask.index(True)

    def message_log(self) -> list[dict[str, Any]]:
        """The sequence in segments, as NeMo RL and its kind keep them: what was read, and what was sampled."""
        segments: list[dict[str, Any]] = []
        for sampled, group in itertools.groupby(range(len(self.ids)), self.mask.__getitem__):
            places = list(group)
            first, end = places[0], places[-1] + 1
            segment: dict[str, Any] = {"role": "assistant" if sampled else "user", "token_ids": self.ids[first:end]}
            segments.append(segment | ({"log_probs": self.log_probs[first:end]} if sampled else {}))
        return segments


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task."""

    task: int
    sequences: list[TokenSequence]

    @property
    def is_mixed(self) -> bool:
        """Whether the rewards differ: a task that is always or never solved teaches nothing."""
        rewards = [sequence.reward for sequence in self.sequences]
        return max(rewards) - min(rewards) > SAME

    def advantages(self) -> list[float]:
        """How much better each rollout is than its siblings, in standard deviations; zeros if all are equal."""
        rewards = [sequence.reward for sequence in self.sequences]
        mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
        return [(reward - mean) / spread if self.is_mixed else 0.0 for reward in rewards]

    def best(self, count: int, *, reward: float) -> list[TokenSequence]:
        """At most so many complete rollouts that reach a reward, the best first."""
        solved = [one for one in self.sequences if one.reward >= reward and not one.cut_off]
        return sorted(solved, key=lambda one: -one.reward)[:count]

    def pairs(self, count: int, *, seed: int = 0) -> list[tuple[TokenSequence, TokenSequence]]:
        """Pairs of a better and a worse rollout, no rollout twice, the widest margins first."""
        order = list(self.sequences)
        random.Random(f"{seed}/{self.task}").shuffle(order)  # noqa: S311 - among equals, any
        order.sort(key=lambda one: one.reward)
        pairs = zip(reversed(order), order, strict=True)
        return [(good, bad) for good, bad in pairs if good.reward - bad.reward > SAME][:count]


@dataclass(frozen=True, slots=True)
class Groups:
    """What a rollout file holds for a trainer, and how many rollouts were left out for which reason."""

    groups: list[Group]
    dropped: Counter[str]

    def text(self) -> str:
        """One line for people."""
        kept = sum(len(group.sequences) for group in self.groups)
        mixed = sum(group.is_mixed for group in self.groups)
        reasons = "".join(f", {count} dropped: {reason}" for reason, count in self.dropped.most_common())
        return f"{kept} rollouts of {len(self.groups)} tasks, {mixed} with mixed rewards{reasons}"


class UnusableRolloutError(ValueError):
    """A rollout that can't be one token sequence; its text is the reason."""


def sequence_of(record: Mapping[str, Any], key: RolloutKey | None = None) -> TokenSequence:
    """The tokens of a rollout record; ``UnusableRolloutError`` if they are missing or not one sequence."""
    output = output_of(record) or []
    found = check_continuity(output)
    if not found.calls:
        raise UnusableRolloutError("no token ids")
    if not found.ok:
        raise UnusableRolloutError(f"token ids are not one sequence ({found.breaks[0].reason})")
    if not isinstance(record.get("reward"), int | float):
        raise UnusableRolloutError("no reward")
    calls = [item for item in output if isinstance(item, Mapping) and item.get(TRAINABLE) is not None]
    ids = [*calls[-1]["prompt_token_ids"], *calls[-1][TRAINABLE]]
    mask, log_probs = [False] * len(ids), [0.0] * len(ids)
    for call in calls:
        start, end = len(call["prompt_token_ids"]), len(call["prompt_token_ids"]) + len(call[TRAINABLE])
        if len(call["generation_log_probs"]) != end - start:
            raise UnusableRolloutError("log-probabilities are missing")
        mask[start:end], log_probs[start:end] = [True] * (end - start), call["generation_log_probs"]
    if True not in mask:
        raise UnusableRolloutError("nothing was sampled")
    key = key or RolloutKey.of(record)
    if key is None:
        raise UnusableRolloutError("no task and rollout index")
    return TokenSequence(
        key=key,
        ids=ids,
        mask=mask,
        log_probs=log_probs,
        reward=float(record["reward"]),
        cut_off=bool((record.get("response") or {}).get("incomplete_details")),
        versions=[call.get(POLICY_VERSION) for call in calls],
    )


def group_sequences(sequences: Iterable[TokenSequence]) -> list[Group]:
    """Sequences by task, in the order of their keys."""
    groups: dict[int, list[TokenSequence]] = {}
    for sequence in sorted(sequences, key=lambda one: one.key):
        groups.setdefault(sequence.key.task, []).append(sequence)
    return [Group(task, members) for task, members in groups.items()]


def read_groups(path: Path) -> Groups:
    """All groups of a rollout file."""
    sequences, dropped = list[TokenSequence](), Counter[str]()
    with path.open("rb") as file:
        for line in file:
            try:
                sequences.append(sequence_of(orjson.loads(line)))
            except UnusableRolloutError as error:
                dropped[str(error)] += 1
    if not sequences:
        raise ConfigError(
            f"{path}: no rollout can be trained on ({_reasons(dropped)})",
            hint="collect with return_token_id_information: true on the model server",
        )
    return Groups(group_sequences(sequences), dropped)


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "the file is empty"


def common_start(sequences: Sequence[TokenSequence]) -> int:
    """How many tokens all sequences have in common before any of them was sampled."""
    first = sequences[0].ids
    end = min(sequence.start for sequence in sequences)
    for sequence in sequences[1:]:
        while sequence.ids[:end] != first[:end]:
            end -= 1
    return end
