"""Small tasks in a workspace: each draws files, what to do, a solution and the hidden tests for it."""

import contextlib
import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

NAMES: Final = ("Ana", "Ben", "Chloe", "Dario", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Liam")
GOODS: Final = ("apples", "bolts", "cables", "drums", "envelopes", "filters", "gloves", "hinges")


_RUNS: Final = ("tests/test_names.py::test_the_program_runs",)


@dataclass(frozen=True, slots=True)
class Chore:
    """A task: what it is called, what is asked, what is there, what solves it (files; None removes), what tests it."""

    category: str
    question: str
    files: dict[str, str]
    solution: dict[str, str | None]
    tests: dict[str, str]
    guards: tuple[str, ...] = ()  # tests that pass at the start


def repair(rng: Random) -> Chore:
    """A function with one mistake, which the report describes by an example."""
    low, high = rng.randint(1, 9), rng.randint(20, 60)
    rate = rng.choice((5, 10, 20, 25))
    right = (
        "def clamp(value, low, high):\n    return max(low, min(value, high))\n\n\n"
        f"def price(amount, members):\n    total = amount * {low}\n    if members and amount > {high}:\n"
        f"        total -= total * {rate} // 100\n    return total\n"
    )
    old, new = rng.choice((
        ("max(low, min(value, high))", "min(low, max(value, high))"),
        (f"amount > {high}", f"amount >= {high}"),
        ("members and amount", "members or amount"),
        (f"total * {rate} // 100", f"total // 100 * {rate}"),
    ))  # fmt: skip
    tests = (
        "from shop.prices import clamp, price\n\n\n"
        f"def test_clamp():\n    assert [clamp(n, 2, 5) for n in (1, 2, 4, 9)] == [2, 2, 4, 5]\n\n\n"
        f"def test_small_orders():\n    assert price({high}, True) == {low * high}\n\n\n"
        f"def test_large_orders():\n    n = {high + 37}\n"
        f"    assert price(n, True) == n * {low} - n * {low} * {rate} // 100\n\n\n"
        f"def test_strangers():\n    assert price({high + 37}, False) == {(high + 37) * low}\n"
    )
    question = (
        f"The module shop/prices.py has a mistake. An amount costs {low} for each piece; members get {rate} % off the "
        f"total (rounded down to a whole number) if they buy more than {high} pieces; clamp keeps a value between two "
        "bounds. Find the mistake and correct it."
    )
    wrong = right.replace(old, new)
    guards = tuple(f"tests/test_prices.py::{name}" for name in _passing(wrong, tests))
    files = {"shop/__init__.py": "", "shop/prices.py": wrong}
    return Chore("repair", question, files, {"shop/prices.py": right}, {"tests/test_prices.py": tests}, guards)


def _passing(module: str, tests: str) -> list[str]:
    """Which of these tests pass; both texts are ours."""
    names: dict[str, Any] = {}
    exec(module, names)
    exec(tests.partition("\n")[2], names)
    passing = []
    for name in [each for each in names if each.startswith("test_")]:
        with contextlib.suppress(AssertionError):
            names[name]()
            passing.append(name)
    return passing


def total(rng: Random) -> Chore:
    """A table from which one number has to be computed."""
    rows = [(rng.choice(NAMES), rng.choice(GOODS), rng.randint(1, 40)) for _ in range(rng.randint(40, 90))]
    name, good = rng.choice(rows)[:2]
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([("customer", "item", "pieces"), *rows])
    by_name = sum(pieces for customer, _, pieces in rows if customer == name)
    by_both = sum(pieces for customer, item, pieces in rows if (customer, item) == (name, good))
    tests = (
        "import json\n\n\ndef answer():\n    with open('answer.json', encoding='utf-8') as file:\n"
        "        return json.load(file)\n\n\n"
        f"def test_all_items():\n    assert answer()['all'] == {by_name}\n\n\n"
        f"def test_one_item():\n    assert answer()[{good!r}] == {by_both}\n"
    )
    question = (
        f"orders.csv lists who bought what. How many pieces did {name} buy in all, and how many of them were {good}? "
        f'Write answer.json with the keys "all" and "{good}".'
    )
    solution = json.dumps({"all": by_name, good: by_both})
    return Chore(
        "total", question, {"orders.csv": table.getvalue()}, {"answer.json": solution}, {"tests/test_answer.py": tests}
    )


def rename(rng: Random) -> Chore:
    """A function that is to be called differently, in every file."""
    old, new = rng.sample(("load_items", "read_stock", "fetch_rows", "open_list", "take_goods", "pick_parts"), 2)
    goods = rng.sample(GOODS, 3)
    modules = {
        "stock/__init__.py": f"from stock.source import {old}\n\n__all__ = [{old!r}]\n",
        "stock/source.py": f"def {old}():\n    return {goods!r}\n",
        "stock/report.py": f"import stock\n\n\ndef lines():\n    return [item.upper() for item in stock.{old}()]\n",
        "main.py": f"from stock import {old}\nfrom stock.report import lines\n\nprint(len({old}()), *lines())\n",
    }
    tests = (
        "import pathlib\nimport subprocess\nimport sys\n\n\n"
        f"def test_the_new_name_works():\n    import stock\n    assert stock.{new}() == {goods!r}\n\n\n"
        f"def test_the_program_runs():\n    done = subprocess.run([sys.executable, 'main.py'], capture_output=True, "
        f"text=True)\n    assert done.stdout.split() == {['3', *(good.upper() for good in goods)]!r}, done.stderr\n\n\n"
        "def test_the_old_name_is_gone():\n    import stock\n"
        f"    assert not hasattr(stock, {old!r})\n"
        "    found = [path for path in pathlib.Path().rglob('*.py') if 'tests' not in path.parts]\n"
        f"    assert not [path for path in found if {old!r} in path.read_text()]\n"
    )
    solution: dict[str, str | None] = {path: text.replace(old, new) for path, text in modules.items()}
    question = f"Rename the function {old} to {new} in the whole project, so that main.py prints what it does now."
    return Chore("rename", question, modules, solution, {"tests/test_names.py": tests}, _RUNS)


def settings(rng: Random) -> Chore:
    """Values in a file of settings, all others untouched."""
    hosts = rng.sample(NAMES, 4)
    servers = {name.lower(): {"port": rng.randint(2000, 9000), "workers": rng.randint(1, 16)} for name in hosts}
    one, other = rng.sample(sorted(servers), 2)
    port = rng.randint(9001, 9999)
    wanted = {**servers, one: {**servers[one], "port": port}}
    del wanted[other]
    tests = (
        "import json\n\n\ndef settings():\n    with open('etc/servers.json', encoding='utf-8') as file:\n"
        "        return json.load(file)\n\n\n"
        f"def test_the_port():\n    assert settings()[{one!r}]['port'] == {port}\n\n\n"
        f"def test_the_removed_server():\n    assert {other!r} not in settings()\n    assert len(settings()) == 3\n\n\n"
        f"def test_nothing_else_has_changed():\n    assert settings() == {wanted!r}\n"
    )
    question = f'In etc/servers.json, set the port of "{one}" to {port} and remove "{other}". Change nothing else.'
    files = {"etc/servers.json": json.dumps(servers, indent=2) + "\n"}
    return Chore(
        "settings", question, files, {"etc/servers.json": json.dumps(wanted, indent=2)}, {"tests/test_it.py": tests}
    )


def needle(rng: Random) -> Chore:
    """One line among many log files."""
    code = f"E{rng.randint(1000, 9999)}"
    files = {}
    for day in range(1, 8):
        lines = [f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02} ok {rng.choice(GOODS)}" for _ in range(60)]
        files[f"logs/day-{day}.log"] = "\n".join(lines) + "\n"
    day, hour = rng.randint(1, 7), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    name = rng.choice(NAMES)
    path = f"logs/day-{day}.log"
    lines = files[path].splitlines()
    lines.insert(rng.randrange(len(lines)), f"{hour} failed {code} for {name}")
    files[path] = "\n".join(lines) + "\n"
    tests = (
        "def words():\n    with open('report.txt', encoding='utf-8') as file:\n        return file.read().split()\n\n\n"
        f"def test_the_customer():\n    assert words()[0] == {name!r}\n\n\n"
        f"def test_the_time():\n    assert words() == {[name, f'day-{day}', hour]!r}\n"
    )
    question = (
        f"One of the files in logs/ says that {code} happened. Write one line to report.txt: the customer's name, the "
        "day as in the name of the file (such as day-3), and the time, separated by spaces."
    )
    return Chore("needle", question, files, {"report.txt": f"{name} day-{day} {hour}\n"}, {"tests/test_it.py": tests})


CHORES: Final[tuple[Callable[[Random], Chore], ...]] = (repair, total, rename, settings, needle)
