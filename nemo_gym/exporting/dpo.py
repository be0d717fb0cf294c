"""Preferences: pairs of a better and a worse answer to the same prompt, and single answers rated good or bad (KTO).

Pairs are chosen from the index of the selection; only the rollouts of chosen pairs are read again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.records import ExportedRollout
from nemo_gym.exporting.select import Candidate, by_task, seeded_bytes
from nemo_gym.exporting.sft import Row, conversation, tools_of

Member = TypeVar("Member")


class Preference(NamedTuple):
    """Two rollouts of the same task, one of which is better."""

    chosen: Candidate
    rejected: Candidate

    @property
    def margin(self) -> float:
        """How much better the chosen one is."""
        return self.chosen.reward - self.rejected.reward


def choose_pairs(found: Iterable[Candidate], recipe: Recipe) -> list[Preference]:
    """The pairs of all tasks, in the order in which tasks first appear."""
    choose = _exactly_two if recipe.preset == "nemo" else _pairs_of_task
    return [pair for members in by_task(found) for pair in choose(members, recipe)]


def _pairs_of_task(members: Sequence[Candidate], recipe: Recipe) -> list[Preference]:
    """The pairs of a task, widest margins first; ties are broken by the seed."""
    ranked = sorted(
        members, key=lambda candidate: (-candidate.reward, seeded_bytes(recipe.seed, candidate.task, candidate.rollout))
    )
    if recipe.pairs == "best_worst":
        pairs = [Preference(*two) for two in best_with_worst(ranked)]
    else:
        pairs = sorted((Preference(*two) for two in product(ranked, ranked)), key=lambda pair: -pair.margin)
    return [pair for pair in pairs if _fits(pair, recipe)][: recipe.pairs_per_task]


def best_with_worst(ranked: Sequence[Member]) -> Iterator[tuple[Member, Member]]:
    """Pair best with worst, second best with second worst, and so on; no rollout is used twice."""
    return zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)


def _fits(pair: Preference, recipe: Recipe) -> bool:
    if pair.margin < max(recipe.min_margin, 1e-9):
        return False
    if recipe.max_length_ratio is None:
        return True
    short, long = sorted((pair.chosen.tokens, pair.rejected.tokens))
    return long <= recipe.max_length_ratio * max(short, 1)


def _exactly_two(members: Sequence[Candidate], recipe: Recipe) -> list[Preference]:
    """The rule of NeMo Gym's tutorial: only tasks with two rollouts."""
    if len(members) != 2:
        return []
    rejected, chosen = sorted(members, key=lambda candidate: candidate.reward)
    return [pair for pair in (Preference(chosen, rejected),) if pair.margin >= recipe.min_margin]


def pair_row(chosen: ExportedRollout, rejected: ExportedRollout, recipe: Recipe) -> Row:
    """A row for preference training."""
    if recipe.preset == "nemo":
        return nemo_pair(chosen.record.fields, rejected.record.fields)
    better, worse = conversation(chosen, recipe), conversation(rejected, recipe)
    row: Row = {"prompt": better.prompt, "chosen": better.completion, "rejected": worse.completion}
    row |= tools_of(chosen, recipe)
    scores = {"score_chosen": chosen.reward, "score_rejected": rejected.reward}
    return row | (scores | {"task": chosen.labels()["task"]} if recipe.metadata else {})


def nemo_pair(chosen: Mapping[str, Any], rejected: Mapping[str, Any]) -> Row:
    """A row as NeMo Gym's tutorial makes it: items as they are."""
    return {
        "prompt": chosen["responses_create_params"]["input"],
        "chosen": chosen["response"]["output"],
        "rejected": rejected["response"]["output"],
        "quality_difference": chosen["reward"] - rejected["reward"],
    }


def kto_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """A row with a label, which is good if the reward is at least ``pass_threshold``."""
    prompt, completion = conversation(rollout, recipe)
    row: Row = {"prompt": prompt, "completion": completion, "label": rollout.reward >= recipe.pass_threshold}
    yield row | tools_of(rollout, recipe) | (rollout.labels() if recipe.metadata else {})
