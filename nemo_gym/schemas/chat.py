"""Chat Completions: the request and the response.

Messages and tools of a request are forwarded, so they stay dictionaries; keys that are not named here
(``reasoning_content``, token ids, …) are kept. Options that are not fields of the request are ignored. A response keeps
all keys, because endpoints put reasoning and token ids there.
"""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, SerializeAsAny, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.schemas.items import TokenIDLogProbMixin

_OPEN = ConfigDict(extra="allow")


@with_config(_OPEN)
class NeMoGymChatCompletionContentPartTextParam(TypedDict):
    """Text."""

    text: str
    type: Literal["text"]


class ImageURL(TypedDict):
    """The URL of the image (possibly ``data:``), and the level of detail."""

    url: str
    detail: NotRequired[str]


@with_config(_OPEN)
class NeMoGymChatCompletionContentPartImageParam(TypedDict):
    """An image."""

    image_url: ImageURL
    type: Literal["image_url"]


@with_config(_OPEN)
class OtherContentPartParam(TypedDict):
    """Audio, files, refusals and extensions of endpoints, all forwarded without being read."""

    type: str


ContentPart: TypeAlias = Annotated[
    NeMoGymChatCompletionContentPartTextParam | NeMoGymChatCompletionContentPartImageParam | OtherContentPartParam,
    Field(union_mode="left_to_right"),
]
Content: TypeAlias = Annotated[str, Tag("text")] | Annotated[list[ContentPart], Tag("parts")]


@with_config(_OPEN)
class NeMoGymChatCompletionMessageToolCallFunctionParam(TypedDict):
    """The function that a tool call names; ``arguments`` is JSON text."""

    arguments: str
    name: str


@with_config(_OPEN)
class NeMoGymChatCompletionMessageToolCallParam(TypedDict):
    """A tool call in an earlier completion."""

    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


@with_config(_OPEN)
class CustomToolInputParam(TypedDict):
    """The input of a tool that takes free text."""

    input: str
    name: str


@with_config(_OPEN)
class CustomToolCallParam(TypedDict):
    """A call, in an earlier completion, of a tool that takes free text."""

    id: str
    custom: CustomToolInputParam
    type: Literal["custom"]


def _call_kind(call: Any) -> str:
    kind = call.get("type") if isinstance(call, dict) else getattr(call, "type", None)
    return "custom" if kind == "custom" else "function"


PastToolCall: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionMessageToolCallParam, Tag("function")]
    | Annotated[CustomToolCallParam, Tag("custom")],
    Discriminator(_call_kind),
]


@with_config(_OPEN)
class NeMoGymChatCompletionUserMessageParam(TypedDict):
    """A message from the user."""

    content: Content
    role: Literal["user"]
    name: NotRequired[str]


@with_config(_OPEN)
class NeMoGymChatCompletionSystemMessageParam(TypedDict):
    """Instructions."""

    content: Content
    role: Literal["system"]
    name: NotRequired[str]


@with_config(_OPEN)
class NeMoGymChatCompletionDeveloperMessageParam(TypedDict):
    """Instructions, under their newer name."""

    content: Content
    role: Literal["developer"]
    name: NotRequired[str]


@with_config(_OPEN)
class NeMoGymChatCompletionAssistantMessageParam(TypedDict):
    """An earlier answer."""

    role: Literal["assistant"]
    content: NotRequired[Content | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[PastToolCall] | None]
    name: NotRequired[str]


class NeMoGymChatCompletionAssistantMessageForTrainingParam(NeMoGymChatCompletionAssistantMessageParam):
    """An earlier answer with its tokens."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: NotRequired[Any]


@with_config(_OPEN)
class NeMoGymChatCompletionToolMessageParam(TypedDict):
    """The result of a tool."""

    content: Content
    role: Literal["tool"]
    tool_call_id: str


# Token ids are ordinary extra keys of the assistant message, so the training variant needs no branch here.
NeMoGymChatCompletionMessageParam: TypeAlias = Annotated[
    NeMoGymChatCompletionDeveloperMessageParam
    | NeMoGymChatCompletionSystemMessageParam
    | NeMoGymChatCompletionUserMessageParam
    | NeMoGymChatCompletionAssistantMessageParam
    | NeMoGymChatCompletionToolMessageParam,
    Field(discriminator="role"),
]


@with_config(_OPEN)
class NeMoGymFunctionDefinition(TypedDict):
    """A function that the model may call."""

    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


@with_config(_OPEN)
class NeMoGymChatCompletionToolParam(TypedDict):
    """A tool that the model may call."""

    function: NeMoGymFunctionDefinition
    type: Literal["function"]


@with_config(_OPEN)
class CustomToolDefinition(TypedDict):
    """A tool that takes free text."""

    name: str


@with_config(_OPEN)
class CustomToolParam(TypedDict):
    """A tool that takes free text, in the list of tools; few endpoints know them."""

    custom: CustomToolDefinition
    type: Literal["custom"]


OfferedTool: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionToolParam, Tag("function")] | Annotated[CustomToolParam, Tag("custom")],
    Discriminator(_call_kind),
]


class NeMoGymChatCompletionCreateParamsNonStreaming(BaseModel):
    """A request to a model: the conversation and the options."""

    messages: SerializeAsAny[list[NeMoGymChatCompletionMessageParam]]
    model: str | None = None
    audio: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    function_call: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: dict[str, str] | None = None
    modalities: list[str] | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = True
    prediction: dict[str, Any] | None = None
    presence_penalty: float | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    tools: SerializeAsAny[list[OfferedTool] | None] = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None
    # What only some providers know.
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    stream: Literal[False] | None = None


class ChatPart(BaseModel):
    """Base of everything in a completion; it keeps the keys of newer endpoints."""

    model_config = ConfigDict(extra="allow")


class NeMoGymFunction(ChatPart):
    """The function that a tool call names; ``arguments`` is JSON text exactly as generated, valid or not."""

    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCall(ChatPart):
    """A tool call of the model."""

    id: str
    function: NeMoGymFunction
    # Some endpoints leave it out; a Gym could not run any other kind.
    type: Literal["function"] = "function"


class CustomToolInput(ChatPart):
    """The input that the model gives to a tool that takes free text."""

    input: str
    name: str


class CustomToolCall(ChatPart):
    """The model's call of a tool that takes free text."""

    id: str
    custom: CustomToolInput
    type: Literal["custom"]


ToolCall: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionMessageToolCall, Tag("function")] | Annotated[CustomToolCall, Tag("custom")],
    Discriminator(_call_kind),
    SerializeAsAny(),
]


class NeMoGymChatCompletionMessage(ChatPart):
    """An answer of the model."""

    content: str | None = None
    refusal: str | None = None
    role: Literal["assistant"]
    annotations: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None
    function_call: NeMoGymFunction | None = None
    tool_calls: list[ToolCall] | None = None


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    """An answer with its tokens."""


def _message_kind(message: Any) -> str:
    if isinstance(message, dict):
        trained = message.get("generation_token_ids") is not None
    else:
        trained = isinstance(message, NeMoGymChatCompletionMessageForTraining)
    return "message+tokens" if trained else "message"


Message: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionMessage, Tag("message")]
    | Annotated[NeMoGymChatCompletionMessageForTraining, Tag("message+tokens")],
    Discriminator(_message_kind),
    SerializeAsAny(),
]


class NeMoGymChoice(ChatPart):
    """One of the alternatives in a completion."""

    finish_reason: str
    index: int
    logprobs: dict[str, Any] | None = None
    message: Message


class CompletionUsage(ChatPart):
    """Tokens of one completion."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    completion_tokens_details: dict[str, Any] | None = None
    prompt_tokens_details: dict[str, Any] | None = None


class NeMoGymChatCompletion(ChatPart):
    """A completion of a model."""

    id: str
    choices: list[NeMoGymChoice]
    created: int
    model: str
    object: Literal["chat.completion"]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None
