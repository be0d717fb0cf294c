"""What model servers have in common: passing requests on, reading answers, and answering with errors.

A reader belongs to one model at one endpoint. An unusable answer becomes a ``ModelCallError`` that names both and says
what to do; a repaired answer is logged, once for each kind of repair. Every model server also offers Anthropic's
Messages API, which is translated here to a handler of the Responses API.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from nemo_gym.conversion.anthropic.serving import event_bytes, message_events, messages_to_request, response_to_message
from nemo_gym.conversion.endings import mark_cut_off, unanswered, unknown_finish
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.conversion.reading import (
    ReadResponse,
    error_body,
    explain,
    has_unknown_items,
    read_chat_completion,
    read_response,
)
from nemo_gym.conversion.streams import BrokenStreamError
from nemo_gym.conversion.unknown_items import release_items
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.schemas.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError, ModelErrorKind

logger = logging.getLogger(__name__)


REQUEST_KEYS: Final = frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields)
HOSTED_TOOLS_HINT: Final = "remove hosted tools (web_search, …) from the request: only function tools can be run here"
STREAM_HINT: Final = "ask the endpoint not to stream, or look at its log for why it stopped"
# What a conversion raises for a request that was passed on without validation.
MALFORMED: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class ForwardedParams(BaseModel):
    """A request that is passed on unchanged. Only its keys are checked here; the endpoint checks the rest."""

    model_config = ConfigDict(extra="allow")

    input: Any

    @model_validator(mode="after")
    def _only_known_keys(self) -> Self:
        unknown = (self.__pydantic_extra__ or {}).keys() - REQUEST_KEYS
        if unknown:
            raise ValueError(f"Extra inputs are not permitted: {', '.join(sorted(unknown))}")
        return self

    def asked(self) -> dict[str, Any]:
        """The request as plain data."""
        return {**(self.__pydantic_extra__ or {}), "input": self.input}

    def to_send(self) -> dict[str, Any]:
        """The request for an endpoint of the same protocol: without what it would refuse, with its items restored."""
        if isinstance(self.input, list):
            self.input = release_items(self.input)
            for item in self.input:
                if isinstance(item, dict) and "status" in item and item.get("type") == "reasoning":
                    del item["status"]
        return self.asked()


class ForwardedChatParams(NeMoGymChatCompletionCreateParamsNonStreaming):
    """A chat request that keeps options outside the protocol (``top_k``, ``chat_template_kwargs``)."""

    model_config = ConfigDict(extra="allow")


def refuse_malformed(asked: Mapping[str, Any]) -> None:
    """Raise the validation error of a request that could not be converted, if validation finds one."""
    try:
        NeMoGymResponseCreateParamsNonStreaming.model_validate(asked)
    except ValidationError as error:
        errors = [{**entry, "loc": ("body", *entry["loc"])} for entry in error.errors(include_url=False)]
        raise RequestValidationError(errors, body=asked) from None


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

    def note(self, *notes: str) -> None:
        """Log what is unusual about the endpoint's answers, once."""
        for note in notes:
            self.warn_once(f"it answers with {note}")

    def warn_once(self, words: str) -> None:
        """Log a warning that names the model, unless it was logged before."""
        if words not in self._logged:
            self._logged.add(words)
            logger.warning("model %s at %s: %s", self.address.model, self.address.endpoint, words)


def answer_model_error(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request whose model call failed."""
    assert isinstance(error, ModelCallError)
    body = error.body()
    if request.url.path == "/v1/messages":
        body = {"type": "error", **body}
    return JSONResponse(body, status_code=error.status, headers=error.headers())


Responses = Callable[..., Awaitable[NeMoGymResponse]]


async def answer_messages(responses: Responses, request: Request, body: AnthropicMessagesRequest) -> Response:
    """The answer to a request of the Messages API. Options without an equivalent are logged once per app."""
    try:
        asked, lost = messages_to_request(body.model_dump(exclude_none=True))
    except UnsupportedContentError as error:
        problem = {"type": "invalid_request_error", "message": str(error)}
        return JSONResponse({"type": "error", "error": problem}, status_code=400)
    _report(request.app.state, lost)
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(asked)
    response = await responses(**_values(responses, request, params))
    return messages_answer(response_to_message(response.model_dump()), stream=bool(body.stream))


def messages_answer(message: dict[str, Any], *, stream: bool) -> Response:
    """A message as the client asked for it: whole, or as a stream of events, sent once the message is complete."""
    if stream:
        return Response(event_bytes(message_events(message)), media_type="text/event-stream")
    return Response(orjson.dumps(message), media_type="application/json")


def _report(state: Any, lost: list[str]) -> None:
    if not hasattr(state, "reported_options"):
        state.reported_options = set()
    for name in sorted(set(lost) - state.reported_options):
        state.reported_options.add(name)
        logger.warning("the Responses API has no equivalent for %s: it is not sent", name)


def _values(handler: Responses, request: Request, body: Any) -> dict[str, Any]:
    """The arguments of a handler: always the body, and the request if the handler declares it."""
    return {
        name: request if parameter.annotation is Request or name == "request" else body
        for name, parameter in inspect.signature(handler).parameters.items()
    }
