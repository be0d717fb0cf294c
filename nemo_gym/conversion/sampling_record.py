"""Records which distribution the log-probabilities of an answer come from, and how it was sampled. Pure.

A trainer that mistakes log-probabilities of one distribution for those of another optimises the wrong objective, and
nothing in the numbers shows it. So every answer with tokens states their origin beside them, in
``generation_sampling``. Truncated sampling (top-k, top-p) excludes tokens to which the log-probabilities still assign
probability; a penalty changes them. When token ids are requested, both are therefore off unless the request asks for
them, regardless of the model's defaults.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

# The options for which a model's generation_config.json may have other defaults.
UNTRUNCATED: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# All options that change which tokens are sampled, by the names that engines use.
RECORDED: Final = (
    *UNTRUNCATED,
    *("repeat_penalty", "logit_bias", "allowed_token_ids", "bad_words", "thinking_token_budget", "watermarking"),
    *("typical_p", "top_a", "top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat", "dynatemp_range"),
    *("min_tokens", "ignore_eos", "use_beam_search", "best_of", "custom_logit_processor", "logits_processors"),
)
SAMPLING_FIELD: Final = "generation_sampling"


class LogProbs(StrEnum):
    """The distribution that log-probabilities come from."""

    RAW = "raw"  # the model's own, at temperature 1
    GRAMMAR_MASKED = "grammar_masked"  # the same, renormalised over the tokens that a grammar allows
    PROCESSED = "processed"  # after the temperature, as sampled


def sampling_record(kind: LogProbs, options: Mapping[str, Any]) -> dict[str, Any]:
    """The ``generation_sampling`` of an answer that was sampled with these options."""
    return {"log_probs": str(kind), **{name: options[name] for name in RECORDED if options.get(name) is not None}}
