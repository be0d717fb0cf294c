"""The exact tokens of a rollout: those the model read, those it sampled, and their log-probabilities.

Text is never tokenized again. As long as each call's prompt begins with everything before it, a rollout is one growing
sequence. Otherwise a new sequence begins, so that the loss mask never covers tokens that were not sampled.

A rollout with other traces (compacted history, sub-agents) is a sequence for each. A row for reinforcement learning is
one sequence with the reward of its rollout, under the field names of several trainers; the advantage is relative to
the exported rollouts of the same task.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.records import ExportedRollout
from nemo_gym.exporting.select import SAME, Candidate, by_task, is_validation
from nemo_gym.exporting.sft import Row, UnfitError, prompt_messages
from nemo_gym.schemas.call_tokens import (
    TRAINED,
    CallTokens,
    Items,
    RolloutFormatError,
    read_calls,
    with_added_prompts,
    with_full_prompts,
)

IGNORED: Final = -100  # the label that the losses of transformers ignore


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens in the order in which the model saw them; ``mask`` is 1 where it sampled them itself."""

    ids: list[int]
    mask: list[int]
    log_probs: list[float]  # 0 where nothing was sampled or recorded
    turn_starts: list[int] = field(default_factory=list, kw_only=True)  # where each call began to sample

    @property
    def start(self) -> int:
        """The index of the first sampled token."""
        return self.mask.index(1)

    def labels(self) -> list[int]:
        """The tokens to learn from; all others are marked as ignored."""
        return [token if sampled else IGNORED for token, sampled in zip(self.ids, self.mask, strict=True)]

    def message_log(self) -> list[Row]:
        """The tokens in segments, read and sampled, as NeMo RL and similar trainers store them.

        Every call has a segment of its own, even if nothing was read between two of them.
        """
        turns, segments = set(self.turn_starts), list[Row]()
        edges = [at for at in range(len(self.ids)) if at in turns or not at or self.mask[at] != self.mask[at - 1]]
        for start, end in zip(edges, [*edges[1:], len(self.ids)], strict=True):
            sampled = self.mask[start]
            segment: Row = {"role": "assistant" if sampled else "user", "token_ids": self.ids[start:end]}
            segments.append(segment | ({"log_probs": self.log_probs[start:end]} if sampled else {}))
        return segments


def token_spans(output: Items, traces: Sequence[Mapping[str, Any]] = ()) -> list[TokenSpan]:
    """The sequences of a rollout: one, unless its history was rewritten or it has other traces.

    Every sampled token is in exactly one of them, apart from those of calls that were repeated and not used.
    """
    trained = [True, *(trace.get(TRAINED) is not False for trace in traces)]
    spans: list[TokenSpan] = []
    latest: TokenSpan | None = None  # which the call before is the end of
    for call in token_calls(output, *(trace.get("output") or () for trace in traces)):
        if not call.generation or not trained[call.place]:
            latest = None
            continue
        if latest is None or not call.continues:
            latest = _continued(spans, call)
        _extend(latest, call)
    if not spans:
        raise UnfitError("has no token ids")
    return spans


def _continued(spans: list[TokenSpan], call: CallTokens) -> TokenSpan:
    """The longest sequence that a call continues, or a new one."""
    prompt = call.prompt
    begun = [span for span in spans if len(span.ids) <= len(prompt) and prompt[: len(span.ids)] == span.ids]
    if not begun:
        begun = [TokenSpan([], [], [])]
        spans += begun
    return max(begun, key=lambda span: len(span.ids))


def only_span(output: Items) -> TokenSpan:
    """The single sequence of a rollout; ``UnfitError`` if it has none or several."""
    spans = token_spans(output)
    if len(spans) > 1:
        raise UnfitError("is not one sequence of tokens")
    return spans[0]


def token_calls(*outputs: Items) -> Iterator[CallTokens]:
    """The calls of a rollout; ``UnfitError`` if their tokens are not valid."""
    try:
        yield from read_calls(*outputs)
    except RolloutFormatError as error:
        raise UnfitError(f"has {error}") from None


def _extend(span: TokenSpan, call: CallTokens) -> None:
    read = call.added if call.kept == len(span.ids) else call.prompt[len(span.ids) :]
    sampled = len(call.generation)
    span.turn_starts.append(len(span.ids) + len(read))
    span.ids.extend(read + call.generation)
    span.mask.extend([0] * len(read) + [1] * sampled)
    span.log_probs.extend([0.0] * len(read) + (call.log_probs or [0.0] * sampled))


def token_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """Rows for supervised training on tokens; the loss covers only tokens that the model wrote."""
    for span in token_spans(rollout.output, rollout.record.traces):
        row: Row = {"input_ids": span.ids, "labels": span.labels(), "completion_mask": span.mask}
        yield row | (rollout.labels() if recipe.metadata else {})


def saved_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """The row as it was saved, with its prompts in the form that the recipe asks for."""
    yield (with_full_prompts if recipe.prompts == "full" else with_added_prompts)(rollout.record.fields)


def group_advantages(candidates: Iterable[Candidate]) -> dict[tuple[Any, int], float]:
    """The advantage of each rollout over the others of its task, in standard deviations, by file and line."""
    found = {}
    for members in by_task(candidates):
        for candidate, advantage in zip(members, advantages([candidate.reward for candidate in members]), strict=True):
            found[candidate.path, candidate.line] = advantage
    return found


def advantages(rewards: Sequence[float]) -> list[float]:
    """The advantage of each reward over the mean of the group, in standard deviations; zeros if all are equal."""
    if max(rewards) - min(rewards) <= SAME:
        return [0.0] * len(rewards)
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [(reward - mean) / spread for reward in rewards]


def rl_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """A row for each sequence, with the reward of the rollout, under the names that the recipe asks for."""
    traces = rollout.record.traces
    for span in token_spans(rollout.output, traces) if traces else [only_span(rollout.output)]:
        yield _NAMES[recipe.names](rollout, span, recipe) | (rollout.labels() if recipe.metadata else {})


def _plain(rollout: ExportedRollout, span: TokenSpan, recipe: Recipe) -> Row:  # noqa: ARG001 - one shape for all
    return {
        "input_ids": span.ids,
        "loss_mask": span.mask,
        "log_probs": span.log_probs,
        "turn_starts": span.turn_starts,
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "group": rollout.task.hex(),
    }


def _verl(rollout: ExportedRollout, span: TokenSpan, recipe: Recipe) -> Row:
    """Columns of verl's prompt datasets, and the tensors of a finished rollout under their names in its batches."""
    start = span.start
    generated = len(span.ids) - start
    return {
        "data_source": rollout.record.agent or "rollouts",
        "prompt": prompt_messages(rollout, recipe),
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": rollout.rollout, "split": "validation" if is_validation(rollout, recipe) else "train"},
        "uid": rollout.task.hex(),
        "prompts": span.ids[:start],
        "responses": span.ids[start:],
        "response_mask": span.mask[start:],
        "rollout_log_probs": span.log_probs[start:],
        # The whole reward is assigned to the last token of the completion.
        "token_level_scores": [0.0] * (generated - 1) + [rollout.reward],
        "advantages": [rollout.advantage * sampled for sampled in span.mask[start:]],
    }


def _skyrl(rollout: ExportedRollout, span: TokenSpan, recipe: Recipe) -> Row:  # noqa: ARG001 - one shape for all
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


def _openrlhf(rollout: ExportedRollout, span: TokenSpan, recipe: Recipe) -> Row:  # noqa: ARG001 - one shape for all
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


_NAMES: Final[Mapping[str, Callable[[ExportedRollout, TokenSpan, Recipe], Row]]] = {
    "plain": _plain,
    "verl": _verl,
    "skyrl": _skyrl,
    "openrlhf": _openrlhf,
}
