"""Items of a conversation in the Responses API, one class each. Their union is in :mod:`nemo_gym.schemas.item_union`.

What a model returned (:class:`ReturnedItem`) keeps keys that are not named here, because some endpoints want them
back; what a caller sends ignores them, because some endpoints refuse them.
"""

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nemo_gym.schemas.content import InputPart, TextOrInputParts, TextOrParts

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


def _or_empty(value: Any) -> Any:
    return [] if value is None else value


class ReturnedItem(BaseModel):
    """Base of everything a model returns."""

    model_config = ConfigDict(extra="allow")


class NeMoGymEasyInputMessage(BaseModel):
    """A message as people write it: a role and a text."""

    content: TextOrParts
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"


class NeMoGymMessage(BaseModel):
    """An input message with a status, as endpoints list it."""

    content: list[InputPart]
    role: Literal["user", "system", "developer"]
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseOutputText(ReturnedItem):
    """Text that the model wrote."""

    # Some endpoints send null for "none".
    annotations: Annotated[list[dict[str, Any]], BeforeValidator(_or_empty)]
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[dict[str, Any]] | None = None


class NeMoGymResponseOutputRefusal(ReturnedItem):
    """The model's explanation why it does not answer."""

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
    """What the model thought before it answered."""

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None

    # Endpoints return a status here and refuse it when it is sent back.
    @model_validator(mode="after")
    def _drop_status(self) -> Self:
        if self.__pydantic_extra__ and self.__pydantic_extra__.pop("status", self) is not self:
            self.__pydantic_fields_set__.discard("status")
        return self


class NeMoGymResponseFunctionToolCall(ReturnedItem):
    """The model asks for a tool. ``arguments`` is JSON text, valid or not, exactly as generated."""

    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymFunctionCallOutput(BaseModel):
    """What the tool answered."""

    call_id: str
    output: TextOrInputParts
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None
