"""Token sequences with rewards for offline reinforcement learning, under the field names of several trainers.

Advantages are relative to the exported rollouts of the same task. If all of them got the same reward, their advantages
are zero. Each row is one rollout, whose tokens form one growing sequence.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from nemo_gym.export.recipe import Recipe
from nemo_gym.export.records import Rollout
from nemo_gym.export.select import SAME, Candidate
from nemo_gym.export.sft import Row, prompt_messages
from nemo_gym.export.tokens import TokenSpan, only_span


def group_advantages(candidates: Iterable[Candidate]) -> dict[tuple[Any, int], float]:
    """The advantage of each rollout over the others of its task, in standard deviations, by file and line."""
    tasks: dict[bytes, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        tasks[candidate.task].append(candidate)
    found = {}
    for members in tasks.values():
        for candidate, advantage in zip(members, advantages([candidate.reward for candidate in members]), strict=True):
            found[candidate.path, candidate.line] = advantage
    return found


def advantages(rewards: Sequence[float]) -> list[float]:
    """The advantage of each reward over the mean of the group, in standard deviations; zeros if all are equal."""
    if max(rewards) - min(rewards) <= SAME:
        return [0.0] * len(rewards)
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [(reward - mean) / spread for reward in rewards]


def rl_rows(rollout: Rollout, recipe: Recipe) -> Iterator[Row]:
    """A row under the names that the recipe asks for."""
    yield _NAMES[recipe.names](rollout, only_span(rollout.output), recipe) | (
        rollout.labels() if recipe.metadata else {}
    )


def _plain(rollout: Rollout, span: TokenSpan, recipe: Recipe) -> Row:  # noqa: ARG001 - one shape for all
    return {
        "input_ids": span.ids,
        "loss_mask": span.mask,
        "log_probs": span.log_probs,
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "group": rollout.task.hex(),
    }


def _verl(rollout: Rollout, span: TokenSpan, recipe: Recipe) -> Row:
    """Columns of verl's prompt datasets, and the tensors of a finished rollout under their names in its batches."""
    start = span.start
    answer = len(span.ids) - start
    return {
        "data_source": rollout.agent or "rollouts",
        "prompt": prompt_messages(rollout, recipe),
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": rollout.rollout, "split": "train"},
        "uid": rollout.task.hex(),
        "prompts": span.ids[:start],
        "responses": span.ids[start:],
        "response_mask": span.mask[start:],
        "rollout_log_probs": span.log_probs[start:],
        # The whole reward is assigned to the last token of the answer.
        "token_level_scores": [0.0] * (answer - 1) + [rollout.reward],
        "advantages": [rollout.advantage * sampled for sampled in span.mask[start:]],
    }


def _skyrl(rollout: Rollout, span: TokenSpan, recipe: Recipe) -> Row:  # noqa: ARG001 - one shape for all
    start = span.start
    return {
        "prompt_token_ids": span.ids[:start],
        "response_ids": span.ids[start:],
        "loss_masks": span.mask[start:],
        "rollout_logprobs": span.log_probs[start:],
        "rewards": rollout.reward,
        "advantages": rollout.advantage,
        "stop_reasons": "length" if rollout.cut_off else "stop",
        "uid": rollout.task.hex(),
    }


def _openrlhf(rollout: Rollout, span: TokenSpan, recipe: Recipe) -> Row:  # noqa: ARG001 - one shape for all
    return {
        "sequences": span.ids,
        "attention_mask": [1] * len(span.ids),
        "action_mask": span.mask,
        "rollout_log_probs": span.log_probs,
        "rewards": rollout.reward,
        "advantages": [rollout.advantage * sampled for sampled in span.mask],
        "index": rollout.task.hex(),
    }


_NAMES: Final[Mapping[str, Callable[[Rollout, TokenSpan, Recipe], Row]]] = {
    "plain": _plain,
    "verl": _verl,
    "skyrl": _skyrl,
    "openrlhf": _openrlhf,
}
