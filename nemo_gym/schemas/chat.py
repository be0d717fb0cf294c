"""The Chat Completions response. Keys that are not named here are kept: endpoints put reasoning and token ids there."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, SerializeAsAny, Tag

from nemo_gym.schemas.item_union import TokenIDLogProbMixin


class ChatPart(BaseModel):
    """Base of everything in a completion: keys of newer endpoints are kept."""

    model_config = ConfigDict(extra="allow")


class NeMoGymFunction(ChatPart):
    """The function a tool call names; ``arguments`` is JSON text, valid or not, exactly as generated."""

    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCall(ChatPart):
    """The model asks for a tool."""

    id: str
    function: NeMoGymFunction
    # Some endpoints leave it out; there is no other kind that a Gym could run.
    type: Literal["function"] = "function"


class NeMoGymChatCompletionMessage(ChatPart):
    """An answer of the model."""

    content: str | None = None
    refusal: str | None = None
    role: Literal["assistant"]
    annotations: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None
    function_call: NeMoGymFunction | None = None
    tool_calls: list[NeMoGymChatCompletionMessageToolCall] | None = None


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
    """One of the answers."""

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
    """The answers of a model."""

    id: str
    choices: list[NeMoGymChoice]
    created: int
    model: str
    object: Literal["chat.completion"]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None
