"""The options of a question: their labels, their texts, and their order, which a seed decides."""

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

MAX_OPTIONS = 1_000


def labels() -> Iterator[str]:
    """A to Z, then AA, AB and so on, as columns of a table are named."""
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_uppercase, repeat=length):
            yield "".join(letters)


def read_options(value: Any) -> dict[str, str]:
    """Options by label, from ``[{"A": "text"}, …]``, ``{"A": "text", …}`` or ``["text", …]``."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if all(isinstance(option, Mapping) for option in value):
            pairs = [pair for option in value for pair in option.items()]
        else:
            pairs = list(zip(labels(), value, strict=False))
    else:
        raise ValueError(  # noqa: TRY004 - pydantic reports these
            "options are a list of texts, a list of {label: text}, or {label: text}"
        )
    if not 2 <= len(pairs) <= MAX_OPTIONS:
        raise ValueError(f"a question has 2 to {MAX_OPTIONS} options, not {len(pairs)}")
    options = {str(label).strip().upper(): str(text) for label, text in pairs}
    if len(options) < len(pairs) or "" in options:
        raise ValueError("every option needs a different label")
    return options


def find_label(expected: str | int, options: Mapping[str, str]) -> str:
    """The label of the right option, given as label, as position from 0, or as text."""
    if isinstance(expected, int):
        if 0 <= expected < len(options):
            return list(options)[expected]
        raise ValueError(f"there is no option number {expected}")
    wanted = expected.strip()
    if wanted.upper() in options:
        return wanted.upper()
    same = [label for label, text in options.items() if text.strip() == wanted]
    if len(same) != 1:
        raise ValueError(f"expected_answer {expected!r} is neither the label nor the text of exactly one option")
    return same[0]


def shuffled(options: Sequence[str], *, seed: object) -> list[str]:
    """The options in an order that depends on the seed alone."""
    order = list(options)
    Random(f"{seed}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order


def render(question: str, options: Sequence[str]) -> str:
    """The question and its options, one on a line."""
    return "\n".join([question, *(f"{label}. {text}" for label, text in zip(labels(), options, strict=False))])
