"""An endpoint that speaks Anthropic's Messages API: its headers, its busy signal, and how its completions are read."""

from dataclasses import dataclass, field, replace
from typing import Final

from multidict import CIMultiDict
from pydantic import ValidationError

from nemo_gym.conversion.anthropic.message_completions import notes_on, unknown_stop
from nemo_gym.conversion.anthropic.message_streams import message_of_stream
from nemo_gym.conversion.reading import first_errors, unwrapped_error
from nemo_gym.conversion.stream_events import BrokenStreamError, assembled, is_stream
from nemo_gym.schemas.messages import AnthropicMessage
from nemo_gym.servers.models.completion_reader import CompletionReader
from nemo_gym.servers.models.endpoint import RETRY_ERROR_CODES, Endpoint
from nemo_gym.servers.models.failures import STREAM_HINT

OVERLOADED: Final = 529
BASE_URL_HINT: Final = "check that the base URL belongs to Anthropic's Messages API, like https://api.anthropic.com/v1"


@dataclass(slots=True, kw_only=True)
class AnthropicEndpoint(Endpoint):
    """A base URL with what every request to it has in common."""

    version: str = field(default="2023-06-01")

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is created twice, and super() would refer to the first one.
        Endpoint.__post_init__(self)
        own = {"Content-Type": "application/json", "x-api-key": self.api_key, "anthropic-version": self.version}
        self._headers = CIMultiDict(own | self.default_headers)
        self._policy = replace(self._policy, statuses=frozenset({*RETRY_ERROR_CODES, OVERLOADED}))


class MessageReader(CompletionReader):
    """Reads what one model returns."""

    def message(self, content: bytes) -> AnthropicMessage:
        """Read the message in a body."""
        try:
            whole = assembled(content, message_of_stream) if is_stream(content) else content
            message = AnthropicMessage.model_validate_json(whole)
        except BrokenStreamError as error:
            raise self.address.unusable(content, str(error), hint=STREAM_HINT) from error
        except ValidationError as error:
            reason = f"no message ({first_errors(error)})"
            raise self.address.unusable(unwrapped_error(content), reason, hint=BASE_URL_HINT) from error
        self.note(*notes_on(message))
        return message

    def whole_message(self, content: bytes) -> AnthropicMessage:
        """Read a message that is known to be complete, or to be cut off."""
        message = self.message(content)
        if reason := unknown_stop(message):
            raise self.address.unusable(content, f"a message that ended for the unknown reason {reason!r}")
        return message
