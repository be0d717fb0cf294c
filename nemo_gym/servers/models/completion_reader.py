"""Reads the completions of one model at one endpoint.

What can't be used becomes a ``ModelCallError`` that names both and says what to do; what could be used after a repair
is logged, each kind once.
"""

import logging
from typing import Final

import orjson
from pydantic import ValidationError

from nemo_gym.conversion.reading import (
    Options,
    ReadResponse,
    first_errors,
    has_unknown_items,
    mark_cut_off,
    missing_completion,
    read_chat_completion,
    read_response,
    unknown_finish,
    unwrapped_error,
)
from nemo_gym.conversion.stream_events import BrokenStreamError
from nemo_gym.io.json import NotFiniteError
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.servers.models.failures import STREAM_HINT, ModelAddress, ModelErrorKind

logger = logging.getLogger(__name__)

HOSTED_TOOLS_HINT: Final = "remove hosted tools (web_search, …) from the request: only function tools can be run here"


class CompletionReader:
    """Reads what one model returns."""

    def __init__(self, address: ModelAddress) -> None:
        self.address = address
        self._logged: set[str] = set()

    def response(self, content: bytes, request: Options) -> ReadResponse:
        """The response in a body, given the request."""
        try:
            reading = read_response(content, request)
        except BrokenStreamError as error:
            raise self.address.unusable(content, str(error), hint=STREAM_HINT) from error
        except NotFiniteError as error:
            raise self.address.unusable(unwrapped_error(content), f"not JSON ({error})") from error
        except ValidationError as error:
            hint = HOSTED_TOOLS_HINT if has_unknown_items(error) else None
            raise self.address.unusable(
                unwrapped_error(content), f"not a response ({first_errors(error)})", hint=hint
            ) from error
        if reading.response.status == "failed" or reading.response.error:
            # An agent could not distinguish this from a model that has nothing to say.
            raise self.address.unusable(content, "a failed response")
        if status := missing_completion(reading.response):
            raise self.address.unusable(content, status)
        self.note(*reading.notes)
        if mark_cut_off(reading.response, request):
            self.note("responses that ended at their limit and are called complete: they are incomplete")
            return reading._replace(is_repaired=True)
        return reading

    def chat_completion(self, content: bytes) -> NeMoGymChatCompletion:
        """The chat completion in a body; it has at least one choice."""
        try:
            completion, notes = read_chat_completion(content)
        except BrokenStreamError as error:
            raise self.address.unusable(content, str(error), hint=STREAM_HINT) from error
        except NotFiniteError as error:
            raise self.address.unusable(unwrapped_error(content), f"not JSON ({error})") from error
        except ValidationError as error:
            raise self.address.unusable(
                unwrapped_error(content), f"not a chat completion ({first_errors(error)})"
            ) from error
        if not completion.choices:
            raise self.address.unusable(unwrapped_error(content), "a chat completion without choices")
        if completion.choices[0].finish_reason == "error":
            reported = (completion.choices[0].model_extra or {}).get("error") or "the endpoint gives no details"
            raise self.address.error(ModelErrorKind.MODEL_ERROR, f"the completion ended with an error: {reported}")
        if reason := unknown_finish(completion):
            raise self.address.unusable(content, f"a chat completion that ended for the unknown reason {reason!r}")
        self.note(*notes)
        return completion

    def token_count(self, content: bytes) -> int:
        """The number of input tokens in a body."""
        try:
            number = orjson.loads(content)["input_tokens"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            number = None
        if not isinstance(number, int):
            raise self.address.unusable(content, "no number of tokens")
        return number

    def note(self, *notes: str) -> None:
        """Log what is unusual about the endpoint's completions, once."""
        for note in notes:
            self.warn_once(f"it returns {note}")

    def warn_once(self, message: str) -> None:
        """Log a warning that names the model, unless it was logged before."""
        if message not in self._logged:
            self._logged.add(message)
            logger.warning("model %s at %s: %s", self.address.model, self.address.endpoint, message)
