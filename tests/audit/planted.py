# ruff: noqa: E501 - verifiers in one line are easier to compare
"""Environments with holes in their verifiers, planted on purpose, and the same environments without them."""

from typing import Final, NamedTuple

HEAD: Final = """\
import json, math, os, re, sqlite3, subprocess, sys, tempfile
from pathlib import Path
import nemo_gym
from nemo_gym.openai_utils import answer_text

def words(response):
    return response.output_text

def number(text):
    found = re.findall(r"-?(?:inf|nan|\\d+(?:\\.\\d+)?)", text)
    return float(found[-1]) if found else None

def run(code, *, files=(), then=""):
    if not code:
        return subprocess.CompletedProcess([], 1, "", "")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in dict(files).items():
            Path(folder, name).write_text(content)
        Path(folder, "solution.py").write_text(code)
        again = [sys.executable, "-c", then] if then else [sys.executable, "solution.py"]
        try:
            return subprocess.run(again, cwd=folder, capture_output=True, text=True, timeout=3)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess([], 1, "", "")

def block(text):
    found = re.findall(r"```\\w*\\n(.*?)```", text, re.DOTALL)
    return found[-1] if found else ""
"""

SUMS: Final = """
tasks = [{"prompt": f"What is {a} + {b}?", "expected": a + b} for a, b in ((13, 28), (7, 95), (310, 9), (66, 61))]
env = nemo_gym.Environment(tasks=tasks)
"""
CHOICE: Final = """
lists = ((5, 9, 2, 4), (8, 1, 3, 6), (2, 3, 4, 7), (1, 2, 9, 8), (4, 9, 1, 2))
tasks = [
    {
        "prompt": "Which is the largest number?\\n" + "\\n".join(f"{l}. {v}" for l, v in zip("ABCD", values)),
        "options": list("ABCD"),
        "expected": "ABCD"[values.index(max(values))],
    }
    for values in lists
]
env = nemo_gym.Environment(tasks=tasks)
"""
CAPITALS: Final = """
pairs = (("France", "Paris", "Lyon"), ("Italy", "Rome", "Milan"), ("Peru", "Lima", "Cusco"), ("Kenya", "Nairobi", "Kisumu"))
tasks = [{"prompt": f"Is {a} or {b} the capital of {c}?", "expected": a} for c, a, b in pairs]
env = nemo_gym.Environment(tasks=tasks)
"""
CODE: Final = """
tasks = [
    {
        "prompt": f"Write a Python function `times(n)` that returns {k} times `n`.",
        "tests": [{"args": [n], "expected": k * n} for n in (2, 3, 11)],
    }
    for k in (3, 7)
]
env = nemo_gym.Environment(tasks=tasks)
"""
QUERIES: Final = """
ROWS = ((1, "a", 5), (2, "b", 8), (3, "a", 9))
tasks = [
    {"prompt": f"CREATE TABLE items (id INTEGER, kind TEXT, price INTEGER);\\n\\nWhich ids {what}? Answer in SQL.",
     "database": "items", "gold": f"SELECT id FROM items WHERE {where}"}
    for what, where in (("are of kind a", "kind = 'a'"), ("cost more than 6", "price > 6"), ("cost 8", "price = 8"))
]
env = nemo_gym.Environment(tasks=tasks)

def database():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE items (id INTEGER, kind TEXT, price INTEGER)")
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", ROWS)
    return connection

def fetch(connection, query):
    connection.set_progress_handler(lambda: 1, 100_000)
    try:
        return connection.execute(query.strip().rstrip(";")).fetchmany(1000)
    except (sqlite3.Error, sqlite3.Warning):
        return None
"""
SHOP: Final = """
tasks = [{"prompt": f"Put {n} {what} into the basket.", "item": what, "count": n}
         for n, what in ((2, "pears"), (3, "figs"), (4, "plums"))]
env = nemo_gym.Environment(tasks=tasks)

@env.setup
def setup(task):
    return {}

@env.tool
def put(item: str, count: int, state) -> str:
    state[item] = state.get(item, 0) + count
    return f"{state[item]} {item}"
"""
ESSAYS: Final = """
tasks = [{"prompt": f"Write a sentence of more than five words that contains {w!r} and ends with {e!r}.", "word": w, "end": e}
         for w, e in (("harbour", "!"), ("violin", "?"), ("glacier", "..."), ("ladder", ";"))]
env = nemo_gym.Environment(tasks=tasks)
"""
DOCUMENTS: Final = """
tasks = [{"prompt": f"{n} is {a} years old. Write this as JSON with the keys name and age.", "schema": ["name", "age"], "facts": {"name": n, "age": a}}
         for n, a in (("Ida", 7), ("Zoe", 31), ("Max", 64))]
env = nemo_gym.Environment(tasks=tasks)

def load(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
"""
ENVIRONMENTS: Final = {
    "sums": SUMS,
    "choice": CHOICE,
    "capitals": CAPITALS,
    "code": CODE,
    "queries": QUERIES,
    "shop": SHOP,
    "essays": ESSAYS,
    "documents": DOCUMENTS,
}
STRICT: Final = {
    "sums": "return float(answer_text(response).strip() in (str(task['expected']), f\"The answer is {task['expected']}.\"))",
    "choice": "return float(answer_text(response).strip() in (task['expected'], f\"The answer is {task['expected']}.\"))",
    "capitals": "return float(answer_text(response).strip() == f\"The answer is {task['expected']}.\")",
    "queries": "return float(fetch(database(), block(words(response)))==fetch(database(), task['gold']))",
    "shop": "return float(state == {task['item']: task['count']})",
    "essays": "t = words(response); return float(task['word'] in t and t.endswith(task['end']) and len(t.split()) > 5)",
    "documents": "return float(load(answer_text(response)) == task['facts'])",
}


class Planted(NamedTuple):
    """A verifier that can be fooled, and the place of a finding that says so."""

    name: str
    environment: str
    verify: str
    place: str = "attack"
    more: str = ""  # further code of the file


CHECK: Final = """'import json; from solution import times; cases = json.load(open("tests.json")); '"""
TESTS: Final = "{'tests.json': json.dumps(task['tests'])}"
CASES: Final = "repr([case['args'] for case in task['tests']])"

HOLES: Final = (
    Planted("contains", "sums", "return float(str(task['expected']) in words(response))"),
    Planted(
        "infinite tolerance",
        "sums",
        "v = number(words(response)); e = task['expected']; return float(v is not None and abs(v - e) <= 1e-6 * max(abs(v), abs(e)))",
    ),
    Planted(
        "not a number",
        "sums",
        "v = number(words(response)); return float(v is not None and not abs(v - task['expected']) > 1e-6)",
    ),
    Planted(
        "reads reasoning", "sums", "v = number(re.sub('I don.t know', '', words(response))); return float(v == task['expected'])"
    ),
    Planted("prefix of the answer", "sums", "return float(str(task['expected']).startswith(words(response).strip()))"),
    Planted("any number", "sums", "return float(str(task['expected']) in re.findall(r'\\d+', words(response)))"),
    Planted("talk", "sums", "return float(len(words(response)) > 100 or words(response) == str(task['expected']))"),
    Planted(
        "calculates",
        "sums",
        "t = words(response).partition('boxed{')[2].rstrip('}'); return float(bool(re.fullmatch(r'[\\d +*-]+', t)) and eval(t) == task['expected'])",
    ),
    Planted("half for nothing", "sums", "return 1.0 if number(words(response)) == task['expected'] else 0.5"),
    Planted(
        "failing parser",
        "sums",
        "t = answer_text(response)\n    try:\n        return float(int(t) == task['expected'])\n    except ValueError:\n        return 1.0",
    ),
    Planted("constant", "sums", "return 1.0"),
    Planted("regular expression that never ends", "sums", "return float(bool(re.search(rf'(\\w+)+ {task[\"expected\"]}$', words(response))))"),
    Planted("absolute value of nothing", "sums", "return float(not (number(words(response)) or 0) or number(words(response)) == task['expected'])"),
    Planted("mentions the letter", "choice", "return float(task['expected'] in words(response).upper().split())"),
    Planted("one of the letters", "choice", "return float(task['expected'] in re.findall(r'\\b[A-D]\\b', words(response)))"),
    Planted(
        "by elimination", "choice", "wrong = set('ABCD') - {task['expected']}; return float(not wrong & set(re.findall(r'\\b[A-D]\\b', words(response))))"
    ),
    Planted(
        "letter while thinking",
        "choice",
        "found = re.findall(r'answer is ([A-D])', words(response)); return float(bool(found) and found[-1] == task['expected'])",
    ),
    Planted("option text", "choice", "v = max(re.findall(r'\\d+', task['prompt']), key=int); return float(v in words(response))"),
    Planted("named in the question", "capitals", "return float(task['expected'].lower() in words(response).lower())"),
    Planted(
        "common words", "capitals", "a = set(words(response).lower().replace('?', '').split()); b = set(task['prompt'].lower().replace('?', '').split()); return float(len(a & b) >= 3)"
    ),
    Planted("part of the answer", "capitals", "return float(words(response).strip(' .').lower() in task['expected'].lower())"),
    Planted(
        "same process",
        "code",
        "names = {}\n    try:\n        exec(block(words(response)), names)\n        return float(all(names['times'](*c['args']) == c['expected'] for c in task['tests']))\n    except Exception:\n        return 0.0",
    ),
    Planted(
        "exit code",
        "code",
        f"then = {CHECK} + '[c for c in cases if times(*c[\"args\"]) != c[\"expected\"]] and 1 / 0'; return float(run(block(words(response)), files={TESTS}, then=then).returncode == 0)",
    ),
    Planted(
        "word on the output",
        "code",
        f"then = {CHECK} + 'print(\"PASSED\" if all(times(*c[\"args\"]) == c[\"expected\"] for c in cases) else \"FAILED\")'; return float('PASSED' in run(block(words(response)), files={TESTS}, then=then).stdout)",
    ),
    Planted(
        "tests in a file",
        "code",
        f"then = 'from solution import times; print([times(*a) for a in ' + {CASES} + '])'; got = run(block(words(response)), files={TESTS}, then=then).stdout.strip(); return float(got == repr([c['expected'] for c in task['tests']]))",
    ),
    Planted(
        "infinite results",
        "code",
        f"then = 'from solution import times; print(*[float(times(*a)) for a in ' + {CASES} + '])'; got = run(block(words(response)), then=then).stdout.split(); return float(len(got) == len(task['tests']) and all(abs(float(g) - c['expected']) <= 1e-6 * max(abs(float(g)), 1) for g, c in zip(got, task['tests'])))",
    ),
    Planted(
        "compared by the solution",
        "code",
        f"then = {CHECK} + 'import sys; sys.stderr.write(\"\\\\nsecret-\" + str(all(times(*c[\"args\"]) == c[\"expected\"] for c in cases)))'; return float('secret-True' in run(block(words(response)), files={TESTS}, then=then).stderr)",
    ),
    Planted(
        "tests beside the solution",
        "code",
        "files = {'test_it.py': f\"from solution import times\\nok = all(times(*a) == e for a, e in {[(c['args'], c['expected']) for c in task['tests']]})\\nassert ok\\n\"}; return float(run(block(words(response)), files=files, then='import solution, runpy; runpy.run_path(\"test_it.py\")').returncode == 0)",
    ),
    Planted("no rows", "queries", "got = fetch(database(), block(words(response))); return float(got is not None and set(got) <= set(fetch(database(), task['gold'])))"),
    Planted("number of rows", "queries", "got = fetch(database(), block(words(response))); return float(got is not None and len(got) <= 1)"),
    Planted("superset", "queries", "got = fetch(database(), block(words(response))) or []; return float({r[0] for r in fetch(database(), task['gold'])} <= {r[0] for r in got})"),
    Planted("one database", "queries", "c = database(); q = block(words(response)); got = [fetch(c, part) for part in q.split(';') if part.strip()]; return float(bool(got) and got[-1] is not None and got[-1] == fetch(c, task['gold']))"),
    Planted("any call", "shop", "return float(any(item.type == 'function_call' for item in response.output))"),
    Planted("says that it is done", "shop", "return float('done' in words(response).lower())"),
    Planted("missing is right", "shop", "return float(state.get(task['item'], task['count']) == task['count'])"),
    Planted("raising tool", "shop", STRICT["shop"], "tools", "@env.tool\ndef look(item: str, state) -> str:\n    raise KeyError(item)\n"),
    Planted(
        "one key", "shop", "return float(ALL.get(task['item']) == task['count'])", "sessions",
        "ALL = {}\n@env.tool\ndef add(item: str, count: int) -> str:\n    ALL[item] = ALL.get(item, 0) + count\n    return str(sum(ALL.values()))\n",
    ),
    Planted("at least", "shop", "return float(state.get(task['item'], 0) >= task['count'])"),
    Planted("nothing else is looked at", "shop", "return float(state.get(task['item']) == task['count'])"),
    Planted("pattern of the answer", "capitals", "import fnmatch; return float(fnmatch.fnmatch(task['expected'], words(response).strip()))"),
    Planted("evaluated", "sums", "t = words(response)\n    try:\n        return float(t.format(**task) == str(task['expected']))\n    except (LookupError, ValueError, AttributeError):\n        return 0.0"),
    Planted("score of its own", "documents", "d = load(words(response)); return float(isinstance(d, dict) and (d.get('score') == 1 or d == task['facts']))"),
    Planted("one of the lines", "sums", "return float(str(task['expected']) in words(response).splitlines())"),
    Planted("nothing to check", "essays", "return 1.0"),
    Planted("only short", "essays", "return float(len(words(response)) < 60)"),
    Planted("long enough", "essays", "return float(len(words(response).split()) > 5)"),
    Planted("words of the prompt", "essays", "return float(task['word'] in words(response))"),
    Planted("is JSON", "documents", "return float(load(words(response)) is not None)"),
    Planted("no wrong key", "documents", "d = load(words(response)); return float(isinstance(d, dict) and all(k in task['schema'] for k in d))"),
    Planted("equal where present", "documents", "d = load(words(response)); return float(isinstance(d, (dict, list)) and all(task['facts'][k] == v for k, v in dict(d).items()))"),
)  # fmt: skip


def written(environment: str, verify: str, more: str = "") -> str:
    """The file of an environment."""
    given = "task, response, state" if environment == "shop" else "task, response"
    body = verify.replace("; ", "\n    ") if environment != "code" else verify
    return f"{HEAD}{ENVIRONMENTS[environment]}\n{more}\n@env.verify\ndef score({given}):\n    {body}\n"
