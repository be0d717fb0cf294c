"""Items of a conversation in the Responses API, one class for each type, the union of all of them, and their parts.

The parts of a message's content are forwarded far more often than they are read, so they stay dictionaries: validation
checks the fields named here and keeps every other key unchanged. Nothing that a caller supplied is dropped.

What a model returned (:class:`ReturnedItem`) keeps keys that are not named here, because some endpoints want them
back; what a caller sends ignores them, because some endpoints refuse them.

:func:`item_kind` chooses the class of an item by looking at it, never by trial, so validation is fast and an error
names the one class that was meant. An item of an unknown ``type`` is refused, and the error names the type. Items with
token ids become the ``…ForTraining`` variant of their class.
"""

from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, Literal, NotRequired, Self, TypeAlias, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    model_validator,
    with_config,
)
from typing_extensions import TypedDict

# Keys that newer endpoints add to a part are kept.
_OPEN = ConfigDict(extra="allow")


@with_config(_OPEN)
class NeMoGymResponseInputText(TypedDict):
    """Text that is sent to the model."""

    text: str
    type: Literal["input_text"]


@with_config(_OPEN)
class ResponseInputImage(TypedDict):
    """An image, given by URL (possibly ``data:``) or by the id of an uploaded file."""

    type: Literal["input_image"]
    detail: NotRequired[str | None]
    file_id: NotRequired[str | None]
    image_url: NotRequired[str | None]


@with_config(_OPEN)
class ResponseInputFile(TypedDict):
    """A document, given by content, URL or the id of an uploaded file."""

    type: Literal["input_file"]
    file_data: NotRequired[str | None]
    file_id: NotRequired[str | None]
    file_url: NotRequired[str | None]
    filename: NotRequired[str | None]


@with_config(_OPEN)
class ResponseInputAudio(TypedDict):
    """An audio recording, encoded as base64."""

    type: Literal["input_audio"]
    input_audio: dict[str, Any]


@with_config(_OPEN)
class ResponseOutputTextParam(TypedDict):
    """Text of an earlier answer, without the other fields of an output message."""

    text: str
    type: Literal["output_text"]


@with_config(_OPEN)
class ResponseOutputRefusalParam(TypedDict):
    """A refusal in an earlier answer, without the other fields of an output message."""

    refusal: str
    type: Literal["refusal"]


InputPart: TypeAlias = Annotated[
    NeMoGymResponseInputText | ResponseInputImage | ResponseInputFile | ResponseInputAudio,
    Field(discriminator="type"),
]
# An easy message may also be one of the assistant.
EasyPart: TypeAlias = Annotated[
    NeMoGymResponseInputText
    | ResponseInputImage
    | ResponseInputFile
    | ResponseInputAudio
    | ResponseOutputTextParam
    | ResponseOutputRefusalParam,
    Field(discriminator="type"),
]

# The tags name the branch in validation errors.
TextOrInputParts: TypeAlias = Annotated[str, Tag("text")] | Annotated[list[InputPart], Tag("parts")]
TextOrParts: TypeAlias = Annotated[str, Tag("text")] | Annotated[list[EasyPart], Tag("parts")]

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


def _or_empty(value: Any) -> Any:
    return [] if value is None else value


class ReturnedItem(BaseModel):
    """Base of everything a model returns."""

    model_config = ConfigDict(extra="allow")


class NeMoGymEasyInputMessage(BaseModel):
    """A message as people write it: a role and text."""

    content: TextOrParts
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"


class NeMoGymMessage(BaseModel):
    """An input message with a status, as endpoints return it in lists."""

    content: list[InputPart]
    role: Literal["user", "system", "developer"]
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseOutputText(ReturnedItem):
    """Text that the model wrote."""

    # Some endpoints send null instead of an empty list.
    annotations: Annotated[list[dict[str, Any]], BeforeValidator(_or_empty)]
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[dict[str, Any]] | None = None


class NeMoGymResponseOutputRefusal(ReturnedItem):
    """The model's explanation of why it does not answer."""

    refusal: str
    type: Literal["refusal"] = "refusal"


class NeMoGymResponseOutputMessage(ReturnedItem):
    """An answer of the model."""

    id: str
    content: list[Annotated[NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal, Field(discriminator="type")]]
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymSummary(ReturnedItem):
    """One paragraph of reasoning."""

    text: str
    type: Literal["summary_text"] = "summary_text"


class NeMoGymResponseReasoningItem(ReturnedItem):
    """The model's reasoning before it answered."""

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None

    # Endpoints return a status here but refuse it when it is sent back.
    @model_validator(mode="after")
    def _drop_status(self) -> Self:
        if self.__pydantic_extra__ and self.__pydantic_extra__.pop("status", self) is not self:
            self.__pydantic_fields_set__.discard("status")
        return self


class NeMoGymResponseFunctionToolCall(ReturnedItem):
    """A tool call of the model. ``arguments`` is JSON text exactly as generated, valid or not."""

    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymFunctionCallOutput(BaseModel):
    """The result of a tool call."""

    call_id: str
    output: TextOrInputParts
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


HostedItemType: TypeAlias = Literal[
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "web_search_call",
]
HOSTED_ITEM_TYPES: Final = frozenset(get_args(HostedItemType))


class HostedToolItem(BaseModel):
    """A call of a tool that the endpoint ran itself, or its result; kept unchanged."""

    model_config = ConfigDict(extra="allow")

    type: HostedItemType


class TokenIDLogProbMixin(BaseModel):
    """The exact tokens of one model call, stored on the last item of that call."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: Any | None = None


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    """An easy message with its tokens."""


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    """An input message with its tokens."""


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    """An answer with its tokens."""


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    """A tool call with its tokens."""


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    """Reasoning with its tokens."""


RESPONSES_TO_TRAIN: Final[dict[type[BaseModel], type[BaseModel]]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}

_KIND_OF_CLASS: Final[dict[type[BaseModel], str]] = {
    NeMoGymEasyInputMessage: "easy_message",
    NeMoGymMessage: "message",
    NeMoGymResponseOutputMessage: "output_message",
    NeMoGymResponseReasoningItem: "reasoning",
    NeMoGymResponseFunctionToolCall: "function_call",
    NeMoGymFunctionCallOutput: "function_call_output",
    HostedToolItem: "hosted_tool",
    NeMoGymEasyInputMessageForTraining: "easy_message+tokens",
    NeMoGymMessageForTraining: "message+tokens",
    NeMoGymResponseOutputMessageForTraining: "output_message+tokens",
    NeMoGymResponseReasoningItemForTraining: "reasoning+tokens",
    NeMoGymResponseFunctionToolCallForTraining: "function_call+tokens",
}


def item_kind(item: Any) -> str | None:
    """The tag of the class that an item is meant to be; for an unknown ``type``, that type."""
    if not isinstance(item, dict):
        return next((_KIND_OF_CLASS[cls] for cls in type(item).__mro__ if cls in _KIND_OF_CLASS), None)
    kind = item.get("type", "message")
    if kind == "message":
        kind = _message_kind(item)
    elif not isinstance(kind, str):
        return None
    elif kind in HOSTED_ITEM_TYPES:
        return "hosted_tool"
    if kind != "function_call_output" and item.get("generation_token_ids") is not None:
        return f"{kind}+tokens"
    return kind


# Three classes have the type "message": only outputs have an id, and only inputs listed by an endpoint have a status.
def _message_kind(item: dict[str, Any]) -> str:
    if isinstance(item.get("content"), list):
        if item.get("role") == "assistant":
            if "id" in item:
                return "output_message"
        elif "status" in item:
            return "message"
    return "easy_message"


NeMoGymResponseInputItem: TypeAlias = Annotated[
    Annotated[NeMoGymEasyInputMessage, Tag("easy_message")]
    | Annotated[NeMoGymMessage, Tag("message")]
    | Annotated[NeMoGymResponseOutputMessage, Tag("output_message")]
    | Annotated[NeMoGymResponseReasoningItem, Tag("reasoning")]
    | Annotated[NeMoGymResponseFunctionToolCall, Tag("function_call")]
    | Annotated[NeMoGymFunctionCallOutput, Tag("function_call_output")]
    | Annotated[HostedToolItem, Tag("hosted_tool")]
    | Annotated[NeMoGymEasyInputMessageForTraining, Tag("easy_message+tokens")]
    | Annotated[NeMoGymMessageForTraining, Tag("message+tokens")]
    | Annotated[NeMoGymResponseOutputMessageForTraining, Tag("output_message+tokens")]
    | Annotated[NeMoGymResponseReasoningItemForTraining, Tag("reasoning+tokens")]
    | Annotated[NeMoGymResponseFunctionToolCallForTraining, Tag("function_call+tokens")],
    Discriminator(item_kind),
    # Each instance is serialized by its own class, because searching the union for it costs more than writing it.
    SerializeAsAny(),
]
# Outputs are sent back as inputs, so both are the same union.
NeMoGymResponseOutputItem: TypeAlias = NeMoGymResponseInputItem
NeMoGymResponseInput: TypeAlias = list[NeMoGymResponseInputItem]
# The tags name the branch in validation errors: ``input.items.0.function_call.call_id``.
TextOrItems: TypeAlias = Annotated[str, Tag("text")] | Annotated[NeMoGymResponseInput, Tag("items")]

# Our name, the module of the package, and its name there.
HOSTED_CLASSES: Final = {
    "NeMoGymResponseMcpCall": ("responses.response_output_item", "McpCall"),
    "NeMoGymResponseMcpListTools": ("responses.response_output_item", "McpListTools"),
    "NeMoGymResponseMcpApprovalRequest": ("responses.response_output_item", "McpApprovalRequest"),
    "NeMoGymResponseCodeInterpreterToolCall": ("responses", "ResponseCodeInterpreterToolCall"),
    "NeMoGymResponseComputerToolCall": ("responses", "ResponseComputerToolCall"),
    "NeMoGymResponseCustomToolCall": ("responses", "ResponseCustomToolCall"),
    "NeMoGymResponseFileSearchToolCall": ("responses", "ResponseFileSearchToolCall"),
    "NeMoGymResponseFunctionWebSearch": ("responses", "ResponseFunctionWebSearch"),
    "NeMoGymImageGenerationCall": ("responses.response_output_item", "ImageGenerationCall"),
    "NeMoGymLocalShellCall": ("responses.response_output_item", "LocalShellCall"),
    "NeMoGymChatCompletionMessageCustomToolCall": ("chat", "ChatCompletionMessageCustomToolCall"),
}


@cache
def hosted_class(name: str) -> type[Any]:
    """The class of this name: a subclass of the ``openai`` package's own, or a plain item without that package.

    It is made on first use, because that package takes long to import and is needed for nothing else.
    """
    module, theirs = HOSTED_CLASSES[name]
    try:
        base = getattr(import_module(f"openai.types.{module}"), theirs)
    except (ImportError, AttributeError):  # not installed, or a release that does not have it
        return type(name, (HostedToolItem,), {"__module__": "nemo_gym.openai_utils"})
    bases = (base,) if module == "chat" else (base, HostedToolItem)
    return type(name, bases, {"__module__": "nemo_gym.openai_utils"})
