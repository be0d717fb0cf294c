"""Symbolic comparison by ``math-verify``. It may take forever, so only processes that can be killed import this.

The library's own time limits use signals and are switched off.
"""

import functools
from typing import Any, Final

from latex2sympy2_extended.antlr_parser import PSParser
from math_verify import parse, verify
from sympy import Expr, Float

# Beyond this relative distance, no rounding makes two numbers equal.
CLEARLY: Final = 1e-3
PERCENT: Final = 100


def equivalent(expected: str, answer: str) -> bool:
    """Whether two formulas, sets, intervals, equations or matrices mean the same."""
    _parse_in_two_stages()
    left, right = _parsed(expected), _parsed(answer)
    if left and right and _clearly_differ(left[0], right[0]):
        return False
    return bool(verify(left, right, timeout_seconds=None))


# Repeats of a task have the same expected answer, and often the same answer.
@functools.lru_cache(maxsize=2048)
def _parsed(text: str) -> list[Any]:
    # Both are put into a box, so that neither depends on the delimiters around it.
    result: list[Any] = parse(f"$\\boxed{{{text}}}$", parsing_timeout=None)
    return result


def _clearly_differ(left: Any, right: Any) -> bool:
    """True if two exact numbers are far apart, which takes a tenth of the time that looking for an identity does.

    A factor of 100 is left to the library, because a percentage may be meant.
    """
    if not all(isinstance(each, Expr) and not each.free_symbols and not each.has(Float) for each in (left, right)):
        return False
    try:
        one, other = complex(left.evalf(15)), complex(right.evalf(15))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return False  # not a number after all
    distances = (abs(one * left_by - other * right_by) for left_by, right_by in ((1, 1), (1, PERCENT), (PERCENT, 1)))
    return all(distance > CLEARLY * max(1.0, abs(one), abs(other)) for distance in distances)


@functools.cache
def _parse_in_two_stages() -> None:
    """Let the LaTeX parser try ANTLR's quick prediction mode first; if that fails, the thorough mode decides.

    By ANTLR's definition, the thorough mode reads whatever the quick mode accepts in the same way.
    """
    thorough = PSParser.math

    def math(parser: Any) -> Any:
        modes = type(parser._interp.predictionMode)  # noqa: SLF001 - there is no other way to it
        parser._interp.predictionMode = modes.SLL  # noqa: SLF001
        try:
            return thorough(parser)
        except Exception:  # noqa: BLE001 - the library's listener raises nothing more precise
            parser.reset()
            parser._interp.predictionMode = modes.LL  # noqa: SLF001
            return thorough(parser)

    PSParser.math = math
