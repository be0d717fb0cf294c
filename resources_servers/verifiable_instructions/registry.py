"""All instructions by their names, and how an answer is checked against them, strictly and loosely.

Strict: the answer as it is. Loose: one of eight forms of it passes, because models put a greeting before an answer, a
question after it, and asterisks around words.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from resources_servers.verifiable_instructions import ifbench_checks, ifbench_forms, ifeval_checks

# A longer answer is not checked and counts as following no instruction.
MAX_TEXT: Final = 200_000

CHECKS: Final[dict[str, Callable[..., bool]]] = {
    **ifeval_checks.CHECKS,
    **ifbench_checks.CHECKS,
    **ifbench_forms.CHECKS,
}


class InstructionError(ValueError):
    """An instruction that is unknown or lacks a parameter."""


class Followed(NamedTuple):
    """Which instructions an answer follows."""

    strict: list[bool]
    loose: list[bool]


class Instruction(NamedTuple):
    """A check and its parameters."""

    name: str
    parameters: dict[str, Any]

    def is_followed(self, text: str) -> bool:
        """Whether the text passes; empty text never does."""
        return bool(text.strip()) and CHECKS[self.name](text, **self.parameters)


def read_instructions(names: Sequence[str], kwargs: Sequence[Mapping[str, Any] | None]) -> list[Instruction]:
    """Instructions as rows give them: names, and for each a mapping of parameters, in which null means absent."""
    if len(names) != len(kwargs):
        raise InstructionError(f"there are {len(names)} instructions and {len(kwargs)} kwargs")
    if not names:
        raise InstructionError("there is no instruction")
    return [_read(name, given or {}) for name, given in zip(names, kwargs, strict=True)]


def benchmark_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt of IFEval or IFBench as a row; raises ``InstructionError`` for an instruction that is not known here."""
    # Tables of the hub have a column for every parameter of every instruction; most are empty.
    given = [{name: value for name, value in (kwargs or {}).items() if value is not None} for kwargs in row["kwargs"]]
    names = list(row["instruction_id_list"])
    read_instructions(names, given)
    return {"key": row["key"], "prompt": row["prompt"], "instruction_id_list": names, "kwargs": given}


def check(text: str, instructions: Sequence[Instruction]) -> Followed:
    """Check text against every instruction."""
    if len(text) > MAX_TEXT:
        return Followed([False] * len(instructions), [False] * len(instructions))
    forms = loose_forms(text)
    strict = [instruction.is_followed(text) for instruction in instructions]
    loose = [
        followed or any(map(instruction.is_followed, forms))
        for instruction, followed in zip(instructions, strict, strict=True)
    ]
    return Followed(strict, loose)


def loose_forms(text: str) -> list[str]:
    """The text without its first line, its last line or both; each also without asterisks."""
    lines = text.split("\n")
    cut = [text, *("\n".join(lines[part]).strip() for part in (slice(1, None), slice(None, -1), slice(1, -1)))]
    forms = itertools.chain(cut, (form.replace("*", "") for form in cut))
    return list(dict.fromkeys(forms))[1:]


def _read(name: str, given: Mapping[str, Any]) -> Instruction:
    if name not in CHECKS:
        raise InstructionError(f"unknown instruction {name!r}")
    wanted = list(inspect.signature(CHECKS[name]).parameters)[1:]
    present = {key: _whole(value) for key, value in given.items() if value is not None and key in wanted}
    if missing := [key for key in wanted if key not in present]:
        raise InstructionError(f"instruction {name!r} lacks {', '.join(missing)}")
    return Instruction(name, present)


def _whole(value: Any) -> Any:
    """The value as an integer where it is whole, because tables of numbers turn 5 into 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
