"""Only public parts of other packages and of the standard library are used, so that any new release of them works."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("nemo_gym", "resources_servers", "responses_api_agents", "responses_api_models")
SHIPPED = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "tests" not in path.parts]
# What has an underscore although it is documented, or cannot be done in another way.
DOCUMENTED = {
    "_replace": "named tuples have an underscore before their methods, so that fields can have any name",
    "_asdict": "the same",
    "os._exit": "documented: the end of a process that must not run what its parent registered",
    "sys._current_frames": "documented: the only way to see where another thread is",
}
UNAVOIDABLE = {
    "threading._shutdown": "a program inside the sandbox must end as an interpreter ends it",
    "atexit._run_exitfuncs": "the same",
    "parser._interp": "ANTLR has no other way to its prediction mode",
    "factory._factory": "langdetect has no other way to seed a single detector",
}


@functools.cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text("utf-8"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined_by(tree: ast.AST) -> Iterator[str]:
    """The names that a module defines: functions, classes, variables, and attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            yield node.attr


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def private_accesses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Private names that are looked up on other objects than ``self``, and the expressions that do it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield node.attr, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                yield name.value, ast.unparse(node)


def private_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if any(is_private(part) for name in (module, *names) for part in name.split(".")):
            yield ast.unparse(node)


def faults(path: Path, ours: set[str]) -> Iterator[str]:
    tree = parsed(path)
    known = set(defined_by(tree))
    for name, expression in private_accesses(tree):
        imported_class = expression.partition(".")[0] in ours and expression.partition(".")[0][0].isupper()
        allowed = name in known or imported_class or {name, expression} & (DOCUMENTED.keys() | UNAVOIDABLE.keys())
        if not allowed:
            yield f"{path.relative_to(ROOT)}: {expression}"
    yield from (f"{path.relative_to(ROOT)}: {statement}" for statement in private_imports(tree))
    for node in ast.walk(tree):  # inherited from a class of another package
        if isinstance(node, ast.Attribute) and is_private(node.attr) and is_own(node.value) and node.attr not in ours:
            yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_nothing_private_of_others_is_used() -> None:
    ours = {name for path in SHIPPED for name in defined_by(parsed(path))} | DOCUMENTED.keys()
    assert [fault for path in SHIPPED for fault in faults(path, ours)] == []


def test_every_exception_is_still_needed() -> None:
    used = set()
    for path in SHIPPED:
        for name, expression in private_accesses(parsed(path)):
            used |= {name, expression}
    assert (DOCUMENTED.keys() | UNAVOIDABLE.keys()) - used == set()
