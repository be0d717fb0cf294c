"""Anthropic's Messages API: the request that a client sends and the message that an endpoint returns.

Blocks stay dictionaries, because they are only converted or forwarded: the fields named here are checked, and all
others are kept. A request keeps options that are not named here too.
"""

from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, with_config
from typing_extensions import TypedDict

_OPEN = ConfigDict(extra="allow")


@with_config(_OPEN)
class TextBlock(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str


@with_config(_OPEN)
class Source(TypedDict):
    """The content of an image or a document, or where to find it."""

    type: str
    data: NotRequired[str]
    media_type: NotRequired[str]
    url: NotRequired[str]
    file_id: NotRequired[str]


@with_config(_OPEN)
class ImageBlock(TypedDict):
    """An image."""

    type: Literal["image"]
    source: Source


@with_config(_OPEN)
class DocumentBlock(TypedDict):
    """A document."""

    type: Literal["document"]
    source: Source
    title: NotRequired[str | None]


@with_config(_OPEN)
class ThinkingBlock(TypedDict):
    """The model's reasoning; the signature proves to the endpoint that it is genuine."""

    type: Literal["thinking"]
    thinking: str
    signature: NotRequired[str | None]


@with_config(_OPEN)
class RedactedThinkingBlock(TypedDict):
    """Reasoning that only the endpoint can read."""

    type: Literal["redacted_thinking"]
    data: str


@with_config(_OPEN)
class ToolUseBlock(TypedDict):
    """A tool call of the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ResultBlock: TypeAlias = Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]


@with_config(_OPEN)
class ToolResultBlock(TypedDict):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: NotRequired[Annotated[str, Tag("text")] | Annotated[list[ResultBlock], Tag("blocks")] | None]


@with_config(_OPEN)
class OtherBlock(TypedDict):
    """A block that only the endpoint understands."""

    type: str


_KNOWN: Final = frozenset({"text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"})


def block_kind(block: Any) -> str | None:
    """The tag of the class that a block is meant to be."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        return None
    return kind if kind in _KNOWN else "other"


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(block_kind),
]


class AnthropicMessageParam(BaseModel):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[str, Tag("text")] | Annotated[list[Block], Tag("blocks")]


class AnthropicTool(BaseModel):
    """A tool. One without a schema is run by the endpoint itself."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str | None = None


class AnthropicToolChoice(BaseModel):
    """Which tool the model must or may use."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicMessagesRequest(BaseModel):
    """A request to a model: the conversation and the options."""

    model_config = ConfigDict(extra="allow")

    messages: list[AnthropicMessageParam]
    model: str | None = None
    max_tokens: int | None = None
    system: Annotated[str, Tag("text")] | Annotated[list[TextBlock], Tag("blocks")] | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    stream: bool | None = None


@with_config(_OPEN)
class OutputToolUseBlock(TypedDict):
    """A tool call of the model. Its input is an object, unless the model failed to write one."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


def output_kind(block: Any) -> str | None:
    """The tag of the class that a block of a completion is meant to be."""
    kind = block_kind(block)
    return "other" if kind in ("image", "document", "tool_result") else kind


OutputBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[OutputToolUseBlock, Tag("tool_use")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(output_kind),
]


class AnthropicUsage(BaseModel):
    """Token counts of one message; tokens from a cache are counted separately."""

    model_config = ConfigDict(extra="allow")

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class AnthropicMessage(BaseModel):
    """A completion of the model."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputBlock]
    model: str
    stop_reason: str | None = None
    usage: AnthropicUsage
