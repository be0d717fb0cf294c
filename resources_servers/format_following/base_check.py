"""What every check has in common.

A check looks only at the text. An answer without a single word passes none, because it follows no instruction.
"""

from abc import abstractmethod
from typing import Annotated, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from resources_servers.format_following.text import words

Count: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
Word: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\W_]+(?:['-][^\W_]+)*$", max_length=50)]
Letter: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]$")]
Phrase: TypeAlias = Annotated[str, StringConstraints(pattern=r"[^\W_]", max_length=200)]


class BaseCheck(BaseModel):
    """One requirement; subclasses add ``kind`` and parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str

    def passes(self, text: str) -> bool:
        """Decide whether the text meets the requirement."""
        return bool(words(text)) and self._holds(text)

    @abstractmethod
    def _holds(self, text: str) -> bool: ...

    @property
    def label(self) -> str:
        """The check as a person would write it: ``word_count(at_least=3, at_most=5)``."""
        parameters = self.model_dump(exclude={"kind"}, exclude_none=True)
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in parameters.items())})"


class CountCheck(BaseCheck):
    """A requirement on how many there are of something."""

    count: Count


class RangeCheck(BaseCheck):
    """A requirement on the least or the greatest number of something, or both."""

    at_least: Count | None = None
    at_most: Count | None = None

    @model_validator(mode="after")
    def _some_number_fits(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least ({self.at_least}) is more than at_most ({self.at_most})")
        return self

    def fits(self, number: int) -> bool:
        """Decide whether the number lies in the range."""
        return (self.at_least or 0) <= number <= (self.at_most if self.at_most is not None else number)
