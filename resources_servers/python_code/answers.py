"""Finds the code in an answer, as the published harnesses do: the block that defines what the task asks for.

Chat models add examples of use, outputs, helpers and earlier attempts in blocks of their own. Every function reads at
most a tail of fixed length.
"""

import ast
import re
from typing import Final, NamedTuple

# Answers are untrusted and may be megabytes; nothing that long is a solution.
MAX_CODE: Final = 100_000
_FENCE: Final = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_BEGIN: Final = re.compile(r"^[ \t]*\[BEGIN\][ \t]*$\n?", re.MULTILINE)
_DONE: Final = re.compile(r"^[ \t]*\[DONE\][ \t]*$", re.MULTILINE)
_PYTHON: Final = {"python", "py", "python3"}


class Block(NamedTuple):
    """A fenced block: the language after the fence, and the text without the indentation of the fence."""

    language: str
    code: str


def extract_code(text: str, entry_point: str | None = None) -> str | None:
    """The code of an answer: of a function the block that defines it, of a program the last block of Python.

    Without any fence, the whole text is code, as a plain completion. Lines with only ``[BEGIN]`` or ``[DONE]`` delimit
    the code, because completions of MBPP's prompt have them.
    """
    text = _DONE.split(text, maxsplit=1)[0]
    text = _BEGIN.split(text)[-1]
    # The last blocks count, so the end of the text is kept; of a plain completion, its beginning.
    text = text[-MAX_CODE:] if "```" in text or "~~~" in text else text[:MAX_CODE]
    blocks = find_blocks(text)
    if not blocks:
        return text if text.strip() else None
    # A block without a language may be an output; it counts if no other block is labelled Python.
    labelled = [block.code for block in blocks if block.language.lower() in _PYTHON]
    maybe = [block.code for block in blocks if block.language.lower() in {*_PYTHON, ""}]
    if entry_point is None:
        return next(reversed(labelled or maybe), None)
    return _defining(maybe, entry_point) or _continuing(maybe) or next(reversed(labelled or maybe), None)


def find_blocks(text: str) -> list[Block]:
    """All fenced blocks; the last one may have been cut off by a limit on tokens."""
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence[2].startswith(opening[2]) and not fence[3]:
            blocks.append(_block(opening, text[opening.end() + 1 : fence.start()]))
            opening = None
    if opening is not None:
        blocks.append(_block(opening, text[opening.end() + 1 :]))
    return blocks


def _block(opening: re.Match[str], code: str) -> Block:
    indentation = opening[1]
    if indentation:  # the fence is inside a list or a quotation, and so is every line
        code = re.sub(rf"^[ \t]{{1,{len(indentation)}}}", "", code, flags=re.MULTILINE)
    return Block(opening[3], code)


def _defining(codes: list[str], entry_point: str) -> str | None:
    """The last block that defines the function, after other blocks that define what it uses."""
    chosen = next((number for number in reversed(range(len(codes))) if _defines(codes[number], entry_point)), None)
    if chosen is None:
        return None
    code = codes[chosen]
    missing = _used(code) - _defined(code)
    others = [other for other in codes[:chosen] + codes[chosen + 1 :] if not _defines(other, entry_point)]
    helpers = [other for other in others if _only_defines(other) and _defined(other) & missing]
    return "\n\n".join([*helpers, code])


def _continuing(codes: list[str]) -> str | None:
    """The last block that is the rest of a function, whose beginning the task gave."""
    return next((code for code in reversed(codes) if code.lstrip("\r\n")[:1] in {" ", "\t"}), None)


def _defines(code: str, name: str) -> bool:
    if _parsed(code) is not None:
        return name in _defined(code)
    # A block that was cut off, or has a mistake, is still the answer.
    return re.search(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", code, re.MULTILINE) is not None


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defined(code: str) -> set[str]:
    """The names that code defines at its top level."""
    found: set[str] = set()
    tree = _parsed(code)
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        else:
            found |= {each.id for each in _names(node) if isinstance(each.ctx, ast.Store)}
    return found


def _used(code: str) -> set[str]:
    tree = _parsed(code)
    return {name.id for name in _names(tree) if isinstance(name.ctx, ast.Load)} if tree else set()


def _names(tree: ast.AST) -> list[ast.Name]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _only_defines(code: str) -> bool:
    """Whether code does nothing but define, so that it can be added without running an example of use."""
    tree = _parsed(code)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return tree is not None and all(isinstance(node, kinds) for node in tree.body)
