"""The exact tokens of a rollout: those the model read, those it sampled, and their log-probabilities.

Text is never tokenized again. As long as each call's prompt begins with everything before it, a rollout is one growing
sequence. Otherwise a new sequence begins, so that the loss mask never covers tokens that were not sampled.

Rows for supervised training may be several for a rollout. A row for reinforcement learning is one rollout, under the
field names of several trainers; its advantage is relative to the exported rollouts of the same task.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from nemo_gym.export.recipe import Recipe
from nemo_gym.export.records import Rollout
from nemo_gym.export.select import SAME, Candidate, is_validation
from nemo_gym.export.sft import Row, UnfitError, prompt_messages
from nemo_gym.metrics.continuity import TRAINABLE

NOT_IDS: Final = "has token ids that are not lists of whole numbers"
IGNORED: Final = -100  # the label that the losses of transformers ignore


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens in the order in which the model saw them; ``mask`` is 1 where it sampled them itself."""

    ids: list[int]
    mask: list[int]
    log_probs: list[float]  # 0 where nothing was sampled or recorded

    @property
    def start(self) -> int:
        """The index of the first sampled token."""
        return self.mask.index(1)

    def labels(self) -> list[int]:
        """The tokens to learn from; all others are marked as ignored."""
        return [token if sampled else IGNORED for token, sampled in zip(self.ids, self.mask, strict=True)]

    def message_log(self) -> list[Row]:
        """The tokens in alternating segments, read and sampled, as NeMo RL and similar trainers store them."""
        segments: list[Row] = []
        for sampled, places in groupby(range(len(self.ids)), self.mask.__getitem__):
            at = list(places)
            segment: Row = {"role": "assistant" if sampled else "user", "token_ids": self.ids[at[0] : at[-1] + 1]}
            segments.append(segment | ({"log_probs": self.log_probs[at[0] : at[-1] + 1]} if sampled else {}))
        return segments


def token_spans(output: Sequence[Mapping[str, Any]]) -> list[TokenSpan]:
    """The sequences of a rollout: one, unless its history was rewritten during the rollout."""
    spans: list[TokenSpan] = []
    for item in output:
        generated = item.get(TRAINABLE)
        if generated is None:
            continue
        prompt: Any = item.get("prompt_token_ids")
        if not are_ids(prompt) or not are_ids(generated):
            raise UnfitError(NOT_IDS)
        if not generated:
            continue
        if not spans or prompt[: len(spans[-1].ids)] != spans[-1].ids:
            spans.append(TokenSpan([], [], []))
        _extend(spans[-1], prompt, generated, item.get("generation_log_probs") or ())
    if not spans:
        raise UnfitError("has no token ids")
    return spans


def only_span(output: Sequence[Mapping[str, Any]]) -> TokenSpan:
    """The single sequence of a rollout; ``UnfitError`` if it has none or several."""
    spans = token_spans(output)
    if len(spans) > 1:
        raise UnfitError("is not one sequence of tokens")
    return spans[0]


def are_ids(value: Any) -> bool:
    """Whether this is a list of token ids."""
    return isinstance(value, list) and set(map(type, value)) <= {int}


def _extend(span: TokenSpan, prompt: list[int], generated: list[int], log_probs: Sequence[float]) -> None:
    read = prompt[len(span.ids) :]
    known = list(log_probs) if len(log_probs) == len(generated) else [0.0] * len(generated)
    span.ids.extend(read + generated)
    span.mask.extend([0] * len(read) + [1] * len(generated))
    span.log_probs.extend([0.0] * len(read) + known)


def token_rows(rollout: Rollout, recipe: Recipe) -> Iterator[Row]:
    """Rows for supervised training on tokens; the loss covers only tokens that the model wrote."""
    for span in token_spans(rollout.output):
        row: Row = {"input_ids": span.ids, "labels": span.labels(), "completion_mask": span.mask}
        yield row | (rollout.labels() if recipe.metadata else {})


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
        "extra_info": {"index": rollout.rollout, "split": "validation" if is_validation(rollout, recipe) else "train"},
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
    """A sample of OpenRLHF, where whatever is about tokens to predict begins with the second token of the sequence."""
    return {
        "sequences": span.ids,
        "attention_mask": [1] * len(span.ids),
        "action_mask": span.mask[1:],
        "rollout_log_probs": span.log_probs[1:],
        "rewards": rollout.reward,
        "advantages": [rollout.advantage * sampled for sampled in span.mask[1:]],
        "index": rollout.task.hex(),
    }


_NAMES: Final[Mapping[str, Callable[[Rollout, TokenSpan, Recipe], Row]]] = {
    "plain": _plain,
    "verl": _verl,
    "skyrl": _skyrl,
    "openrlhf": _openrlhf,
}
