"""What every model server offers besides its own routes: the Messages API, token counts, the list of models, errors.

Errors have the shape of the protocol of the request: OpenAI's ``error`` object, or Anthropic's ``type: error``.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson
from fastapi import Body, FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from nemo_gym.conversion.anthropic.message_completions import lost_in_completion, response_to_message
from nemo_gym.conversion.anthropic.message_requests import messages_to_request
from nemo_gym.conversion.anthropic.message_streams import message_events
from nemo_gym.conversion.losses import LossPolicy, Way
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.conversion.stream_events import event_bytes
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.schemas.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.models.endpoint import EVENT_STREAM
from nemo_gym.servers.models.failures import ModelCallError, ModelErrorKind
from nemo_gym.servers.models.model_requests import UnreadRequest, takes_unread, valid_request

MESSAGES: Final = "/v1/messages"
INVALID: Final = "invalid_request_error"
NOT_FOUND: Final = "not_found_error"
SHOWN_ERRORS: Final = 3
LISTED_ERRORS: Final = 20
# The error types that Anthropic's clients know.
ANTHROPIC_TYPES: Final[Mapping[str, str]] = {
    ModelErrorKind.RATE_LIMITED: "rate_limit_error",
    ModelErrorKind.TIMEOUT: "timeout_error",
    ModelErrorKind.REJECTED: INVALID,
}

Responses = Callable[..., Awaitable[Any]]
CountTokens = Callable[[Mapping[str, Any]], Awaitable[int | None]]
CountMessageTokens = Callable[[AnthropicMessagesRequest], Awaitable[int | None]]


def add_error_handlers(app: FastAPI) -> None:
    """Reply to errors in the shape of the protocol of the request."""
    app.add_exception_handler(ModelCallError, reply_to_model_error)
    app.add_exception_handler(RequestValidationError, reply_to_invalid_request)
    app.add_exception_handler(UnsupportedContentError, reply_to_unsupported)
    app.add_exception_handler(HTTPException, reply_to_http_error)


def reply_to_model_error(request: Request, error: Exception) -> JSONResponse:
    """The reply to a request whose model call failed."""
    assert isinstance(error, ModelCallError)
    body = error.body()
    if is_anthropic(request):
        kind = ANTHROPIC_TYPES.get(error.kind, "api_error")
        body = {"type": "error", "error": {**body["error"], "type": kind, "kind": str(error.kind)}}
    return JSONResponse(body, status_code=error.status, headers=error.headers())


def reply_to_invalid_request(request: Request, error: Exception) -> JSONResponse:
    """The reply to a request that failed validation; ``detail`` lists what is wrong with it, and repeats none of it."""
    assert isinstance(error, RequestValidationError)
    errors = [{key: entry[key] for key in ("type", "loc", "msg")} for entry in error.errors()]
    places = [".".join(map(str, entry["loc"][1:])) for entry in errors]
    shown = [f"{place or 'body'}: {entry['msg']}" for place, entry in zip(places, errors, strict=True)][:SHOWN_ERRORS]
    more = f"; and {len(errors) - len(shown)} more" if len(errors) > len(shown) else ""
    body = error_body(request, "; ".join(shown) + more, param=places[0] if places else None)
    return JSONResponse({**body, "detail": jsonable_encoder(errors[:LISTED_ERRORS])}, status_code=422)


def reply_to_http_error(request: Request, error: Exception) -> JSONResponse:
    """The reply to a request that no route takes, or that a handler refused; ``detail`` is as FastAPI has it."""
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code in (404, 405) and message == HTTPStatus(error.status_code).phrase:
        message = f"{message}: this model server has no {request.method} {request.url.path}"
    kind = NOT_FOUND if error.status_code == 404 else INVALID
    body = error_body(request, message, kind=kind) | {"detail": error.detail}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


def reply_to_unsupported(request: Request, error: Exception) -> JSONResponse:
    """The reply to a request that can't be converted."""
    return JSONResponse(error_body(request, str(error)), status_code=400)


def error_body(request: Request, message: str, *, kind: str = INVALID, param: str | None = None) -> dict[str, Any]:
    """An error in the shape of the protocol of the request."""
    if is_anthropic(request):
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def is_anthropic(request: Request) -> bool:
    """Whether a request was made in Anthropic's protocol."""
    return request.url.path.startswith(MESSAGES) or "anthropic-version" in request.headers


async def reply_to_messages(
    responses: Responses,
    request: Request,
    body: AnthropicMessagesRequest,
    *,
    losses: LossPolicy,
    extras: Collection[str] = (),
) -> Response:
    """The reply to a request of the Messages API, by a handler of ``/v1/responses``.

    ``extras`` names options that the server can send although the Responses API does not have them.
    """
    kind = UnreadRequest if takes_unread(responses) else NeMoGymResponseCreateParamsNonStreaming
    converted = valid_request(kind, request_of_messages(body, losses, extras))
    result = await responses(**_values(responses, request, converted))
    if isinstance(result, Response) and result.status_code != 200:
        return result
    response = result.model_dump() if isinstance(result, NeMoGymResponse) else orjson.loads(result.body)
    losses.check(Way.TO_MESSAGES, lost_in_completion(response))
    return messages_reply(response_to_message(response), stream=bool(body.stream))


def request_of_messages(
    body: AnthropicMessagesRequest, losses: LossPolicy, extras: Collection[str] = ()
) -> dict[str, Any]:
    """A request of the Messages API as one of the Responses API."""
    request, lost = messages_to_request(body.model_dump(exclude_none=True, warnings=False), extras=extras)
    losses.check(Way.FROM_MESSAGES, lost)
    return request


def messages_reply(message: dict[str, Any], *, stream: bool = False) -> Response:
    """A message in the form the client wants: whole, or as a stream of events, sent once it is complete."""
    if stream:
        return Response(event_bytes(message_events(message)), media_type=EVENT_STREAM)
    return Response(orjson.dumps(message), media_type="application/json")


def _values(handler: Responses, request: Request, body: Any) -> dict[str, Any]:
    """The arguments of a handler: always the body, and the request if the handler declares it."""
    return {
        name: request if parameter.annotation is Request or name == "request" else body
        for name, parameter in inspect.signature(handler).parameters.items()
    }


def add_counting_routes(app: FastAPI, count: CountTokens, count_messages: CountMessageTokens) -> None:
    """Add ``/v1/responses/input_tokens`` and ``/v1/messages/count_tokens``; a server that can't count returns None."""

    async def input_tokens(request: Request, body: UnreadRequest = Body()) -> JSONResponse:
        number = await count(body.fields)
        if number is None:
            return _uncountable(request)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": number})

    async def count_tokens(request: Request, body: AnthropicMessagesRequest = Body()) -> JSONResponse:
        number = await count_messages(body)
        return _uncountable(request) if number is None else JSONResponse({"input_tokens": number})

    app.post("/v1/responses/input_tokens")(input_tokens)
    app.post(f"{MESSAGES}/count_tokens")(count_tokens)


def _uncountable(request: Request) -> JSONResponse:
    message = "this model server can't count tokens without generating: its endpoint has no route for that"
    return JSONResponse(error_body(request, message, kind="not_supported"), status_code=501)


def add_models_route(app: FastAPI, names: Sequence[str]) -> None:
    """Add ``/v1/models``, in a shape that clients of both protocols understand."""
    listed = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "rollout-gym",
            "type": "model",
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }
        for name in names
    ]

    async def models() -> dict[str, Any]:
        return {"object": "list", "data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]}

    async def model(request: Request, name: str) -> JSONResponse:
        found = next((entry for entry in listed if entry["id"] == name), None)
        if found is None:
            message = f"there is no model {name!r} here, only {', '.join(map(repr, names))}"
            return JSONResponse(error_body(request, message, kind=NOT_FOUND), status_code=404)
        return JSONResponse(found)

    app.get("/v1/models")(models)
    app.get("/v1/models/{name:path}")(model)
