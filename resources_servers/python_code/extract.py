"""Finds the code in an answer, and adds what the task gave to begin with."""

import re
from typing import Final

# Answers are untrusted and may be megabytes; a program of that length is not one.
MAX_CODE: Final = 100_000
_FENCE: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_PYTHON: Final = {"python", "py", "python3", ""}


def extract_code(text: str) -> str | None:
    """The last fenced block of Python; without any fence the whole text, as a plain completion."""
    text = text[-MAX_CODE:] if "```" in text or "~~~" in text else text[:MAX_CODE]
    blocks = _blocks(text)
    if blocks:
        python = [code for language, code in blocks if language.lower() in _PYTHON]
        return python[-1] if python else None
    return text if text.strip() else None


def complete(setup: str, code: str) -> str:
    """The beginning that the task gave, with what the model wrote: the rest of it, or all of it again."""
    return f"{setup.rstrip()}\n{code}" if setup.strip() else code


def _blocks(text: str) -> list[tuple[str, str]]:
    blocks: list[tuple[str, str]] = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]) and not fence[2]:
            blocks.append((opening[2], text[opening.end() + 1 : fence.start()]))
            opening = None
    if opening is not None:  # cut off by a limit on tokens
        blocks.append((opening[2], text[opening.end() + 1 :]))
    return blocks
