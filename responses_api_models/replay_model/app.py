"""A model server that records the exchanges with another model, and replays them without it.

    record    forward every request and record its reply, failures included
    replay    reply from the recording, byte for byte; an unknown request is an error that names the nearest one
    lenient   reply from the recording; forward and record what is not in it

Each rollout gets the completions that it got when they were recorded, in the same order, however many run at once.
"""

import logging
from collections.abc import Mapping
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
from nemo_gym.servers.middleware.rollout_scope import Occurrences, current_scope
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError, ModelErrorKind
from nemo_gym.servers.models.streaming import CHAT_COMPLETIONS, RESPONSES
from responses_api_models.replay_model.matching import (
    AnyRequest,
    canonical,
    first_difference,
    key_of,
    likeness,
)
from responses_api_models.replay_model.recording import (
    DamagedRecordingError,
    RecordedReply,
    RecordedRequest,
    Recorder,
    Recording,
)
from responses_api_models.replay_model.upstream import EndpointSettings, Forwarded, Source, source_of

logger = logging.getLogger(__name__)

COMPARED: Final = 200  # how many requests are searched for the nearest
DAMAGED_HINT: Final = "restore the file from a copy, or record what is missing (mode: lenient)"
HINT: Final = "record it (mode: record or lenient), or make the run as it was recorded: same tasks, settings and agent"


class ReplayModelConfig(BaseResponsesAPIModelConfig):
    """Which recording to use, how, and what to call."""

    recording: str
    mode: Literal["record", "replay", "lenient"] = "replay"
    upstream: ModelServerRef | EndpointSettings | None = Field(default=None)

    @model_validator(mode="after")
    def _needs_upstream(self) -> Self:
        if self.mode != "replay" and self.upstream is None:
            raise ValueError(f"mode {self.mode} needs an upstream")
        return self


class ReplayModel(SimpleResponsesAPIModel):
    """A model server in front of another, or in its place."""

    config: ReplayModelConfig
    # Completions from a cache would be missing in the recording.
    uses_cache: ClassVar[bool] = False

    _recorder: Recorder | None = PrivateAttr(default=None)
    _recording: Recording | None = PrivateAttr(default=None)
    _source: Source | None = PrivateAttr(default=None)
    _address: ModelAddress = PrivateAttr()
    _requests: Occurrences = PrivateAttr(default_factory=Occurrences)

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

    async def relay_responses(self, request: Request, body: AnyRequest = Body()) -> Response:  # noqa: ARG002 - checked
        """Complete a Responses API request with the recorded bytes."""
        return _response(await self._reply_to(RESPONSES, await request.body(), request.cookies))

    async def relay_chat_completions(self, request: Request, body: AnyRequest = Body()) -> Response:  # noqa: ARG002
        """Complete a Chat Completions request with the recorded bytes."""
        return _response(await self._reply_to(CHAT_COMPLETIONS, await request.body(), request.cookies))

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Complete a request that is already parsed."""
        return NeMoGymResponse.model_validate_json(await self._good_reply(RESPONSES, body))

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """Complete a request that is already parsed."""
        return NeMoGymChatCompletion.model_validate_json(await self._good_reply(CHAT_COMPLETIONS, body))

    async def _good_reply(self, path: str, body: BaseModel) -> bytes:
        reply = (await self._reply_to(path, encode_json(body), {})).reply
        if reply.status != 200:
            raise self._address.refusal(reply.status, reply.headers, reply.body)
        return reply.body

    async def _reply_to(self, path: str, body: bytes, cookies: Mapping[str, str]) -> Forwarded:
        scope, text = current_scope(), canonical(body)
        key = key_of(path, text)
        if self._recording is not None:
            try:
                place = self._recording.find(key, scope, self._requests.next(scope, key))
                if place is not None:
                    return Forwarded(self._recording.reply(place))
            except DamagedRecordingError as error:
                if self.config.mode == "replay":
                    raise self._address.error(ModelErrorKind.REJECTED, str(error), hint=DAMAGED_HINT) from error
        request = RecordedRequest(key, path, text, scope)
        if self._source is None or self._recorder is None:
            raise self._unknown(request)
        forwarded = await self._source.forward(path, body, cookies)
        self._record(request, forwarded.reply)
        return forwarded

    def _record(self, request: RecordedRequest, reply: RecordedReply) -> None:
        assert self._recorder is not None
        try:
            place = self._recorder.append(request, reply)
        except OSError as error:
            reason = f"the exchange can't be recorded: {error.strerror or error}"
            raise self._address.error(ModelErrorKind.MODEL_ERROR, reason, hint="make room on the disk") from error
        if self._recording is not None:
            self._recording.add(request.key, request.scope[:3] if request.scope is not None else None, place)

    def _unknown(self, request: RecordedRequest) -> ModelCallError:
        assert self._recording is not None
        if self._recording.is_known(request.key):
            reason = "this rollout has made this request more often than when it was recorded"
            return self._address.error(ModelErrorKind.REJECTED, reason, hint=HINT)
        return self._address.error(ModelErrorKind.REJECTED, f"not recorded: {self._nearest(request)}", hint=HINT)

    def _nearest(self, request: RecordedRequest) -> str:
        assert self._recording is not None
        found = [
            (likeness(text, request.text), scope, text)
            for scope, place in self._recording.requests(request.scope, COMPARED)
            if (text := self._recording.text(place)) is not None
        ]
        if not found:
            return "the recording is empty"
        _, scope, text = max(found, key=lambda one: one[0])
        whose = f"of task {scope[0]} rollout {scope[1]}" if scope else "of nobody in particular"
        return f"the nearest recorded request ({whose}) differs {first_difference(text, request.text)}"


def _response(forwarded: Forwarded) -> Response:
    reply = forwarded.reply
    if reply.status == 200 and not reply.headers and not forwarded.cookies:
        return JsonResponse(reply.body)
    response = Response(reply.body, reply.status, dict(reply.headers), media_type="application/json")
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
