"""Parts of a message's content, as plain dictionaries.

Parts are forwarded far more often than they are read, so they stay dictionaries: validation checks the fields named
here and keeps every other key unchanged. Nothing that a caller supplied is dropped.
"""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, Field, Tag, with_config
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
# An easy message may also hold what the assistant said.
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
