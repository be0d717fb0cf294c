"""All checks. A check is data: ``{"kind": "numbered_list", "count": 3}``.

``Check`` is the union of all kinds, told apart by ``kind``. Validating a row's checks against it refuses an unknown
kind and wrong, missing or superfluous parameters by name. The kinds are independent, so any number of them can be
applied to the same answer.
"""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias, get_args

from pydantic import Field, TypeAdapter

from resources_servers.format_following.base_check import BaseCheck
from resources_servers.format_following.shape_checks import (
    BulletList,
    CommaList,
    JsonKeys,
    LineCount,
    NumberedList,
    OneOf,
    Quoted,
    SentenceCount,
    WordCount,
)
from resources_servers.format_following.wording_checks import (
    AllCaps,
    AllLowercase,
    ContainsWord,
    EachWordStartsWith,
    EndsWith,
    ExcludesLetter,
    ExcludesWord,
    NoCommas,
    StartsWith,
    WordLength,
)

Check: TypeAlias = Annotated[
    NumberedList
    | BulletList
    | CommaList
    | LineCount
    | SentenceCount
    | WordCount
    | WordLength
    | StartsWith
    | EndsWith
    | ContainsWord
    | ExcludesWord
    | ExcludesLetter
    | EachWordStartsWith
    | AllCaps
    | AllLowercase
    | Quoted
    | NoCommas
    | OneOf
    | JsonKeys,
    Field(discriminator="kind"),
]
Checks: TypeAlias = Annotated[list[Check], Field(min_length=1)]

_CHECKS: Final = TypeAdapter(Checks)
CHECK_KINDS: Final[tuple[type[BaseCheck], ...]] = get_args(get_args(Check)[0])


class Verdict(NamedTuple):
    """The labels of the checks that an answer passed and failed."""

    passed: list[str]
    failed: list[str]


def parse_checks(checks: Sequence[object]) -> Sequence[BaseCheck]:
    """Read the checks of a row; raises pydantic's ``ValidationError`` for anything else."""
    return _CHECKS.validate_python(checks)


def judge(text: str, checks: Sequence[BaseCheck]) -> Verdict:
    """Apply every check to the text."""
    verdict = Verdict([], [])
    for check in checks:
        (verdict.passed if check.passes(text) else verdict.failed).append(check.label)
    return verdict
