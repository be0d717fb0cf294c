"""What was probably meant: the nearest known names of a name that is not known."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like the given one, the most similar first."""
    return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)


def did_you_mean(name: str, known: Iterable[str], *, available: str) -> str:
    """A sentence that names the nearest candidates or, when nothing is near, all of them."""
    candidates = sorted(known)
    if near := nearest(name, candidates):
        return f"Did you mean: {' or '.join(map(repr, near))}?"
    return f"{available}: {', '.join(map(repr, candidates)) or '(none)'}"
