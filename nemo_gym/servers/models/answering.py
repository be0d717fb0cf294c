"""What model servers have in common: passing requests on, reading answers, and answering with errors.

A reader belongs to one model at one endpoint. What it can't use becomes a ``ModelCallError`` that names both and says
what to do; what it could use after a repair is logged, each kind once.
"""

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec
import orjson
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from nemo_gym.conversion.chat_answers import ChatAnswer, answer_of, uuid4
from nemo_gym.conversion.chat_texts import ChatTexts
from nemo_gym.conversion.parts import SAMPLING_EXTRAS, UnsupportedContentError
from nemo_gym.conversion.plain_answers import read_plain_completion
from nemo_gym.conversion.reading import (
    ReadResponse,
    error_body,
    explain,
    has_unknown_items,
    mark_cut_off,
    read_chat_completion,
    read_response,
    unanswered,
    unknown_finish,
)
from nemo_gym.conversion.request_texts import RequestFrame, RequestTexts, SplitRequest, encode_list, joined
from nemo_gym.conversion.streams import BrokenStreamError
from nemo_gym.conversion.unknown_items import UNKNOWN_ITEM, release_items
from nemo_gym.io.json import EncodedJson, decode_exactly, encode_json
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.direct.routes import UnreadBody
from nemo_gym.servers.models.failures import STREAM_HINT, ModelAddress, ModelErrorKind

logger = logging.getLogger(__name__)


# Keys that affect only how a request is served and not its answer. The interface's request type lacks them.
SERVICE_KEYS: Final = frozenset(
    {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"}
)
# Keys that only endpoints with the Responses API understand. The interface's request type lacks them too.
HOSTED_KEYS: Final = frozenset({"access_programs", "context_management", "conversation", "image", "moderation"})
REQUEST_KEYS: Final = (
    frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields) | SERVICE_KEYS | SAMPLING_EXTRAS | HOSTED_KEYS
)
HOSTED_TOOLS_HINT: Final = "remove hosted tools (web_search, …) from the request: only function tools can be run here"
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
_OUTLINE: Final = msgspec.defstruct(
    "_Outline",
    [("input", msgspec.Raw), *((key, msgspec.Raw | UnsetType, UNSET) for key in _OPTIONS)],
    forbid_unknown_fields=True,
    gc=False,
)
# What all model servers of the process know about the texts of requests. It only saves time: whatever is not found
# here is parsed.
TEXTS: Final = RequestTexts("input", _OUTLINE)
# Under this name, they have the items as they are sent to an endpoint of the same protocol.
_SENT: Final = "sent"
AS_IT_CAME: Final = True


class ForwardedParams(UnreadBody):
    """A request that is passed on unchanged. Only its keys are checked here; the endpoint checks the rest."""

    __slots__ = ()

    model = _RequestKeys
    decoder = msgspec.json.Decoder(str | list[_ItemOutline])

    @classmethod
    def read(cls, text: bytes) -> Self:
        """The body of a direct call; a ValueError means that the model has to decide."""
        return cls(text, TEXTS.split(text, cls.decoder.decode))

    @property
    def split(self) -> SplitRequest | None:
        """The parts of the text; None if the request was not read from one, or can't be split."""
        split: SplitRequest | None = self.outline
        return split

    def asked(self) -> dict[str, Any]:
        """The request as plain data."""
        return dict(self.fields)

    @property
    def options(self) -> Mapping[str, Any]:
        """The request, possibly without its conversation."""
        return self.fields if self.outline is None else self.outline.frame.options

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the request; the default if the request does not have it."""
        return self.options.get(name, default)

    def to_send(self) -> dict[str, Any]:
        """The request for an endpoint of the same protocol: items restored, and without what it would refuse."""
        asked = self.asked()
        if isinstance(asked["input"], list):
            asked["input"] = _to_send(asked["input"])
        return asked

    def sent_to(self, model: str, defaults: Mapping[str, Any]) -> bytes:
        """The JSON of that request for a model; options that are not set are taken from the defaults."""
        split = self.split
        if split is None:
            return encode_json({**defaults, **self.to_send(), "model": model})
        key = model, encode_json(defaults) if defaults else b""
        before, after = split.frame.products.get(key) or _shell(split.frame, key, defaults)
        return b"".join((before, _sent_conversation(split, self.decoder.decode), after))


def _to_send(items: list[Any]) -> list[Any]:
    released = release_items(items)
    for item in released:
        if isinstance(item, dict) and "status" in item and item.get("type") == "reasoning":
            del item["status"]
    return released


def _shell(frame: RequestFrame, key: tuple[str, bytes], defaults: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """What is sent before and after a conversation."""
    model, _ = key
    if not defaults and "model" not in frame.options:
        # The text is an object with at least one key, so ours can be inserted before the first.
        shell = b'{"model":%b,%b' % (encode_json(model), frame.head.lstrip()[1:]), frame.tail
    else:
        marker = encode_json(uuid4().hex)
        fields = {**defaults, **frame.options, "input": EncodedJson(marker), "model": model}
        before, _, after = encode_json(fields).partition(marker)
        shell = before, after
    frame.products[key] = shell
    return shell


def _sent_conversation(asked: SplitRequest, decode: Callable[[bytes], Any]) -> bytes | memoryview:
    """The conversation as an endpoint of the same protocol takes it; what was sent before is not looked at again."""
    new, items, known, end = asked.new, asked.items, None, asked.end
    if asked.beginning is not None:
        known = asked.beginning.products.get(_SENT)
        if known is None:
            new, items = asked.conversation, decode(asked.conversation)
    is_unchanged = isinstance(items, str) or all(item.is_sent_as_is for item in items)
    product: Any = AS_IT_CAME
    sent: bytes | memoryview = memoryview(asked.text)[len(asked.frame.head) : end]  # not copied twice
    if not is_unchanged or known not in (None, AS_IT_CAME):
        if known is AS_IT_CAME and asked.beginning is not None:
            known = asked.beginning.text[asked.beginning.head_size + 1 :]
        product = joined(known or b"", new[1:-1] if is_unchanged else encode_list(_to_send(decode_exactly(new))))
        sent = b"[%b]" % product
    if asked.text[end - 2 : end] == b"}]":
        TEXTS.keep(asked, end - 1, _SENT, product, 0 if product is AS_IT_CAME else len(product))
    return sent


class ConvertedParams(ForwardedParams):
    """A request for an endpoint of another protocol, which is converted text by text."""

    __slots__ = ()

    decoder = msgspec.json.Decoder(str | list[msgspec.Raw])


class ChatConverter(Protocol):
    """Converts requests to Chat Completions."""

    def request_to_chat(self, asked: Mapping[str, Any], /) -> dict[str, Any]:
        """The same request; raises ``UnsupportedContentError`` for what a chat can't express."""


def chat_text_of(body: ConvertedParams, chats: ChatTexts) -> bytes | None:
    """A request as the JSON of a chat; None if only ``chat_of`` can convert it, or say what is wrong with it."""
    if body.split is not None:
        with contextlib.suppress(UnsupportedContentError, *MALFORMED):
            return chats.request(body.split)
    return None


def chat_of(body: ForwardedParams, converter: ChatConverter, address: ModelAddress) -> dict[str, Any]:
    """A request for a model, as a chat."""
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
