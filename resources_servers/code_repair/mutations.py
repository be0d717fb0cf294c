"""Mutations of a function: small edits that most likely break it, found in its syntax tree.

An edit is a place in a file and the text that replaces what is there, so a task holds hardly any of a package's
source. The same source always has the same mutations, in the same order.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

Kind = Literal["operator", "condition", "off_by_one", "dropped_branch", "swapped_arguments", "removed_body"]

_SMALLEST: Final = 3  # lines of a function; shorter ones have little to repair
_OPERATORS: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//", ast.Pow: "*",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|",
}  # fmt: skip
_COMPARISONS: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<",
}  # fmt: skip
_BOUNDS: Final[Mapping[type[ast.cmpop], str]] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


class Edit(BaseModel):
    """Text that replaces a part of a file; lines count from 1, columns are bytes of the line and count from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Mutation(BaseModel):
    """A function that was broken, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    function: str
    kind: Kind
    edits: tuple[Edit, ...]


class Function(NamedTuple):
    """A function of a file; its first line is that of its first decorator, as in its code object."""

    path: str
    name: str
    first_line: int
    node: ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(path: str, source: str) -> list[Function]:
    """The functions and methods of a file that are long enough to be broken, without those inside functions."""
    found: list[Function] = []

    def visit(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) >= _SMALLEST:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.append(Function(path, prefix + node.name, first, node))

    visit(ast.parse(source).body, "")
    return found


def mutations_of(function: Function, source: str) -> Iterator[Mutation]:
    """Every mutation of a function, in the order of its source."""
    text = _Text(source)
    for node in _inner_nodes(function.node):
        for kind, find in _KINDS.items():
            for edits in find(node, text):
                yield Mutation(path=function.path, function=function.name, kind=kind, edits=tuple(edits))
    body = _without_docstring(function.node)
    if len(body) > 1 or _length(function.node) > _SMALLEST:
        edit = _replacing(body[0], body[-1], "raise NotImplementedError")
        yield Mutation(path=function.path, function=function.name, kind="removed_body", edits=(edit,))


def apply_edits(source: str, edits: Sequence[Edit]) -> str:
    """The source with all edits; they must not overlap."""
    text = _Text(source)
    data = source.encode()
    for edit in sorted(edits, key=lambda each: (each.line, each.column), reverse=True):
        start, end = text.offset(edit.line, edit.column), text.offset(edit.end_line, edit.end_column)
        data = data[:start] + edit.text.encode() + data[end:]
    return data.decode()


class _Text:
    """Source by places, as syntax trees give them."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.offset(node.lineno, node.col_offset), self.offset(*_end(node))
        return self.data[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> list[Edit] | None:
        """An edit of the operator between two operands; None if brackets or comments make its place unclear."""
        start, end = self.offset(*_end(left)), self.offset(right.lineno, right.col_offset)
        gap = self.data[start:end].decode()
        if gap.strip(" ()\n\\") != old or "\n" in gap:
            return None
        column = _end(left)[1] + gap.index(old)
        return [Edit(line=left.end_lineno or 0, column=column, end_line=left.end_lineno or 0,
                     end_column=column + len(old), text=new)]  # fmt: skip


Found = Iterator[list[Edit]]


def _operators(node: ast.AST, text: _Text) -> Found:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not _is_text(node):
        edits = text.between(node.left, node.right, _symbol(node.op), _OPERATORS[type(node.op)])
        if edits is not None:
            yield edits
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        every = [text.between(left, right, old, new) for left, right in pairwise(node.values)]
        if None not in every:
            yield [edit for edits in every for edit in edits or ()]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub) and not _is_text(node):
        old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
        edits = text.between(node.target, node.value, old, new)
        if edits is not None:
            yield edits


def _conditions(node: ast.AST, text: _Text) -> Found:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        old = _symbol(node.ops[0])
        edits = text.between(node.left, node.comparators[0], old, _COMPARISONS[type(node.ops[0])])
        if edits is not None:
            yield edits
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        test, written = node.test, text.of(node.test)
        if "\n" in written:
            return
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield [_replacing(test, test, text.of(test.operand))]
        else:
            yield [_replacing(test, test, f"not ({written})" if " " in written else f"not {written}")]


def _off_by_one(node: ast.AST, text: _Text) -> Found:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BOUNDS:
        old = _symbol(node.ops[0])
        edits = text.between(node.left, node.comparators[0], old, _BOUNDS[type(node.ops[0])])
        if edits is not None:
            yield edits
    if isinstance(node, ast.Constant) and type(node.value) is int and node.end_lineno == node.lineno:
        yield [_replacing(node, node, str(node.value + 1))]


def _dropped_branches(node: ast.AST, text: _Text) -> Found:
    if isinstance(node, ast.If) and node.body[0].lineno > node.lineno:
        if not all(isinstance(each, ast.Pass) for each in node.body):
            yield [_replacing(node.body[0], node.body[-1], "pass")]
        is_else = node.orelse and not text.of(node.orelse[0]).startswith("elif")
        if is_else and node.orelse[0].lineno > (node.body[-1].end_lineno or 0) + 1:
            yield [_replacing(node.orelse[0], node.orelse[-1], "pass")]


def _swapped_arguments(node: ast.AST, text: _Text) -> Found:
    if not isinstance(node, ast.Call):
        return
    for left, right in pairwise(node.args):
        one, other = text.of(left), text.of(right)
        if one != other and not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
            yield [_replacing(left, left, other), _replacing(right, right, one)]


_KINDS: Final[Mapping[Kind, Callable[[ast.AST, _Text], Found]]] = {
    "operator": _operators,
    "condition": _conditions,
    "off_by_one": _off_by_one,
    "dropped_branch": _dropped_branches,
    "swapped_arguments": _swapped_arguments,
}


def _inner_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function's body in the order of the source; text with values in it has no places of its own."""
    pending: list[ast.AST] = list(reversed(_without_docstring(function)))
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):  # messages and checks are no behaviour
            yield node
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def _without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = _without_docstring(function)
    return (body[-1].end_lineno or 0) - body[0].lineno + 2 if body else 0


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether an operator joins or fills in text: any change of it fails at once, which is no riddle."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(isinstance(side, ast.JoinedStr) or _is_string(side) for side in sides)


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _symbol(operator: ast.operator | ast.cmpop) -> str:
    """How an operator is written."""
    name = ast.Name("x", ctx=ast.Load())
    if isinstance(operator, ast.cmpop):
        return ast.unparse(ast.Compare(name, [operator], [name]))[1:-1].strip()
    return ast.unparse(ast.BinOp(name, operator, name))[1:-1].strip()


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _replacing(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, text: str) -> Edit:
    end_line, end_column = _end(last)
    return Edit(line=first.lineno, column=first.col_offset, end_line=end_line, end_column=end_column, text=text)
