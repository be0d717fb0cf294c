"""Anthropic's Messages API around a handler of the Responses API: what every model server offers besides its own."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from nemo_gym.conversion.anthropic.answers_out import event_bytes, message_events, response_to_message
from nemo_gym.conversion.anthropic.requests_in import messages_to_request
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.schemas.anthropic import AnthropicMessagesRequest
from nemo_gym.schemas.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

logger = logging.getLogger(__name__)

Responses = Callable[..., Awaitable[NeMoGymResponse]]


async def answer_messages(responses: Responses, request: Request, body: AnthropicMessagesRequest) -> Response:
    """The answer to a request of the Messages API; options that can't be carried over are named once an app."""
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
    """A message as the client wants it: whole, or as events that were waiting for its end."""
    if stream:
        return Response(event_bytes(message_events(message)), media_type="text/event-stream")
    return Response(orjson.dumps(message), media_type="application/json")


def _report(state: Any, lost: list[str]) -> None:
    if not hasattr(state, "unsaid_options"):
        state.unsaid_options = set()
    for name in sorted(set(lost) - state.unsaid_options):
        state.unsaid_options.add(name)
        logger.warning("the Responses API has no equivalent for %s: it is not sent", name)


def _values(handler: Responses, request: Request, body: Any) -> dict[str, Any]:
    """What a handler takes: always the body, and the request if it asks for one."""
    return {
        name: request if parameter.annotation is Request or name == "request" else body
        for name, parameter in inspect.signature(handler).parameters.items()
    }
