"""The request that a model server takes: one class for every server that forwards or converts what it is sent.

Only the names of its keys are checked here; the endpoint checks the rest, and knows options that the interface's
request type does not have. The conversation is parsed by those who convert it. A request that can't be converted is
validated in full, so that the error names what is wrong with it.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import msgspec
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from nemo_gym.conversion.parts import SAMPLING_EXTRAS, UNKNOWN_ITEM, UnsupportedContentError, release_items
from nemo_gym.io.json import decode_exactly, encode_json
from nemo_gym.schemas.chat import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.direct.routes import UnreadBody
from nemo_gym.servers.models.failures import ModelAddress, ModelErrorKind

# Keys that affect how a request is served and not what is generated. The interface's request type lacks them.
SERVICE_KEYS: Final = frozenset(
    {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"}
)
# Keys that only endpoints with the Responses API understand. The interface's request type lacks them too.
HOSTED_KEYS: Final = frozenset({"access_programs", "context_management", "conversation", "image", "moderation"})
REQUEST_KEYS: Final = (
    frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields) | SERVICE_KEYS | SAMPLING_EXTRAS | HOSTED_KEYS
)
# What a conversion raises for a request that was not validated.
MALFORMED: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)

Params = TypeVar("Params")


class _RequestKeys(BaseModel):
    """A request whose keys are those of the protocol, or sampling options that inference servers add."""

    model_config = ConfigDict(extra="allow")

    input: Any

    @model_validator(mode="after")
    def _only_known_keys(self) -> Self:
        extra = self.__pydantic_extra__ or {}
        unknown = extra.keys() - REQUEST_KEYS
        if unknown:
            raise ValueError(f"Extra inputs are not permitted: {', '.join(sorted(unknown))}")
        if extra.get("stream"):  # routes that can stream have already removed it
            raise ValueError("stream: Input should be true or false")
        return self


class _ItemOutline(msgspec.Struct, gc=False, rename={"wrapped": UNKNOWN_ITEM}):
    type: Any = UNSET
    role: Any = None
    status: Any = UNSET
    wrapped: msgspec.Raw | UnsetType = UNSET


# A request that mentions ``stream`` is left to FastAPI, because the value matters.
_OPTIONS: Final = tuple(sorted(REQUEST_KEYS - {"input", "stream"}))
_OUTLINE: Final = msgspec.defstruct(
    "_Outline",
    [("input", str | list[_ItemOutline]), *((key, msgspec.Raw | UnsetType, UNSET) for key in _OPTIONS)],
    forbid_unknown_fields=True,
    gc=False,
)


class UnreadRequest(UnreadBody):
    """A request of the Responses API whose content is left to the endpoint."""

    __slots__ = ()

    model = _RequestKeys
    decoder = msgspec.json.Decoder(_OUTLINE)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option, without parsing the others."""
        if self.outline is None:
            return self.fields.get(name, default)
        value = getattr(self.outline, name)
        return default if value is UNSET else decode_exactly(bytes(value))

    def sent_to(self, model: str, defaults: Mapping[str, Any]) -> bytes:
        """The request for a model of the same protocol: items restored, without what endpoints refuse.

        Options that are not set are taken from the defaults. A request that needs no change is passed on as it came,
        without parsing its conversation; this is the only place that does so.
        """
        if not defaults and self._is_sent_as_it_came():
            # The text is an object with at least one key, so ours can be inserted before the first.
            return b"".join((b'{"model":', encode_json(model), b",", memoryview(self.text.lstrip())[1:]))
        request = {**defaults, **self.fields, "model": model}
        if isinstance(request["input"], list):
            request["input"] = list(map(_without_status, release_items(request["input"])))
        return encode_json(request)

    def _is_sent_as_it_came(self) -> bool:
        outline = self.outline
        if outline is None or outline.model is not UNSET:
            return False
        for item in () if isinstance(outline.input, str) else outline.input:
            if item.wrapped is not UNSET or (item.type is UNSET and item.role == "assistant"):
                return False
            if item.type == "reasoning" and item.status is not UNSET:
                return False
        return True


class SentOptions(NamedTuple):
    """The options of a request as its model gets them; most completions can be read without parsing any of them."""

    request: UnreadRequest
    model: str
    defaults: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """The value of an option; None if it is not set."""
        return self.model if name == "model" else self.request.get(name, self.defaults.get(name))


def takes_unread(handler: Callable[..., Any]) -> bool:
    """Whether a handler takes such requests, and with them options that only its endpoint knows."""
    return any(parameter.annotation is UnreadRequest for parameter in inspect.signature(handler).parameters.values())


def _without_status(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") != "reasoning" or "status" not in item:
        return item
    return {name: value for name, value in item.items() if name != "status"}


class ForwardedChatParams(NeMoGymChatCompletionCreateParamsNonStreaming):
    """A chat request that keeps options outside the protocol (``top_k``, ``chat_template_kwargs``)."""

    model_config = ConfigDict(extra="allow")


class ChatConverter(Protocol):
    """Converts requests to Chat Completions."""

    def request_to_chat(self, request: Mapping[str, Any], /) -> dict[str, Any]:
        """The same request; raises ``UnsupportedContentError`` for what a chat can't express."""


def chat_of(request: Mapping[str, Any], converter: ChatConverter, address: ModelAddress) -> dict[str, Any]:
    """A request for a model, as a chat."""
    try:
        return converter.request_to_chat(request)
    except UnsupportedContentError as error:
        raise address.error(ModelErrorKind.REJECTED, str(error)) from error
    except MALFORMED:
        refuse_malformed(request)
        raise


def valid_request(model: type[Params], request: Mapping[str, Any]) -> Params:
    """The request as an object of the type that its route takes; raises the route's validation error."""
    try:
        return TypeAdapter(model).validate_python(request)
    except ValidationError as error:
        errors = [{**entry, "loc": ("body", *entry["loc"])} for entry in error.errors(include_url=False)]
        raise RequestValidationError(errors, body=request) from None


def refuse_malformed(request: Mapping[str, Any]) -> None:
    """Raise the validation error of a request that could not be converted, if validation finds one."""
    valid_request(NeMoGymResponseCreateParamsNonStreaming, request)
