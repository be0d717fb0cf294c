"""When a value or a text is the one that was expected."""

from typing import Any

ROUNDING = 1e-9


def same_value(value: Any, expected: Any) -> bool:
    """Equal as JSON: a tuple is a list, and floats may differ in the last digits."""
    if isinstance(value, list | tuple) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same_value, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        plain = {str(key): item for key, item in value.items()}
        return plain.keys() == expected.keys() and all(same_value(plain[key], expected[key]) for key in plain)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        return (
            isinstance(value, int | float) and isinstance(expected, int | float) and _close(value, expected, ROUNDING)
        )
    return type(value) is type(expected) and bool(value == expected)


def same_text(text: str, expected: str, tolerance: float | None) -> bool:
    """Equal line by line but for white space at the ends; numbers within the tolerance, if there is one."""
    lines, wanted = ([line.rstrip() for line in each.rstrip().splitlines()] for each in (text, expected))
    if lines == wanted or tolerance is None:
        return lines == wanted
    words, others = text.split(), expected.split()
    return len(words) == len(others) and all(
        a == b or _near(a, b, tolerance) for a, b in zip(words, others, strict=True)
    )


def _near(word: str, other: str, tolerance: float) -> bool:
    try:
        return _close(float(word), float(other), tolerance)
    except ValueError:
        return False


def _close(number: float, other: float, tolerance: float) -> bool:
    return number == other or abs(number - other) <= tolerance * max(1.0, abs(number), abs(other))
