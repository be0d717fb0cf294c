"""Bodies that a handler passes on: checked, but not turned into objects until their fields are needed.

A handler declares such a body as ``body: ForwardedParams = Body()``; without ``Body()``, FastAPI would take it for a
query parameter. In a direct call, the handler gets the JSON unchanged after a check of its outline, which costs a fifth
of validating it. If the outline leaves any doubt, and in every call that goes through FastAPI, the pydantic ``model``
decides; it also provides the schema of the route.
"""

from typing import Any, ClassVar, Self

import msgspec
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from nemo_gym.io.json import decode_exactly, encode_json


class UnreadBody:
    """A JSON object, as text, as fields, or both."""

    __slots__ = ("_fields", "_text", "outline")

    model: ClassVar[type[BaseModel]]
    # Reads the outline of the text. It must refuse whatever the model might refuse.
    decoder: ClassVar[msgspec.json.Decoder[Any]]

    def __init__(self, text: bytes | None = None, outline: Any = None, fields: dict[str, Any] | None = None) -> None:
        self._text = text
        self._fields = fields
        self.outline = outline  # what the decoder saw; None if the model decided

    @classmethod
    def read(cls, text: bytes) -> Self:
        """The body of a direct call; a ValueError means that the model has to decide."""
        try:
            str(text, "utf-8")  # the decoder does not check strings that it skips
            return cls(text, cls.decoder.decode(text))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None

    @property
    def text(self) -> bytes:
        """The JSON."""
        if self._text is None:
            self._text = encode_json(self._fields)
        return self._text

    @property
    def fields(self) -> dict[str, Any]:
        """The object; the same one every time."""
        if self._fields is None:
            self._fields = decode_exactly(self.text)
        return self._fields

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def of_model(model: BaseModel) -> "UnreadBody":
            return cls(fields={**model.__dict__, **(model.__pydantic_extra__ or {})})

        return core_schema.no_info_after_validator_function(of_model, handler.generate_schema(cls.model))
