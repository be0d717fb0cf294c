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
from nemo_gym.conversion.gemini.gemini_completions import gemini_error, gemini_stream, response_to_gemini
from nemo_gym.conversion.gemini.gemini_requests import gemini_to_request
from nemo_gym.conversion.losses import LossPolicy, Way
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.conversion.stream_events import event_bytes
from nemo_gym.schemas.generate_content import GeminiCount, GeminiRequest
from nemo_gym.schemas.messages import AnthropicMessagesRequest
from nemo_gym.schemas.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.models.endpoint import EVENT_STREAM
from nemo_gym.servers.models.failures import ModelCallError, ModelErrorKind
from nemo_gym.servers.models.model_requests import UnreadRequest, takes_unread, valid_request
from nemo_gym.steps.recording import note_completion

MESSAGES: Final = "/v1/messages"
GEMINI: Final = "/v1beta/models"
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
    elif is_gemini(request):
        body = gemini_error(error.status, body["error"]["message"], kind=str(error.kind))
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
    body = error_body(request, message, kind=kind, status=error.status_code) | {"detail": error.detail}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


def reply_to_unsupported(request: Request, error: Exception) -> JSONResponse:
    """The reply to a request that can't be converted."""
    return JSONResponse(error_body(request, str(error)), status_code=400)


def error_body(
    request: Request, message: str, *, kind: str = INVALID, param: str | None = None, status: int = 400
) -> dict[str, Any]:
    """An error in the shape of the protocol of the request."""
    if is_anthropic(request):
        return {"type": "error", "error": {"type": kind, "message": message}}
    if is_gemini(request):
        return gemini_error(status, message)
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def is_anthropic(request: Request) -> bool:
    """Whether a request was made in Anthropic's protocol."""
    return request.url.path.startswith(MESSAGES) or "anthropic-version" in request.headers


def is_gemini(request: Request) -> bool:
    """Whether a request was made in Gemini's protocol."""
    path = request.url.path
    return path.startswith(GEMINI) or (path.startswith("/v1/models/") and request.method == "POST")


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
    response = await _response_to(responses, request, request_of_messages(body, losses, extras))
    if isinstance(response, Response):
        return response
    losses.check(Way.TO_MESSAGES, lost_in_completion(response))
    return messages_reply(response_to_message(response), stream=bool(body.stream))


async def _response_to(responses: Responses, request: Request, given: Mapping[str, Any]) -> dict[str, Any] | Response:
    """What a handler of ``/v1/responses`` says to a converted request: a response, or the reply if that is an error."""
    kind = UnreadRequest if takes_unread(responses) else NeMoGymResponseCreateParamsNonStreaming
    result = await responses(**_values(responses, request, valid_request(kind, given)))
    if isinstance(result, Response) and result.status_code != 200:
        return result
    if isinstance(result, NeMoGymResponse):
        return result.model_dump()
    response: dict[str, Any] = orjson.loads(result.body)
    return response


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


def add_gemini_routes(
    app: FastAPI, responses: Responses, count: CountTokens, *, losses: LossPolicy, extras: Collection[str] = ()
) -> None:
    """Add ``/v1beta/models/<name>:generateContent``, ``:streamGenerateContent`` and ``:countTokens``.

    ``responses`` handles ``/v1/responses``.
    """

    def converted(body: GeminiRequest, model: str) -> dict[str, Any]:
        given = body.model_dump(by_alias=True, exclude_none=True, warnings=False)
        request, lost = gemini_to_request(given, model=model, extras=extras)
        losses.check(Way.FROM_GEMINI, lost)
        return request

    async def gemini(request: Request, call: str) -> Response:
        model, _, method = call.rpartition(":")
        given = await _json_of(request)
        if method == "countTokens":
            counted = valid_request(GeminiCount, given)
            whole = counted.generate_content_request or GeminiRequest(contents=counted.contents or [])
            number = await count(converted(whole, model))
            return _uncountable(request) if number is None else JSONResponse({"totalTokens": number})
        if method not in ("generateContent", "streamGenerateContent"):
            raise HTTPException(404, f"there is no method {method!r} here, only generateContent and countTokens")
        body = valid_request(GeminiRequest, given)
        response = await _response_to(responses, request, converted(body, model))
        if isinstance(response, Response):
            return response
        note_completion(response)
        thinking = (body.generation_config or {}).get("thinkingConfig") or {}
        completion = response_to_gemini(response, thoughts=bool(thinking.get("includeThoughts")))
        if method == "generateContent":
            return Response(orjson.dumps(completion), media_type="application/json")
        as_events = request.query_params.get("alt") == "sse"
        kind = EVENT_STREAM if as_events else "application/json"
        return Response(gemini_stream(completion, as_events=as_events), media_type=kind)

    app.post(GEMINI + "/{call:path}")(gemini)
    app.post("/v1/models/{call:path}")(gemini)  # for clients that consider the protocol finished


async def _json_of(request: Request) -> Any:
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


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
    return JSONResponse(error_body(request, message, kind="not_supported", status=501), status_code=501)


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

    async def gemini_models() -> dict[str, Any]:
        methods = ["generateContent", "streamGenerateContent", "countTokens"]
        shown = {"version": "1", "supportedGenerationMethods": methods}
        return {"models": [{"name": f"models/{name}", "displayName": name, **shown} for name in names]}

    app.get(GEMINI)(gemini_models)
    app.get("/v1/models")(models)
    app.get("/v1/models/{name:path}")(model)
