"""Changes the code on purpose, one place at a time, and looks whether the tests notice.

    python scripts/mutants.py [--seed 1] [--each 8] [--workers 2] [--module rollouts/store/journal] [--all]

The modules are those that hold people's data and numbers. In each, some places are drawn with the seed; every place
gives one mutant: a comparison that is off by one, a condition turned round, a constant, a sum, a statement left out. A
mutant runs in a copy of the project with the tests of its module, and counts as noticed if they fail or do not end.
Those that can't be noticed, because the program does the same, are listed in ``EQUIVALENT`` with the reason.

Prints the survivors and the share that was noticed; exit code 1 if it is below ``BAR``.
"""

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).parent.parent
BAR: Final = 0.95
LIMIT_S: Final = 300  # of the tests of one mutant
COPIED: Final = ("nemo_gym", "tests", "resources_servers", "responses_api_agents", "responses_api_models")
STORE: Final = "tests/rollouts/store"
# The tests that answer for each module.
TESTS: Final = {
    "rollouts/store/journal": f"{STORE}/test_journal.py tests/rollouts/test_torn_writes.py",
    "rollouts/store/history": f"{STORE}/test_history.py {STORE}/test_rollout_store.py {STORE}/test_steps.py",
    "rollouts/store/rollout_store": f"{STORE}/test_rollout_store.py {STORE}/test_steps.py tests/rollouts/test_run.py",
    "rollouts/store/saved_lines": f"{STORE}/test_saved_lines.py {STORE}/test_rollout_store.py",
    "rollouts/store/plan_file": f"{STORE}/test_rollout_store.py tests/rollouts/test_plan.py",
    "rollouts/store/outcome": "tests/rollouts/test_classify.py tests/rollouts/test_dispatch.py",
    "rollouts/store/shards": f"{STORE}/test_shards.py",
    "rollouts/plan": "tests/rollouts/test_plan.py tests/rollouts/test_tasks.py",
    "rollouts/classify": "tests/rollouts/test_classify.py tests/rollouts/test_tally.py",
    "rollouts/dispatch": "tests/rollouts/test_dispatch.py tests/rollouts/test_outage.py",
    "rollouts/attempt": "tests/rollouts/test_attempt.py tests/rollouts/test_run.py tests/rollouts/test_faults.py "
    "tests/rollouts/test_agents.py tests/servers/test_supervisor.py tests/steps/test_recording.py",
    "rollouts/tally": "tests/rollouts/test_tally.py tests/rollouts/test_progress.py",
    "metrics/aggregate": "tests/metrics tests/test_reward_profile.py tests/rollouts/test_run_metrics.py",
    "metrics/pass_at_k": "tests/metrics/test_pass_at_k.py",
    "metrics/compare": "tests/metrics/test_compare.py",
    "metrics/statistics": "tests/metrics",
    "metrics/table": "tests/metrics",
    "metrics/profile": "tests/test_reward_profile.py tests/cli/test_derived_outputs.py tests/io/test_files.py",
    "exporting/dpo": "tests/export/test_formats.py tests/export/test_select.py",
    "exporting/tokens": "tests/export/test_formats.py tests/export/test_select.py tests/training/test_sequences.py",
    "exporting/records": "tests/export/test_records.py tests/export/test_select.py tests/export/test_dataset.py",
    "exporting/select": "tests/export/test_select.py tests/export/test_formats.py",
    "servers/http/client": "tests/servers/http",
    "servers/http/gate": "tests/servers/http/test_gate.py tests/rollouts/test_gates.py",
    "servers/http/reply_bodies": "tests/servers/http",
    "sandbox/jail": "tests/sandbox",
}
# Mutants that change nothing that anybody could see: module, the line as it is, what was changed, and why.
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    ("rollouts/store/journal", "holder = os.pread(descriptor, 4096, 0)", "4096 to 4097"): "more than there ever is",
    ("metrics/pass_at_k", "candidate = np.where(valid, candidate, -1)", "1 to 2"): "any negative number will do",
    (
        "metrics/aggregate",
        "_SLAB: Final = 256  # tasks turned into Python objects at a time: few enough to stay in the processor's cache",
        "256 to 257",
    ): "only a size of pieces",
    (
        "metrics/compare",
        "_, in_a, in_b = np.intersect1d(first.label, second.label, assume_unique=True, return_indices=True)",
        "True to False",
    ): "labels are unique",
    ("metrics/statistics", "_DRAWS_AT_A_TIME: Final = 50_000  # few enough to stay in the cache", "50000 to 50001"): (
        "only a size of pieces"
    ),
    (
        "metrics/compare",
        "_, in_old, in_new = np.intersect1d(_keys(old), _keys(new), assume_unique=True, return_indices=True)",
        "True to False",
    ): "keys are unique",
    (
        "rollouts/store/history",
        "return key.task * MAX_ROLLOUTS + key.rollout",
        "Mult to Div",
    ): "floats are keys as well",
    ("metrics/pass_at_k", "if reward is None or not known.any():", "Or to And"): "without rewards none is known",
}
COMPARED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
JOINED: Final = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    module: str
    line: int
    before: str
    change: str
    node: int  # its number in the tree

    @property
    def is_equivalent(self) -> bool:
        return (self.module, self.before, self.change) in EQUIVALENT

    @property
    def source(self) -> str:
        """The text of the module with the change."""
        tree = ast.parse(_text(self.module))
        node = list(ast.walk(tree))[self.node]
        _become(node, dict(variants(node))[self.change])
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants_of(module: str) -> Iterator[Mutant]:
    """All mutants of a module."""
    lines, tree = _text(module).splitlines(), ast.parse(_text(module))
    idle = {id(node) for top in _idle_parts(tree) for node in ast.walk(top)}
    for number, node in enumerate(ast.walk(tree)):
        for change, _ in variants(node) if id(node) not in idle else ():
            line = getattr(node, "lineno", 0)
            yield Mutant(module, line, lines[line - 1].strip(), change, number)


@cache
def _text(module: str) -> str:
    return (ROOT / "nemo_gym" / f"{module}.py").read_text("utf-8")


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become, and what to call that."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARED:
            other = COMPARED[type(operator)]
            yield f"{type(operator).__name__} to {other.__name__}", _with(node, ops=[other()])
        case ast.BoolOp():
            yield (
                f"{type(node.op).__name__} to {JOINED[type(node.op)].__name__}",
                _with(node, op=JOINED[type(node.op)]()),
            )
        case ast.BinOp() if type(node.op) in COMPUTED and not _is_text(node):
            computed = COMPUTED[type(node.op)]
            yield f"{type(node.op).__name__} to {computed.__name__}", _with(node, op=computed())
        case ast.UnaryOp(op=ast.Not()):
            yield "not left out", node.operand
        case ast.Constant(value=bool(value)):
            yield f"{value} to {not value}", ast.Constant(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield f"{value} to {value + 1}", ast.Constant(value + 1)
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition turned round", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            yield "statement left out", ast.Pass()


def _with(node: ast.AST, **changed: object) -> ast.AST:
    fields = {name: copy.deepcopy(value) for name, value in ast.iter_fields(node)} | changed
    return type(node)(**fields)


def _become(node: ast.AST, variant: ast.AST) -> None:
    node.__class__ = variant.__class__  # in place, because a node does not know where it hangs
    node.__dict__.clear()
    node.__dict__.update(vars(copy.deepcopy(variant)))


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side) for side in (node.left, node.right)
    )


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _idle_parts(tree: ast.Module) -> Iterator[ast.AST]:
    """What nobody runs or reads: logs, texts of errors, blocks for type checkers, decorators."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.JoinedStr():
                yield node
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name("logger")))):
                yield node
            case ast.Raise(exc=ast.Call(args=arguments, keywords=keywords)):
                yield from (*arguments, *keywords)
            case ast.Call(func=ast.Name("zip"), keywords=keywords):
                yield from keywords  # strict: a check of ourselves
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from node.decorator_list


def drawn(seed: int, each: int | None, only: str | None) -> list[Mutant]:
    """The mutants to try; the same for the same seed."""
    chosen: list[Mutant] = []
    for module in TESTS:
        if only in (None, module):
            found = [mutant for mutant in mutants_of(module) if not mutant.is_equivalent]
            random.Random(f"{seed} {module}").shuffle(found)
            chosen += found[:each]
    return chosen


class Copies:
    """Copies of the project, one for each worker; a mutant has one for itself."""

    def __init__(self, folder: Path, count: int) -> None:
        self._idle: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            place = folder / str(number)
            place.mkdir()
            for entry in ROOT.iterdir():
                if entry.name in COPIED:
                    shutil.copytree(entry, place / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
                elif not entry.name.startswith("."):
                    (place / entry.name).symlink_to(entry)
            self._idle.put(place)

    def survives(self, mutant: Mutant) -> bool:
        """Whether the tests of its module pass with it."""
        place = self._idle.get()
        path = place / "nemo_gym" / f"{mutant.module}.py"
        original = path.read_text("utf-8")
        try:
            path.write_text(mutant.source, "utf-8")
            return _passes(place, TESTS[mutant.module])
        finally:
            path.write_text(original, "utf-8")
            self._idle.put(place)


def _passes(place: Path, tests: str) -> bool:
    options = ("-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no")
    command = [sys.executable, "-B", "-m", "pytest", *options, *tests.split()]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(
            f"the tests {tests} did not run: {done.stdout.decode()[-1000:]}{done.stderr.decode()[-1000:]}"
        )
    return done.returncode == 0


def main() -> int:
    """Try the mutants and print what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=8, help="mutants of each module")
    parser.add_argument("--all", action="store_true", help="every mutant, which takes hours")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--module", choices=sorted(TESTS))
    given = parser.parse_args()
    chosen = drawn(given.seed, None if given.all else given.each, given.module)
    tried, survived = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(given.workers) as pool:
        copies = Copies(Path(folder), given.workers)
        for module in dict.fromkeys(mutant.module for mutant in chosen):
            if not _passes(Path(folder) / "0", TESTS[module]):
                raise SystemExit(f"the tests of {module} fail without any change: {TESTS[module]}")
        for mutant, lives in zip(chosen, pool.map(copies.survives, chosen), strict=True):
            tried[mutant.module] += 1
            if lives:
                survived[mutant.module] += 1
                print(f"survived: {mutant.module}:{mutant.line}  {mutant.change}:  {mutant.before}", flush=True)
    for module in tried:
        print(f"{module:32} {tried[module] - survived[module]:3} of {tried[module]:3}")
    noticed = 1 - survived.total() / max(tried.total(), 1)
    print(f"noticed: {tried.total() - survived.total()} of {tried.total()} ({noticed:.1%})")
    return 0 if noticed >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
