"""The Chat Completions request: messages and tools as plain dictionaries, options as fields.

Messages are forwarded, so they stay dictionaries; keys that are not named here (``reasoning_content``, token ids, …)
travel with them. Options that are not fields of the request are ignored.
"""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, Tag, with_config
from typing_extensions import TypedDict

_OPEN = ConfigDict(extra="allow")


@with_config(_OPEN)
class NeMoGymChatCompletionContentPartTextParam(TypedDict):
    """Text."""

    text: str
    type: Literal["text"]


class ImageURL(TypedDict):
    """Where the image is (also ``data:``), and how closely to look."""

    url: str
    detail: NotRequired[str]


@with_config(_OPEN)
class NeMoGymChatCompletionContentPartImageParam(TypedDict):
    """An image."""

    image_url: ImageURL
    type: Literal["image_url"]


@with_config(_OPEN)
class OtherContentPartParam(TypedDict):
    """Audio, files, refusals and what endpoints add: forwarded unread."""

    type: str


ContentPart: TypeAlias = Annotated[
    NeMoGymChatCompletionContentPartTextParam | NeMoGymChatCompletionContentPartImageParam | OtherContentPartParam,
    Field(union_mode="left_to_right"),
]
Content: TypeAlias = Annotated[str, Tag("text")] | Annotated[list[ContentPart], Tag("parts")]


@with_config(_OPEN)
class NeMoGymChatCompletionMessageToolCallFunctionParam(TypedDict):
    """The function a tool call names; ``arguments`` is JSON text."""

    arguments: str
    name: str


@with_config(_OPEN)
class NeMoGymChatCompletionMessageToolCallParam(TypedDict):
    """A tool call of an earlier answer."""

    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


@with_config(_OPEN)
class NeMoGymChatCompletionUserMessageParam(TypedDict):
    """What the user said."""

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
    tool_calls: NotRequired[list[NeMoGymChatCompletionMessageToolCallParam] | None]
    name: NotRequired[str]


class NeMoGymChatCompletionAssistantMessageForTrainingParam(NeMoGymChatCompletionAssistantMessageParam):
    """An earlier answer with its tokens."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: NotRequired[Any]


@with_config(_OPEN)
class NeMoGymChatCompletionToolMessageParam(TypedDict):
    """What a tool answered."""

    content: Content
    role: Literal["tool"]
    tool_call_id: str


# Token ids are keys of the assistant message like any other, so the training variant needs no branch of its own here.
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


class NeMoGymChatCompletionCreateParamsNonStreaming(BaseModel):
    """What to ask the model, and how."""

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
    tools: SerializeAsAny[list[NeMoGymChatCompletionToolParam] | None] = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None
    stream: Literal[False] | None = None
