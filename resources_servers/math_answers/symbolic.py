"""Symbolic comparison by ``math-verify``. It may take forever, so only processes that can be killed import this.

The library's own time limits use signals and are switched off.
"""

import functools
from typing import Any

from math_verify import parse, verify


def equivalent(expected: str, answer: str) -> bool:
    """Whether two formulas, sets, intervals, equations or matrices mean the same."""
    return bool(verify(_parsed(expected), _parsed(answer), timeout_seconds=None))


# Repeats of a task have the same expected answer, and often the same answer.
@functools.lru_cache(maxsize=2048)
def _parsed(text: str) -> list[Any]:
    # Both stand in a box, so that neither depends on the delimiters around it.
    result: list[Any] = parse(f"$\\boxed{{{text}}}$", parsing_timeout=None)
    return result
