"""What model servers have in common: passing requests on, reading answers, and answering with errors.

A reader belongs to one model at one endpoint. What it can't use becomes a ``ModelCallError`` that names both and says
what to do; what it could use after a repair is logged, each kind once.
"""

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec
import orjson
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from nemo_gym.conversion.chat_answers import ChatAnswer, answer_of
from nemo_gym.conversion.endings import mark_cut_off, unanswered, unknown_finish
from nemo_gym.conversion.parts import SAMPLING_EXTRAS, UnsupportedContentError
from nemo_gym.conversion.plain_completion import read_plain_completion
from nemo_gym.conversion.reading import (
    ReadResponse,
    error_body,
    explain,
    has_unknown_items,
    read_chat_completion,
    read_response,
)
from nemo_gym.conversion.streams import BrokenStreamError
from nemo_gym.conversion.unknown_items import UNKNOWN_ITEM, release_items
from nemo_gym.io.json import decode_exactly, encode_json
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.direct.unread import UnreadBody
from nemo_gym.servers.models.failures import STREAM_HINT, ModelAddress, ModelErrorKind

logger = logging.getLogger(__name__)


# Keys that affect only how a request is served and not its answer. The interface's request type lacks them.
SERVICE_KEYS: Final = frozenset({"prompt_cache_key", "safety_identifier"})
REQUEST_KEYS: Final = (
    frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields) | SERVICE_KEYS | SAMPLING_EXTRAS | {"conversation"}
)
HOSTED_TOOLS_HINT: Final = "remove hosted tools (web_search, …) from the request: only function tools can be run here"
# From this number of bytes on, it is cheaper to look for what is new in a conversation than to read all of it.
LONG: Final = 4096
# What a conversion raises for a request that was passed on without validation.
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

    @property
    def is_sent_as_is(self) -> bool:
        """Whether ``ForwardedParams.to_send`` would leave the request unchanged."""
        if self.type is UNSET:
            return self.role != "assistant" and self.wrapped is UNSET
        return (self.type != "reasoning" or self.status is UNSET) and self.wrapped is UNSET


# A request that mentions ``stream`` is validated in full, because the value matters.
_OPTIONS: Final = tuple(sorted(REQUEST_KEYS - {"input", "stream"}))
_values_of: Final = attrgetter(*_OPTIONS)


def _outline(conversation: Any) -> Any:
    """A request whose options are not read."""
    fields: list[Any] = [("input", conversation), *((key, msgspec.Raw | UnsetType, UNSET) for key in _OPTIONS)]
    return msgspec.defstruct("_Outline", fields, forbid_unknown_fields=True, gc=False)


def _goes_as_it_came(outline: Any) -> bool:
    """Whether nothing of a request is changed before it is sent."""
    if outline is None or outline.model is not UNSET:
        return False
    return isinstance(outline.input, str) or all(item.is_sent_as_is for item in outline.input)


class ForwardedParams(UnreadBody):
    """A request that is passed on unchanged. Only its keys are checked here; the endpoint checks the rest."""

    __slots__ = ()

    model = _RequestKeys
    decoder = msgspec.json.Decoder(_outline(str | list[_ItemOutline]))

    def asked(self) -> dict[str, Any]:
        """The request as plain data."""
        return dict(self.fields)

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the request, read alone; the default if the request does not have it."""
        if self.outline is None:
            return self.fields.get(name, default)
        given = getattr(self.outline, name)
        return default if given is UNSET else msgspec.json.decode(given)

    def to_send(self) -> dict[str, Any]:
        """The request for an endpoint of the same protocol: items restored, and without what it would refuse."""
        asked = self.asked()
        if isinstance(asked["input"], list):
            asked["input"] = release_items(asked["input"])
            for item in asked["input"]:
                if isinstance(item, dict) and "status" in item and item.get("type") == "reasoning":
                    del item["status"]
        return asked

    def sent_to(self, model: str, defaults: Mapping[str, Any]) -> bytes:
        """The JSON of that request for a model; options that are not set are taken from the defaults."""
        if defaults or not _goes_as_it_came(self.outline):
            return encode_json({**defaults, **self.to_send(), "model": model})
        # The text is an object with at least one key, so ours can be inserted before the first.
        return b'{"model":%b,%b' % (encode_json(model), self.text.lstrip()[1:])


class ConvertedParams(ForwardedParams):
    """A request for an endpoint of another protocol: a long conversation is left to the conversion, item by item."""

    __slots__ = ("_options",)

    decoder = msgspec.json.Decoder(_outline(str | list[msgspec.Raw]))

    def __init__(self, text: bytes | None = None, outline: Any = None, fields: dict[str, Any] | None = None) -> None:
        super().__init__(text, outline, fields)
        self._options: Mapping[str, Any] | None = fields

    @property
    def items(self) -> list[msgspec.Raw] | None:
        """The items of a long conversation, unread; None if ``options`` contains them."""
        if self.outline is None or isinstance(self.outline.input, str) or len(self.text) < LONG:
            return None
        given: list[msgspec.Raw] = self.outline.input
        return given

    @property
    def options(self) -> Mapping[str, Any]:
        """Everything else in the request."""
        if self._options is None and self.items is None:
            self._options = self.fields
        elif self._options is None:
            given = zip(_OPTIONS, _values_of(self.outline), strict=True)
            self._options = {name: decode_exactly(bytes(value)) for name, value in given if value is not UNSET}
        return self._options


class ChatConverter(Protocol):
    """Converts requests to Chat Completions."""

    def request_to_chat(self, asked: Mapping[str, Any], /) -> dict[str, Any]:
        """The same request; raises ``UnsupportedContentError`` for what a chat can't express."""

    def unread_to_chat(self, asked: Mapping[str, Any], items: Sequence[msgspec.Raw], /) -> dict[str, Any]:
        """The same for a conversation that has not been parsed; ``messages`` is JSON already."""


def chat_of(
    body: ConvertedParams, converter: ChatConverter, address: ModelAddress, *, reads_messages: bool = False
) -> dict[str, Any]:
    """A request for a model, as a chat; ``reads_messages`` if the messages are needed as objects."""
    if body.items is not None and not reads_messages:
        # What can't be converted is converted again as a whole, because validation needs that to say what is wrong.
        with contextlib.suppress(UnsupportedContentError, *MALFORMED):
            return converter.unread_to_chat(body.options, body.items)
    asked = body.asked()
    try:
        return converter.request_to_chat(asked)
    except UnsupportedContentError as error:
        raise address.error(ModelErrorKind.REJECTED, str(error)) from error
    except MALFORMED:
        refuse_malformed(asked)
        raise


class ForwardedChatParams(NeMoGymChatCompletionCreateParamsNonStreaming):
    """A chat request that keeps options outside the protocol (``top_k``, ``chat_template_kwargs``)."""

    model_config = ConfigDict(extra="allow")


def forwarded_kind(handler: Callable[..., Any]) -> type[ForwardedParams] | None:
    """The type of unparsed requests that a handler takes, with options that only its endpoint knows, if it does."""
    for parameter in inspect.signature(handler).parameters.values():
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, ForwardedParams):
            return parameter.annotation
    return None


def valid_request(model: type[Params], asked: Mapping[str, Any]) -> Params:
    """The request as an object of the type that its route takes; raises the route's validation error."""
    try:
        return TypeAdapter(model).validate_python(asked)
    except ValidationError as error:
        errors = [{**entry, "loc": ("body", *entry["loc"])} for entry in error.errors(include_url=False)]
        raise RequestValidationError(errors, body=asked) from None


def refuse_malformed(asked: Mapping[str, Any]) -> None:
    """Raise the validation error of a request that could not be converted, if validation finds one."""
    valid_request(NeMoGymResponseCreateParamsNonStreaming, asked)


class AnswerReader:
    """Reads the answers of one model."""

    def __init__(self, address: ModelAddress) -> None:
        self.address = address
        self._logged: set[str] = set()

    def response(self, content: bytes, asked: Mapping[str, Any]) -> ReadResponse:
        """The response in a body, given what was asked."""
        try:
            reading = read_response(content, asked)
        except BrokenStreamError as error:
            raise self.address.unusable(content, str(error), hint=STREAM_HINT) from error
        except ValidationError as error:
            hint = HOSTED_TOOLS_HINT if has_unknown_items(error) else None
            raise self.address.unusable(error_body(content), f"not a response ({explain(error)})", hint=hint) from error
        if reading.response.status == "failed" or reading.response.error:
            # An agent could not distinguish this from a model that has nothing to say.
            raise self.address.unusable(content, "a failed response")
        if status := unanswered(reading.response):
            raise self.address.unusable(content, status)
        self.note(*reading.notes)
        if mark_cut_off(reading.response, asked):
            self.note("responses that ended at their limit and are called complete: they are incomplete")
            return reading._replace(is_repaired=True)
        return reading

    def completion(self, content: bytes) -> NeMoGymChatCompletion:
        """The chat completion in a body; it has at least one choice."""
        try:
            completion, notes = read_chat_completion(content)
        except BrokenStreamError as error:
            raise self.address.unusable(content, str(error), hint=STREAM_HINT) from error
        except ValidationError as error:
            raise self.address.unusable(error_body(content), f"not a chat completion ({explain(error)})") from error
        if not completion.choices:
            raise self.address.unusable(error_body(content), "a chat completion without choices")
        if completion.choices[0].finish_reason == "error":
            said = (completion.choices[0].model_extra or {}).get("error") or "the endpoint gives no details"
            raise self.address.error(ModelErrorKind.MODEL_ERROR, f"the answer ended with an error: {said}")
        if reason := unknown_finish(completion):
            raise self.address.unusable(content, f"a chat completion that ended for the unknown reason {reason!r}")
        self.note(*notes)
        return completion

    def chat_answer(self, content: bytes) -> ChatAnswer:
        """The first answer of the chat completion in a body."""
        return read_plain_completion(content) or answer_of(self.completion(content))

    def count(self, content: bytes) -> int:
        """The number of input tokens in a body."""
        try:
            number = orjson.loads(content)["input_tokens"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            number = None
        if not isinstance(number, int):
            raise self.address.unusable(content, "no number of tokens")
        return number

    def note(self, *notes: str) -> None:
        """Log what is unusual about the endpoint's answers, once."""
        for note in notes:
            self.warn_once(f"it answers with {note}")

    def warn_once(self, words: str) -> None:
        """Log a warning that names the model, unless it was logged before."""
        if words not in self._logged:
            self._logged.add(words)
            logger.warning("model %s at %s: %s", self.address.model, self.address.endpoint, words)
