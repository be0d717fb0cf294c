"""The Responses API: the request that a rollout starts with and the response that a model gives.

The order of the fields is the order of the keys in every file and on the wire. A request refuses unknown keys, so that
a misspelt option is an error and not silently ignored; a response keeps them, so that nothing an endpoint sent is lost.
"""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.schemas.items import (
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    TextOrItems,
)

ToolChoice: TypeAlias = Literal["none", "auto", "required"] | dict[str, Any]
Truncation: TypeAlias = Literal["auto", "disabled"]


def _as_dictionary(tool: Any) -> Any:
    """A tool as plain data; programs that use the openai package pass its objects."""
    return tool.model_dump(exclude_unset=True) if isinstance(tool, BaseModel) else tool


@with_config(ConfigDict(extra="allow"))
class NeMoGymFunctionToolParam(TypedDict):
    """A function that the model may call."""

    name: str
    type: Literal["function"]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]
    description: NotRequired[str | None]


def _is_hosted(kind: str) -> str:
    if kind == "function":
        raise ValueError("a function tool needs a name, and its parameters must be a JSON schema object")
    return kind


@with_config(ConfigDict(extra="allow"))
class HostedToolParam(TypedDict):
    """A tool that the endpoint runs itself; only the endpoint knows its options."""

    type: Annotated[str, AfterValidator(_is_hosted)]


Tool: TypeAlias = Annotated[
    Annotated[NeMoGymFunctionToolParam, Tag("function")] | Annotated[HostedToolParam, Tag("hosted")],
    Field(union_mode="left_to_right"),
]


class NeMoGymResponseCreateParamsNonStreaming(BaseModel):
    """A request to a model: the conversation and the options."""

    model_config = ConfigDict(extra="forbid")

    background: bool | None = None
    include: list[str] | None = None
    input: SerializeAsAny[TextOrItems]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: ToolChoice = "auto"
    tools: SerializeAsAny[list[Tool]] = Field(default_factory=list)
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Truncation | None = None
    user: str | None = None
    stream: Literal[False] | None = None


class ResponsePart(BaseModel):
    """Base of the objects inside a response; it keeps the keys of newer endpoints."""

    model_config = ConfigDict(extra="allow")


class NeMoGymResponseInputTokensDetails(ResponsePart):
    """Where the input tokens came from."""

    cached_tokens: int


class NeMoGymResponseOutputTokensDetails(ResponsePart):
    """What the output tokens were spent on."""

    reasoning_tokens: int


class NeMoGymResponseUsage(ResponsePart):
    """Token counts of one response, or of a whole rollout."""

    input_tokens: int
    input_tokens_details: NeMoGymResponseInputTokensDetails
    output_tokens: int
    output_tokens_details: NeMoGymResponseOutputTokensDetails
    total_tokens: int


class ResponseError(ResponsePart):
    """Why the model failed."""

    code: str | int | None = None
    message: str


class IncompleteDetails(ResponsePart):
    """Why the completion stops early: ``max_output_tokens``, ``content_filter``, …"""

    reason: str | None = None


class Conversation(ResponsePart):
    """The stored conversation that a response belongs to."""

    id: str


class NeMoGymResponse(ResponsePart):
    """One completion of a model, or the whole trajectory of an agent in the shape of one completion."""

    id: str
    created_at: float
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: TextOrItems | None = None
    metadata: dict[str, str] | None = None
    model: str
    object: Literal["response"]
    output: list[NeMoGymResponseOutputItem]
    parallel_tool_calls: bool
    temperature: float | None = None
    tool_choice: ToolChoice
    tools: list[Annotated[dict[str, Any], BeforeValidator(_as_dictionary)]]
    top_p: float | None = None
    background: bool | None = None
    conversation: Conversation | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    status: Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"] | None = None
    text: dict[str, Any] | None = None
    top_logprobs: int | None = None
    truncation: Truncation | None = None
    usage: NeMoGymResponseUsage | None = None
    user: str | None = None

    @property
    def output_text(self) -> str:
        """All text of the completion, without reasoning, refusals and tool calls."""
        return "".join(
            part.text
            for item in self.output
            if isinstance(item, NeMoGymResponseOutputMessage)
            for part in item.content
            if isinstance(part, NeMoGymResponseOutputText)
        )
