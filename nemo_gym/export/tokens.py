"""The exact tokens of a rollout: those the model read, those it sampled, and their log-probabilities.

Text is never tokenized again. As long as each call's prompt begins with everything before it, a rollout is one growing
sequence. Otherwise a new sequence begins, so that the loss mask never covers tokens that were not sampled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from nemo_gym.export.recipe import Recipe
from nemo_gym.export.records import Rollout
from nemo_gym.export.sft import Row, UnfitError
from nemo_gym.metrics.continuity import TRAINABLE

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
        if not _are_ids(prompt) or not _are_ids(generated):
            raise UnfitError("has token ids that are not lists of whole numbers")
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


def _are_ids(value: Any) -> bool:
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
