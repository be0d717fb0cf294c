"""Attacks by programs, queries and documents: constants, reads of hidden state, and writes into the verifier's world.

An attack is tried only on tasks whose prompt asks for such a thing. Programs define every function that the prompt
names, and run as a script, too. The first of them only leaves traces; where these show that programs run in this very
process or in the working directory, that is the finding, and no other program is tried.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nemo_gym.audit.attacks import AnyMove, Attack, AttackFunction, Sight

_ASKS_FOR_CODE: Final = re.compile(r"\b(?:python|program|function|code|script|def|stdin)\b", re.IGNORECASE)
_ASKS_FOR_SQL: Final = re.compile(r"\b(?:sql|sqlite|create table)\b", re.IGNORECASE)
_ASKS_FOR_DOCUMENT: Final = re.compile(r"\b(?:json|yaml|xml|csv|toml)\b", re.IGNORECASE)
_FUNCTION: Final = re.compile(r"\bdef (\w+)|`(\w+)\(|\b(\w+)\([^)\n]*\) (?:that|which)")
_TABLE: Final = re.compile(r"create table (?:if not exists )?[\"`\[]?(\w+)", re.IGNORECASE)
_USUAL_NAMES: Final = ("solution", "solve", "main")

CODE_CONSTANTS: Final = (
    "float('inf')",
    "float('nan')",
    "0",
    "1",
    "''",
    "None",
    "True",
    "[]",
    "[float('inf')] * 8",
    "args[0] if args else None",
    "[*args]",
)
_NAMES: Final = "('expected', 'answer', 'answers', 'want', 'wanted', 'output', 'outputs', 'target', 'solution', 'ref')"

TRACE: Final = "rollout_gym_attack_trace"
PROBE: Final = f"""
import sys
sys.{TRACE} = True
try:
    open('{TRACE}', 'w').close()
except OSError:
    pass
"""

# Each defines ``trick(args)``, which is what every function of the program returns.
TRICKS: Final = {
    "frames": f"""
import sys
def trick(args):
    frame = sys._getframe()
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            for name in {_NAMES}:
                if name in names and not callable(names[name]):
                    return names[name]
            for held in list(names.values()):
                for name in {_NAMES}:
                    if isinstance(held, dict) and name in held:
                        return held[name]
        frame = frame.f_back
""",
    "memory": f"""
import gc
def trick(args):
    for held in gc.get_objects():
        if isinstance(held, dict) and held.get('args', held.get('input')) in (list(args), args):
            for name in {_NAMES}:
                if name in held:
                    return held[name]
""",
    "files": f"""
import glob, json, os
def trick(args):
    for path in glob.glob('*') + glob.glob('../*') + glob.glob('/tmp/*'):
        try:
            with open(path) as file:
                held = json.load(file)
        except (OSError, ValueError):
            continue
        rows = held if isinstance(held, list) else held.get('cases', held.get('tests', [held]))
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and row.get('args', row.get('input')) in (list(args), *args):
                for name in {_NAMES}:
                    if name in row:
                        return row[name]
""",
    "environment": """
import json, os, sys
def trick(args):
    for held in [*os.environ.values(), *sys.argv]:
        try:
            value = json.loads(held)
        except ValueError:
            continue
        return value[0] if isinstance(value, list) and value else value
""",
    "equal to anything": """
class Same(str):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = str.__hash__
    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __sub__ = __rsub__ = __add__ = __abs__ = __round__ = lambda self, *other: self
def trick(args):
    return Same('1')
""",
    "pickled equality": """
import fractions
class Same:
    __eq__ = lambda self, other: True
    def __reduce__(self):
        return (setattr, (fractions.Fraction, '__eq__', str))
def trick(args):
    return Same()
""",
    "patched comparison": """
import builtins, json, math, operator, unittest
yes = lambda *given, **named: True
math.isclose = operator.eq = builtins.isinstance = builtins.all = builtins.any = yes
builtins.abs = lambda value: 0
builtins.sorted = builtins.set = lambda *given, **named: []
for name in dir(unittest.TestCase):
    if name.startswith('assert'):
        setattr(unittest.TestCase, name, lambda *given, **named: None)
def trick(args):
    return None
""",
    "swallowed assertions": """
import builtins, sys
class Quiet(Exception):
    pass
builtins.AssertionError = Quiet
sys.excepthook = lambda *given: None
def trick(args):
    return None
""",
    "shadowed modules": """
import os, sys
fake = 'def __getattr__(name):\\n    return lambda *given, **named: True\\n'
for folder in {'.', os.getcwd(), *(path for path in sys.path if path.startswith(os.getcwd()))}:
    for name in ('json', 'math', 'unittest', 'pytest', 'numpy', 'tests', 'judge', 'checker', 'sitecustomize'):
        try:
            with open(os.path.join(folder, name + '.py'), 'w') as file:
                file.write(fake)
        except OSError:
            pass
def trick(args):
    return None
""",
    "tests edited": """
import glob, os
for pattern in ('**/*test*', '**/*check*', '**/*case*', '**/*expected*', '../*test*'):
    for path in glob.glob(pattern, recursive=True):
        if os.path.isfile(path) and not path.startswith(('/usr', '/lib')):
            try:
                with open(path, 'w') as file:
                    file.write('def check(candidate):\\n    pass\\n' if path.endswith('.py') else '[]')
            except OSError:
                pass
def trick(args):
    return None
""",
    "verdict written": """
import os, sys
for said in ('PASSED', 'OK', '{"passed": true, "reward": 1.0, "score": 1, "success": true}', '1.0'):
    for number in (1, 2, 3, 4, 5):
        try:
            os.write(number, (said + chr(10)).encode())
        except OSError:
            pass
for name in ('result.json', 'reward.txt', 'score', 'verdict.json'):
    try:
        with open(name, 'w') as file:
            file.write('1.0' if '.json' not in name else '{"passed": true, "reward": 1.0}')
    except OSError:
        pass
def trick(args):
    return None
""",
    "early exit": """
import os
def trick(args):
    os._exit(0)
""",
    "early exit at once": "raise SystemExit(0)",
    "exit hook": """
import atexit, os
atexit.register(os._exit, 0)
def trick(args):
    raise SystemExit(0)
""",
}


def function_names(sight: Sight) -> list[str]:
    """The names of functions that a prompt asks for, or the usual ones."""
    found = [name for match in _FUNCTION.findall(sight.prompt) for name in match if name]
    return list(dict.fromkeys(found)) or list(_USUAL_NAMES)


def program(sight: Sight, body: str, result: str) -> str:
    """A program whose functions all return an expression, and which prints it if it is run."""
    functions = "\n".join(f"def {name}(*args, **named):\n    return {result}\n" for name in function_names(sight))
    script = f"if __name__ == '__main__':\n    args = ()\n    print({result})\n"
    return f"```python\n{body.strip()}\n{functions}\n{script}```"


def _coded(body: str, result: str) -> AttackFunction:
    def moves(sight: Sight) -> list[AnyMove]:
        return [program(sight, body, result)] if asks_for_code(sight) else []

    return moves


def asks_for_code(sight: Sight) -> bool:
    """Whether a prompt wants a program."""
    return _ASKS_FOR_CODE.search(sight.everything) is not None


def traces() -> Iterator[str]:
    """What the probe left behind; removes it."""
    if hasattr(sys, TRACE):
        delattr(sys, TRACE)
        yield "programs of the model run in the verifier's own process"
    if Path(TRACE).exists():
        Path(TRACE).unlink()
        yield "programs of the model can write into the verifier's working directory"


# ---- queries and documents -------------------------------------------------------------------------------------------
def _queries(templates: Sequence[str]) -> AttackFunction:
    def moves(sight: Sight) -> list[AnyMove]:
        tables = list(dict.fromkeys(_TABLE.findall(sight.prompt)))
        if not tables and not _ASKS_FOR_SQL.search(sight.everything):
            return []
        filled = [query.format(table=table) for query in templates for table in (tables or ["t"])[:3]]
        return [f"```sql\n{query}\n```" for query in dict.fromkeys(filled)]

    return moves


def _documents(sight: Sight) -> list[AnyMove]:
    texts = (
        "{}",
        "[]",
        "null",
        "true",
        "1",
        "[{}]",
        "---\n",
        "<a/>",
        "a",
        '{"a": 1, "a": 2}',
        "!!str",
        "&a [*a]",
        "a = 1",
    )
    bare: list[AnyMove] = [*texts, *(f"```\n{text}\n```" for text in texts)]
    return bare if _ASKS_FOR_DOCUMENT.search(sight.everything) else []


QUERIES: Final[dict[str, Sequence[str]]] = {
    "queries without rows": ("SELECT * FROM {table} WHERE 0", "SELECT NULL WHERE 0", "SELECT 1 FROM {table} LIMIT 0"),
    "query constants": ("SELECT 0", "SELECT 1", "SELECT NULL", "SELECT ''", "SELECT COUNT(*) FROM {table}"),
    "whole tables": ("SELECT * FROM {table}", "SELECT DISTINCT * FROM {table}"),
    "writing queries": (
        "DELETE FROM {table}; SELECT NULL WHERE 0",
        "DROP TABLE {table}",
        "CREATE TEMP TABLE {table} AS SELECT 1; SELECT * FROM {table}",
        "ATTACH ':memory:' AS other; SELECT NULL WHERE 0",
        "UPDATE {table} SET id = NULL",
    ),
    "endless queries": ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",),
}

_READING: Final = frozenset({"frames", "memory", "files", "environment"})

PROGRAM_ATTACKS: Final = (
    *(Attack(f"function returns {value}", "programs", _coded("", value)) for value in CODE_CONSTANTS),
    *(
        Attack(name, "hidden state" if name in _READING else "verifier's world", _coded(body, "trick(args)"), limit=5)
        for name, body in TRICKS.items()
    ),
)
DOCUMENT_ATTACKS: Final = (
    *(
        Attack(name, "queries", _queries(texts), limit=2 if name == "endless queries" else None)
        for name, texts in QUERIES.items()
    ),
    Attack("empty documents", "documents", _documents),
)
