"""Finds the chosen option by a row's own regular expressions, in processes that can be killed."""

import re
from collections.abc import Mapping

from resources_servers.multiple_choice.formats import match_option

MAX_TEXT = 100_000


def search(patterns: list[str], text: str, options: Mapping[str, str]) -> str | None:
    """The option that the last match of the first matching pattern names; the end of a very long text counts."""
    tail = text[-MAX_TEXT:]
    for pattern in patterns:
        found = None
        for found in re.finditer(pattern, tail, re.IGNORECASE | re.DOTALL):  # noqa: B007 - the last one counts
            pass
        if found is not None:
            groups = [group for group in found.groups() if group]
            return match_option(groups[0] if groups else found.group(), options)
    return None
