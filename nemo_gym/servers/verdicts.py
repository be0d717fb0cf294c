"""What a judge is asked and what it said: prompt templates, labels, and verdicts in two orders. Pure."""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.schemas.refs import ModelServerRef


class SwapCheck(BaseModel):
    """Ask a second time with two fields swapped: a judge that prefers a place and not an answer contradicts itself."""

    model_config = ConfigDict(extra="forbid")

    fields: tuple[str, str]
    labels: dict[str, str] = Field(default_factory=dict)  # what a label means when swapped; itself unless listed
    on_disagreement: Literal["lowest", "mean", "error"] = "lowest"

    def swapped(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with the two fields exchanged."""
        first, second = self.fields
        return {**values, first: values[second], second: values[first]}


class JudgeConfig(BaseModel):
    """Which model judges, what it is asked, how its words become a score, and how much it may be asked at once."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_server: ModelServerRef
    prompt: str
    system: str | None = None
    labels: dict[str, float] = Field(min_length=1)
    pattern: str | None = None
    swap: SwapCheck | None = None
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    max_concurrent_requests: int = Field(default=16, ge=1)
    max_attempts: int = Field(default=3, ge=1)

    @field_validator("prompt", "system")
    @classmethod
    def _can_be_filled(cls, template: str | None) -> str | None:
        fields_of(template or "")
        return template

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.swap is not None:
            if missing := set(self.swap.fields) - fields_of(self.prompt):
                raise ValueError(f"swap.fields {sorted(missing)} are not in the prompt")
            if unknown := {*self.swap.labels, *self.swap.labels.values()} - set(self.labels):
                raise ValueError(f"swap.labels {sorted(unknown)} are not among the labels")
        return self

    @property
    def fields(self) -> set[str]:
        """What has to be known to ask."""
        return fields_of(self.prompt) | fields_of(self.system or "")

    def messages(self, values: Mapping[str, Any]) -> list[dict[str, str]]:
        """The question as a conversation. What a value contains is inserted as it is."""
        system = [{"role": "system", "content": self.system.format_map(values)}] if self.system is not None else []
        return [*system, {"role": "user", "content": self.prompt.format_map(values)}]

    def label_in(self, text: str) -> str | None:
        """The label that a text ends up with, or None."""
        if self.pattern is not None:
            return self._known([_chosen(match) for match in re.finditer(self.pattern, text)])
        # The longest first, so that a label is not taken for one that is part of it.
        names = sorted(self.labels, key=len, reverse=True)
        either = "|".join(f"{_edge(name[:1])}{re.escape(name)}{_edge(name[-1:])}" for name in names)
        return self._known(re.findall(either, text, re.IGNORECASE))

    def _known(self, found: list[str]) -> str | None:
        """The label that was found last, however its letters were written."""
        if not found:
            return None
        last = found[-1].strip()
        if last in self.labels:
            return last
        return next((label for label in self.labels if label.casefold() == last.casefold()), None)


class Verdict(NamedTuple):
    """What a judge decided. If it was asked in both orders and contradicted itself, ``label`` is its first word."""

    label: str
    score: float
    texts: tuple[str, ...]
    agrees: bool = True


def fields_of(template: str) -> set[str]:
    """The fields that a template names. Raises ``ValueError`` if it can't be filled with plain values."""
    found = [(name, form or "") for _, name, form, _ in Formatter().parse(template) if name is not None]
    names = {name for name, _ in found}
    if odd := [name for name, form in found if not name.isidentifier() or "{" in form]:
        raise ValueError(f"{{{odd[0]}}} is no field: a field is a name in braces; braces meant literally are doubled")
    return names


def settle(config: JudgeConfig, first: Verdict, second: Verdict) -> Verdict | None:
    """One verdict from those in both orders; None if they contradict each other and that is an error."""
    assert config.swap is not None
    meant = config.swap.labels.get(second.label, second.label)
    texts, scores = (*first.texts, *second.texts), (first.score, config.labels[meant])
    if meant == first.label:
        return first._replace(texts=texts)
    if config.swap.on_disagreement == "error":
        return None
    score = min(scores) if config.swap.on_disagreement == "lowest" else sum(scores) / 2
    return Verdict(first.label, score, texts, agrees=False)


def _chosen(match: re.Match[str]) -> str:
    """What a pattern is after: its group ``label``, else its first group, else all of it."""
    named = match.groupdict().get("label")
    return named if named is not None else (match[1] if match.re.groups and match[1] is not None else match[0])


def _edge(character: str) -> str:
    return r"\b" if character.isalnum() or character == "_" else ""
