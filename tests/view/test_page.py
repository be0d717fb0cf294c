"""The page as it is sent, and what its scripts share with the program."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.view.page import STATIC, page_html, shared_constants

READ = {"view", "filters", "metrics", "steps", "schemas"}
PACKAGE = STATIC.parents[1]
SOURCES = [path for path in PACKAGE.glob("*/**/*.py") if path.parts[len(PACKAGE.parts)] in READ]
SCRIPTS = sorted(path for path in STATIC.glob("*.js") if path.name != "shared.js")
# Top-level constants of a script: numbers, and lists, sets and objects of texts.
DECLARED = re.compile(r"^(?:export )?const (\w+) = (?:new Set\()?([\[{][^;]*?[\]}]|-?[\d_.e]+)\)?;", re.MULTILINE)


def test_the_page_holds_the_constants_that_its_scripts_read() -> None:
    found = re.search(r'<script type="application/json" id="rollout-gym-shared">(.*?)</script>', page_html())
    assert found is not None
    shared = json.loads(found[1])
    assert shared == json.loads(json.dumps(shared_constants()))
    used = {name for path in SCRIPTS for name in re.findall(r"SHARED\.(\w+)", path.read_text("utf-8"))}
    assert used | {"blanks"} == shared.keys() | {"blanks"}


def test_no_constant_is_defined_in_python_and_in_a_script() -> None:
    ours = {key: f"{path.stem}.{name}" for path in SOURCES for name, key in python_constants(path)}
    theirs = {key: f"{path.name} {name}" for path in SCRIPTS for name, key in script_constants(path)}
    assert len(theirs) > 10
    assert len(ours) > 50
    assert {theirs[key]: ours[key] for key in theirs.keys() & ours.keys()} == {}


def test_a_constant_that_is_defined_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text(
        'const KINDS = new Set([\n  "seed",\n  "model",\n]);\nexport const MOST_POINTS = 5_000;\n'
    )
    (tmp_path / "a.py").write_text('KINDS: Final = ("model", "seed")\nMOST_POINTS: Final = 5_000\n')
    assert {key for _, key in script_constants(tmp_path / "a.js")} == {
        key for _, key in python_constants(tmp_path / "a.py")
    }


def python_constants(path: Path) -> Iterator[tuple[str, Any]]:
    """The constants of a module that have a value to compare, by name."""
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            value = statement.value
            literal = value.args[0] if isinstance(value, ast.Call) and value.args else value
            try:
                key = comparable(statement.target.id, ast.literal_eval(literal))
            except ValueError:
                continue
            if key is not None:
                yield statement.target.id, key


def script_constants(path: Path) -> Iterator[tuple[str, Any]]:
    for name, text in DECLARED.findall(path.read_text("utf-8")):
        value = re.findall(r'"([^"]*)"', text) if text[0] in "[{" else float(text.replace("_", ""))
        key = comparable(name, value)
        if key is not None and "=>" not in text:  # functions are not constants
            yield name, key


def comparable(name: str, value: Any) -> Any:
    """What makes two constants the same: the name of a number, or several texts in whatever order; None if nothing."""
    if isinstance(value, int | float):
        return name.strip("_"), float(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    several = value if isinstance(value, list | tuple | set) else ()
    texts = frozenset(each for each in several if isinstance(each, str))
    return texts if len(texts) > 1 else None
