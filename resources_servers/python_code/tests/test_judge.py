# ruff: noqa: E501 - programs are easier to read in long lines than in many
"""The judge in its box: fair to honest solutions, and not to be fooled by others."""

import asyncio
import json
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.sandbox import LazyRunner, SandboxLimits, SandboxSettings
from resources_servers.python_code.answers import extract_code
from resources_servers.python_code.generate import generate, main, task_row
from resources_servers.python_code.verification import (
    HiddenTests,
    Verdict,
    complete,
    modules_in_the_box,
    verify_solution,
)
from tests.sandbox.kernel_features import kernel_supports

CHECK = "def check(candidate):\n    assert candidate([3, 1, 2]) == [1, 2, 3]\n    assert candidate([]) == []\n"
SORT = {"kind": "function", "entry_point": "order", "test": CHECK}
LIMITS = SandboxLimits(cpu_s=2, wall_s=10)


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def runner(request: pytest.FixtureRequest) -> Iterator[LazyRunner]:
    if not kernel_supports(request.param):
        pytest.skip(f"the kernel of this machine does not offer {request.param}")
    runner = LazyRunner(SandboxSettings(isolation=request.param, modules=modules_in_the_box()))
    yield runner
    asyncio.run(runner.aclose())


async def judge(runner: LazyRunner, solution: str, tests: dict[str, Any]) -> Verdict:
    return await verify_solution(await runner.get(), solution, HiddenTests.model_validate(tests), limits=LIMITS)


async def test_a_right_solution_passes(runner: LazyRunner) -> None:
    verdict = await judge(runner, "def order(items): return sorted(items)", SORT)
    assert (verdict.passed, verdict.total, verdict.reason) == (1, 1, None)


# Ways to pass tests without solving the task, all of which work where solution and tests share a process.
TRICKS = {
    "an object that equals everything": "class A(list):\n    def __eq__(self, other): return True\ndef order(items): return A()",
    "a class of one's own": "class A:\n    def __eq__(self, other): return True\ndef order(items): return A()",
    "a class that pretends": "class A:\n    def __reduce__(self): return (eval, ('[1, 2, 3]',))\ndef order(items): return A()",
    "a class of the judge": "import os, time\ndef order(items):\n    data = b'(Vreturned\\ncfractions\\nFraction\\n(N(dV__eq__\\ncbuiltins\\nstr\\nstb)R(]tt.'\n    for fd in range(3, 64):\n        try: os.write(fd, (len(data).to_bytes(8, 'little') + data) * 2)\n        except OSError: pass\n    time.sleep(60)",
    "parts of no type": "import os\ndef order(items):\n    data = b'[\"returned\", {\"eval\": \"[1]\"}, [null]]'\n    for fd in range(3, 64):\n        try: os.write(fd, len(data).to_bytes(8, 'little') + data)\n        except OSError: pass\n    return 0",
    "infinity": "def order(items): return float('inf')",
    "infinities": "def order(items): return [float('inf')] * len(items)",
    "an early exit": "import os\nos._exit(0)",
    "an exit in the call": "def order(items): raise SystemExit(0)",
    "a replaced check": "import builtins\nbuiltins.AssertionError = Exception\ndef order(items): return None",
    "the caller's variables": "import sys\ndef order(items):\n    f = sys._getframe()\n    while f:\n        for v in f.f_locals.values():\n            if callable(v) and getattr(v, '__name__', '') == 'check': return items\n        f = f.f_back\n",
    "a verdict of one's own": "import os\ndef order(items):\n    for fd in range(64):\n        try: os.write(fd, b'{\"passed\": [true], \"reason\": null}')\n        except OSError: pass\n    os._exit(0)",
    "the answer of the pipe": "import os, pickle\ndef order(items):\n    data = pickle.dumps(('returned', [1, 2, 3], (items,)))\n    for fd in range(3, 64):\n        try: os.write(fd, len(data).to_bytes(8, 'little') + data)\n        except OSError: pass\n    return 0",
    "the tests on standard input": "import os\ntext = os.read(0, 10**6)\nassert b'check' in text\ndef order(items): return sorted(items)",
    "the tests in memory": "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and any(isinstance(v, str) and 'def ' + 'check(' in v for v in list(o.values()))]\nassert found\ndef order(items): return sorted(items)",
    "the memory of the judge": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')\ndef order(items): return sorted(items)",
    "a daemon": "import os, time\nif os.fork() == 0:\n    time.sleep(0.1)\n    os._exit(0)\ndef order(items): return None",
}  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS)
async def test_a_trick_does_not_pass(runner: LazyRunner, trick: str) -> None:
    verdict = await judge(runner, TRICKS[trick], SORT)
    assert verdict.passed == 0


@pytest.mark.parametrize(
    ("solution", "test"),
    [
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", "assert candidate() == (1, 2)"),
        ("from collections import defaultdict\ndef f():\n    d = defaultdict(int); d[1] += 1; return d", "assert candidate() == {1: 1}"),
        ("from fractions import Fraction\ndef f(): return {Fraction(1, 2), 3}", "assert 0.5 in candidate()"),
        ("def f(): raise ValueError('no')", "try: candidate()\n    except ValueError as e: assert str(e) == 'no'\n    else: assert False"),
        ("def f(a, b): a.sort(); b['x'] = 1", "a, b = [2, 1], {}\n    candidate(a, b)\n    assert (a, b) == ([1, 2], {'x': 1})"),
        ("def f(x, *, y): return x + y", "assert candidate(1, y=2) == 3"),
        ("n = 0\ndef f():\n    global n; n += 1; return n", "assert [candidate(), candidate()] == [1, 2]"),
        ("def f(): return 10**400", "assert candidate() == 10**400"),
        ("def f(): return -10**9000", "assert candidate() == -10**9000"),
        ("from datetime import *\ndef f(): return datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=1), 'X'))", "import datetime as d\n    assert candidate() == d.datetime(2024, 2, 29, 0, tzinfo=d.timezone.utc) and candidate().tzname() == 'X'"),
        ("from datetime import *\ndef f(): return [date(2024, 2, 29), time(1, 2), timedelta(1, 2)]", "import datetime as d\n    assert candidate() == [d.date(2024, 2, 29), d.time(1, 2), d.timedelta(1, 2)]"),
        ("from decimal import Decimal\ndef f(): return Decimal('1.10')", "from decimal import Decimal\n    assert str(candidate()) == '1.10'"),
        ("from collections import *\ndef f(): return Counter('aab'), OrderedDict(a=1), deque([1])", "from collections import Counter, OrderedDict, deque\n    assert candidate() == (Counter('aab'), OrderedDict(a=1), deque([1])) and candidate()[0].most_common(1) == [('a', 2)]"),
        ("def f(): return b'a', bytearray(b'b'), 1j, range(3), slice(1, None), frozenset([1]), '\\ud800'", "assert candidate() == (b'a', bytearray(b'b'), 1j, range(3), slice(1, None), frozenset([1]), '\\ud800')"),
        ("def f(x): return x is None", "assert candidate(None) is True"),
    ],
)  # fmt: skip
async def test_plain_values_pass_through_whole(runner: LazyRunner, solution: str, test: str) -> None:
    tests = {"kind": "function", "entry_point": "f", "test": f"def check(candidate):\n    {test}\n"}
    assert (await judge(runner, solution, tests)).reason is None


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        ("(1, [2])", [1, [2]], True),
        ("{1: 'a'}", {"1": "a"}, True),
        ("True", 1, False),
        ("1", True, False),
        ("0.1 + 0.2", 0.3, True),
        ("float('nan')", 1.0, False),
        ("float('nan')", math.nan, True),
        ("float('inf')", 1, False),
        ("float('inf')", 1.0, False),
        ("-float('inf')", 1.0, False),
        ("float('inf')", math.inf, True),
        ("-float('inf')", math.inf, False),
        ("1.0", math.inf, False),
        ("[float('inf')] * 2", [1, 2], False),
        ("1e300", 1, False),
        ("1e300", 1.0, False),
        ("10**400", 1.0, False),
        ("10**400", math.inf, False),
        ("{1: 'b', '1': 'a'}", {"1": "a"}, False),
        ("(lambda l: [l.append(l), l][1])([])", [], False),
        ("1.0", 1, True),
        ("0.1 * 30", 3, True),
        ("1548008755920.003", 1548008755920, False),
        ("__import__('math').gamma(26)", 15511210043330985984000000, False),
        ("2.0 ** 100", 2**100, True),
        ("float('nan')", 3, False),
        ("'1'", 1, False),
        ("None", None, True),
        ("[1, 2]", [1, 2, 3], False),
    ],
)
async def test_values_are_compared_as_json(runner: LazyRunner, value: str, expected: Any, same: bool) -> None:
    tests = {"kind": "function", "entry_point": "f", "cases": [{"args": [], "expected": expected}]}
    assert (await judge(runner, f"def f(): return {value}", tests)).passed == same


@pytest.mark.parametrize(
    ("printed", "expected", "tolerance", "same"),
    [
        ("1 \\n2\\n\\n", "1\n2", None, True),
        ("1 2", "1  2", None, False),
        ("1.00001", "1", None, False),
        ("1.00001", "1", 1e-3, True),
        ("x", "1", 1e-3, False),
        ("inf", "1", 1e-3, False),
        ("nan", "1", 1e-3, False),
        ("1", "inf", 1e-3, False),
        ("inf", "Infinity", 1e-3, True),
        ("-inf", "inf", 1e-3, False),
        ("1e9", "1", 1e-3, False),
    ],
)
async def test_output_is_compared_line_by_line(
    runner: LazyRunner, printed: str, expected: str, tolerance: float | None, same: bool
) -> None:
    tests = {"kind": "program", "cases": [{"stdin": "", "stdout": expected}], "tolerance": tolerance}
    assert (await judge(runner, f"print('{printed}')", tests)).passed == same


async def test_a_program_sees_one_input_and_no_output_of_others(runner: LazyRunner) -> None:
    cases = [{"stdin": f"{n}\n", "stdout": f"{n * n}\n"} for n in range(5)]
    tests = {"kind": "program", "cases": cases}
    peek = "import os\nn = int(input())\nassert sorted(os.listdir('.')) and '16' not in open('stdout').read()\nprint(n * n)"
    assert (await judge(runner, peek, tests)).passed == 5
    assert (await judge(runner, "print(int(input()) ** 2); import sys; sys.exit(3)", tests)).reason == "exit code 3"
    assert (await judge(runner, "print('x' * 500)", tests)).passed == 0


async def test_every_generated_task_is_solved_by_its_solution_and_by_nothing_else(runner: LazyRunner) -> None:
    problems = [problem for level in (1, 2, 3) for problem in generate(24, seed=9, difficulty=level)]
    lazy = {"function": "def {name}(*args): return None", "program": "pass"}
    wrong = [lazy[problem.kind].format(name=problem.tests.get("entry_point")) for problem in problems]
    right = await asyncio.gather(*(judge(runner, each.solution, each.tests) for each in problems))
    assert [verdict.reason for verdict in right if verdict.reason] == []
    idle = await asyncio.gather(*(judge(runner, code, each.tests) for code, each in zip(wrong, problems, strict=True)))
    assert [
        each.question for verdict, each in zip(idle, problems, strict=True) if verdict.passed == verdict.total
    ] == []


def test_the_shipped_data_is_what_the_generator_writes(tmp_path: Any) -> None:
    data = os.path.join(os.path.dirname(__file__), "..", "data")  # noqa: PTH118, PTH120
    main(["--n", "500", "--seed", "0", "--output", str(tmp_path / "train.jsonl")])
    with open(os.path.join(data, "train.jsonl"), "rb") as shipped:  # noqa: PTH118, PTH123
        assert (tmp_path / "train.jsonl").read_bytes() == shipped.read()
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len({row["question"] for row in rows}) == 500
    assert task_row(generate(1, seed=0, difficulty=1)[0]) == rows[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("~~~python\nx\n~~~", "x\n"),
        ("````\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("```json\n{}\n```", None),
        ("   \n", None),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
    ],
)
def test_code_is_found(text: str, code: str | None) -> None:
    assert extract_code(text) == code


FUNCTION = "```python\ndef f(x):\n    return x + 1\n```"
ADD = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{FUNCTION}\nUse it so:\n```python\nprint(f(1))\n```", ADD),
        (f"{FUNCTION}\nUse it so:\n```python\nresult = f(1)\nprint(result)\n```", ADD),
        (f"{FUNCTION}\nIt prints:\n```\n2\n```", ADD),
        (f"{FUNCTION}\nIt prints:\n```text\n2\n```", ADD),
        (f"{FUNCTION}\nAnd a test:\n```python\ndef test():\n    assert f(1) == 2\n```", ADD),
        (f"```python\ndef f(x): return x\n```\nNo, better:\n{FUNCTION}", ADD),
        ("1. So:\n   ```python\n   def f(x):\n       return x + 1\n   ```\n2. Done.", ADD),
        ("```python\ndef f(x):\n    return g(x)\n```\nwith\n```python\ndef g(x):\n    return x + 1\n```",
         "def g(x):\n    return x + 1\n\n\ndef f(x):\n    return g(x)\n"),
        ("```python\nimport math\n```\n```python\nf = lambda x: math.sqrt(x)\n```", "import math\n\n\nf = lambda x: math.sqrt(x)\n"),
        ("```python\n    return x + 1\n```\nUse it so:\n```python\nf(1)\n```", "    return x + 1\n"),
        ("```python\ndef f(x):\n    return (x +\n```\n```\n2\n```", "def f(x):\n    return (x +\n"),
        ("```python\nx = 1\n```\n```\n2\n```", "x = 1\n"),
        ("```python\n# no such function\n```", "# no such function\n"),
    ],
)  # fmt: skip
def test_the_block_that_defines_the_function_is_the_answer(text: str, code: str) -> None:
    assert extract_code(text, "f") == code


def test_of_a_program_the_last_block_of_python_is_the_answer() -> None:
    assert extract_code("```python\nprint(2)\n```\nIt prints:\n```\n2\n```") == "print(2)\n"
    assert extract_code("```\nprint(1)\n```\nor\n```\nprint(2)\n```") == "print(2)\n"


def test_megabytes_of_text_take_no_time() -> None:
    for text in ("`" * 5_000_000, "```\n" * 1_000_000, " ```python" * 500_000, "x" * 10_000_000):
        assert len(extract_code(text) or "") <= 100_000
        assert len(extract_code(text, "f") or "") <= 100_000


def test_a_completion_goes_on_where_the_task_ends() -> None:
    assert complete("def f():\n    '''Doc.'''\n", "    return 1") == "def f():\n    '''Doc.'''\n    return 1"
    assert complete("", "x = 1") == "x = 1"
