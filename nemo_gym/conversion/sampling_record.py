"""What the log-probabilities of an answer are, and how it was sampled. Pure.

A trainer that takes log-probabilities of one distribution for those of another trains on something that never happened,
and nothing in the numbers shows it. So every answer with tokens says which they are, beside them, in
``generation_sampling``. Truncation makes tokens impossible that the log-probabilities hold for possible; where token
ids are asked for there is none unless the request asks for it, whatever the defaults of the model are.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

UNTRUNCATED: Final[Mapping[str, Any]] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
RECORDED: Final = (*UNTRUNCATED, "repetition_penalty", "repeat_penalty", "presence_penalty", "frequency_penalty")
SAMPLING_FIELD: Final = "generation_sampling"


class LogProbs(StrEnum):
    """Of which distribution log-probabilities are."""

    RAW = "raw"  # the model's own, at temperature 1
    GRAMMAR_MASKED = "grammar_masked"  # the same among the tokens that a grammar allows
    PROCESSED = "processed"  # after the temperature, as sampled


def sampling_record(kind: LogProbs, options: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an answer that was sampled with these options."""
    return {"log_probs": str(kind), **{name: options[name] for name in RECORDED if options.get(name) is not None}}
