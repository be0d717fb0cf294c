"""Gemini's API: the request that a client sends, as far as its outline is checked. Parts are only converted.

Keys are accepted in both spellings of the protocol, ``generationConfig`` and ``generation_config``.
"""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

_OPEN: Final = ConfigDict(extra="allow", populate_by_name=True)


def camel_keys(given: Any) -> Any:
    """An object with its own keys in the first spelling."""
    return (
        {to_camel(key) if "_" in key else key: value for key, value in given.items()}
        if isinstance(given, dict)
        else given
    )


class GeminiContent(BaseModel):
    """One turn of the conversation."""

    model_config = _OPEN

    role: str | None = None
    parts: list[dict[str, Any]] = Field(default_factory=list)


class GeminiRequest(BaseModel):
    """A request to a model: the conversation and the options."""

    model_config = _OPEN

    contents: list[GeminiContent]
    system_instruction: GeminiContent | None = Field(default=None, alias="systemInstruction")
    tools: list[dict[str, Any]] | None = None
    tool_config: dict[str, Any] | None = Field(default=None, alias="toolConfig")
    generation_config: dict[str, Any] | None = Field(default=None, alias="generationConfig")

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, given: Any) -> Any:
        return camel_keys(given)


class GeminiCount(BaseModel):
    """A request to count tokens: of contents, or of a whole request."""

    model_config = _OPEN

    contents: list[GeminiContent] | None = None
    generate_content_request: GeminiRequest | None = Field(default=None, alias="generateContentRequest")
