"""Scores answers with the package's own scorers. Runs in processes that can be killed, because some are slow.

Where the package would evaluate an answer as Python, it gets literals and formulas only.
"""

import ast
import functools
import re
import sys
from typing import Any, Final

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

Entry = dict[str, Any]

LITERAL_TASKS: Final = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
FORMULA_TASKS: Final = frozenset(
    {"simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"}
)
# The package's scorer takes every text for "True".
TRUTH_TASKS: Final = frozenset({"game_of_life_halting"})
# Their boards are tuples, which JSON does not have.
BOARD_TASKS: Final = frozenset({"arc_agi", "rearc"})
# Tasks of every difficulty are scored, and this scorer knows only words of the configured lengths.
SETTINGS: Final[dict[str, dict[str, Any]]] = {"word_ladder": {"min_word_length": 3, "max_word_length": 5}}
FUNCTIONS: Final = frozenset(
    "sin cos tan cot sec csc asin acos atan sinh cosh tanh asinh acosh atanh exp log ln sqrt cbrt Abs pi E I "  # noqa: SIM905 - easier to read
    "erf Si Ci Ei li gamma Rational Integer Float".split(" ")
)
_FORMULA: Final = re.compile(r"[\w\s+\-*/^().,=|]*")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z_)]\s*\.|\.\s*[A-Za-z_]")


def score(answer: str | None, entry: Entry) -> dict[str, Any]:
    """Score and reason; without an answer, only find out whether the entry can be scored at all."""
    name = entry["metadata"]["source_dataset"]
    if name not in DATASETS or name == "composite":
        return {"score": 0.0, "reason": "", "unknown": name}
    if answer is None:
        return {"score": 0.0, "reason": ""}
    if name in TRUTH_TASKS:
        return {"score": float(answer.strip().lower() == entry["answer"].lower()), "reason": f"scored by {name}"}
    # Where the package found no solution, its own answer is an integral; elsewhere that would repeat the question.
    known = FUNCTIONS | ({"Integral"} if "Integral" in str(entry.get("answer")) else frozenset())
    if name in FORMULA_TASKS and not is_formula(answer, known):
        return {"score": 0.0, "reason": "the answer is not a formula"}
    dataset = _dataset(name)
    if name in BOARD_TASKS:
        entry = {**entry, "metadata": {key: _tuples(value) for key, value in entry["metadata"].items()}}
    try:
        return {"score": float(dataset.score_answer(answer, entry)), "reason": f"scored by {name}"}
    except Exception as error:  # noqa: BLE001 - a scorer may choke on an answer
        # If it also chokes on the right answer, the task is broken. Then this raises, and the rollout fails.
        dataset.score_answer(entry["answer"], entry)
        return {"score": 0.0, "reason": f"the scorer can't read the answer ({type(error).__name__})"}


def is_formula(text: str, known: frozenset[str] = FUNCTIONS) -> bool:
    """Whether the text consists of numbers, operators, short symbols and known functions."""
    if not _FORMULA.fullmatch(text) or _ATTRIBUTE.search(text) or "__" in text:
        return False
    return all(len(name) <= 2 or name in known for name in _NAME.findall(text))


@functools.cache
def _dataset(name: str) -> ProceduralDataset:
    dataset_class, config_class = DATASETS[name]
    if name in LITERAL_TASKS:
        # The module calls eval on answers; its own global of that name comes before the builtin.
        sys.modules[dataset_class.__module__].__dict__["eval"] = ast.literal_eval
    return dataset_class(config=config_class(**SETTINGS.get(name, {})))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
