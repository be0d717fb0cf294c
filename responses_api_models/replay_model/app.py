"""A model server that records the exchanges with another model, and replays them without it.

    record    forward every request and record its answer, failures included
    replay    answer from the recording, byte for byte; an unknown request is an error that names the nearest one
    lenient   answer from the recording; forward and record what is not in it

Each rollout gets the answers that it got when they were recorded, in the same order, however many run at once.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from fastapi import Request, Response
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.config.locate import started_in
from nemo_gym.config_types import ModelServerRef
from nemo_gym.errors import ConfigError
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError, ModelErrorKind
from nemo_gym.servers.rollout_scope import Occurrences, current_scope
from responses_api_models.replay_model.matching import (
    RecordedChat,
    RecordedRequest,
    canonical,
    first_difference,
    key_of,
    likeness,
)
from responses_api_models.replay_model.recording import Answer, Asked, DamagedRecordingError, Recorder, Recording
from responses_api_models.replay_model.upstream import EndpointSettings, Forwarded, Source, source_of

logger = logging.getLogger(__name__)

RESPONSES: Final = RecordedRequest.path
CHAT: Final = RecordedChat.path
COMPARED: Final = 200  # how many requests are searched for the nearest
DAMAGED_HINT: Final = "restore the file from a copy, or record what is missing (mode: lenient)"
HINT: Final = "record it (mode: record or lenient), or make the run as it was recorded: same tasks, settings and agent"


class ReplayModelConfig(BaseResponsesAPIModelConfig):
    """Which recording to use, how, and whom to ask."""

    recording: str
    mode: Literal["record", "replay", "lenient"] = "replay"
    upstream: ModelServerRef | EndpointSettings | None = Field(default=None)

    @model_validator(mode="after")
    def _needs_upstream(self) -> Self:
        if self.mode != "replay" and self.upstream is None:
            raise ValueError(f"mode {self.mode} needs an upstream to ask")
        return self


class ReplayModel(SimpleResponsesAPIModel):
    """A model server in front of another, or in its place."""

    config: ReplayModelConfig
    # Answers from a cache would be missing in the recording.
    uses_cache: ClassVar[bool] = False

    _recorder: Recorder | None = PrivateAttr(default=None)
    _recording: Recording | None = PrivateAttr(default=None)
    _source: Source | None = PrivateAttr(default=None)
    _address: ModelAddress = PrivateAttr()
    _asked: Occurrences = PrivateAttr(default_factory=Occurrences)

    def model_post_init(self, context: Any, /) -> None:
        """Open the recording."""
        super().model_post_init(context)
        path = started_in() / self.config.recording
        self._address = ModelAddress(f"recording {path.name}", "replay")
        self._source = source_of(self.config.upstream, self.server_client)
        try:
            if self.config.mode != "replay":
                self._recorder = Recorder(path)
            if self.config.mode != "record":
                self._recording = Recording(path)
                if self._recording.unreadable:
                    logger.warning("recording %s: %s", path, DamagedRecordingError(self._recording.unreadable))
        except OSError as error:
            raise _unusable(path, error) from error

    def responses_handler(self) -> Callable[..., Any]:
        """Choose what answers ``/v1/responses``: the recorded bytes."""
        return self.relay_responses

    def chat_completions_handler(self) -> Callable[..., Any]:
        """Choose what answers ``/v1/chat/completions``: the recorded bytes."""
        return self.relay_chat_completions

    async def relay_responses(self, request: Request, body: RecordedRequest = Body()) -> Response:
        """Answer a Responses API request."""
        return _response(await self._answer(RESPONSES, await request.body(), request.cookies, key=body.key()))

    async def relay_chat_completions(self, request: Request, body: RecordedChat = Body()) -> Response:
        """Answer a Chat Completions request."""
        return _response(await self._answer(CHAT, await request.body(), request.cookies, key=body.key()))

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Answer a request that is already parsed."""
        return NeMoGymResponse.model_validate_json(await self._good_answer(RESPONSES, body))

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Answer a request that is already parsed."""
        return NeMoGymChatCompletion.model_validate_json(await self._good_answer(CHAT, body))

    async def _good_answer(self, path: str, body: BaseModel) -> bytes:
        answer = (await self._answer(path, encode_json(body), {})).answer
        if answer.status != 200:
            raise self._address.refusal(answer.status, answer.headers, answer.body)
        return answer.body

    async def _answer(self, path: str, body: bytes, cookies: Mapping[str, str], *, key: str | None = None) -> Forwarded:
        scope = current_scope()
        key = key or key_of(path, canonical(body))
        if self._recording is not None:
            try:
                place = self._recording.find(key, scope, self._asked.next(scope, key))
                if place is not None:
                    return Forwarded(self._recording.answer(place))
            except DamagedRecordingError as error:
                if self.config.mode == "replay":
                    raise self._address.error(ModelErrorKind.REJECTED, str(error), hint=DAMAGED_HINT) from error
        asked = Asked(key, path, canonical(body), scope)
        if self._source is None or self._recorder is None:
            raise self._unknown(asked)
        forwarded = await self._source.ask(path, body, cookies)
        self._record(asked, forwarded.answer)
        return forwarded

    def _record(self, asked: Asked, answer: Answer) -> None:
        assert self._recorder is not None
        try:
            place = self._recorder.append(asked, answer)
        except OSError as error:
            reason = f"the exchange can't be recorded: {error.strerror or error}"
            raise self._address.error(ModelErrorKind.MODEL_ERROR, reason, hint="make room on the disk") from error
        if self._recording is not None:
            self._recording.add(asked.key, asked.scope[:3] if asked.scope is not None else None, place)

    def _unknown(self, asked: Asked) -> ModelCallError:
        assert self._recording is not None
        if self._recording.is_known(asked.key):
            reason = "this rollout has asked for this more often than when it was recorded"
            return self._address.error(ModelErrorKind.REJECTED, reason, hint=HINT)
        return self._address.error(ModelErrorKind.REJECTED, f"not recorded: {self._nearest(asked)}", hint=HINT)

    def _nearest(self, asked: Asked) -> str:
        assert self._recording is not None
        found = [
            (likeness(text, asked.text), scope, text)
            for scope, place in self._recording.requests(asked.scope, COMPARED)
            if (text := self._recording.text(place)) is not None
        ]
        if not found:
            return "the recording is empty"
        _, scope, text = max(found, key=lambda one: one[0])
        whose = f"of task {scope[0]} rollout {scope[1]}" if scope else "of nobody in particular"
        return f"the nearest recorded request ({whose}) differs {first_difference(text, asked.text)}"


def _response(forwarded: Forwarded) -> Response:
    answer = forwarded.answer
    if answer.status == 200 and not answer.headers and not forwarded.cookies:
        return JsonResponse(answer.body)
    response = Response(answer.body, answer.status, dict(answer.headers), media_type="application/json")
    for name, cookie in forwarded.cookies.items():
        response.set_cookie(name, getattr(cookie, "value", cookie))
    return response


def _unusable(path: Path, error: OSError) -> ConfigError:
    missing = isinstance(error, FileNotFoundError)
    return ConfigError(
        f"recording: {path} can't be opened: {error.strerror or error}",
        hint="record one first, with mode: record" if missing else "choose another file, or correct its permissions",
    )


if __name__ == "__main__":
    ReplayModel.run_webserver()
