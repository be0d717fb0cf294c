"""Records the model calls of rollouts in files, for programs that read them there (``observability_enabled``).

Only calls that name their rollout are recorded. The exchange is written before the last part of the reply is sent, so
whoever has the reply finds the record. What can't be written is noted, and never fails the call.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from time import time
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.capture.call_files import CaptureStore, ModelCallCaptureConfig
from nemo_gym.capture.call_records import DIALECTS
from nemo_gym.conversion.anthropic.message_streams import message_of_stream
from nemo_gym.conversion.chat_streams import completion_of_stream
from nemo_gym.conversion.response_streams import response_of_stream
from nemo_gym.conversion.stream_events import Assembly, BrokenStreamError, assembled, is_stream
from nemo_gym.io.json import decode
from nemo_gym.servers.direct.handlers import read_all, replay
from nemo_gym.servers.middleware.rollout_scope import (
    adopt_path_prefix,
    current_mark,
    current_rollout_id,
    current_scope,
    rollout_context,
)

logger = logging.getLogger(__name__)
SESSION_HEADER: Final = "x-session-id"
EXECUTION: Final = "nemo_gym_model_execution"
_ASSEMBLIES: Final[Mapping[str, Assembly]] = {
    "/v1/responses": response_of_stream,
    "/v1/chat/completions": completion_of_stream,
    "/v1/messages": message_of_stream,
}


class ModelCallRecorder:
    """Writes an exchange for each call of a generating route."""

    def __init__(self, app: ASGIApp, *, store: CaptureStore, model: str | None) -> None:
        self.app = app
        self._store = store
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with rollout_context(current_rollout_id()):
            scope = adopt_path_prefix(scope)
            attempt = current_scope()  # an address of an attempt says more than the id of the rollout
            rollout = attempt.rollout_id if attempt is not None else current_rollout_id()
            if rollout is None or scope["method"] != "POST" or scope["path"] not in DIALECTS:
                await self.app(scope, receive, send)
            else:
                await self._record(rollout, scope, receive, send)

    async def _record(self, rollout: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_all(receive)
        scope.setdefault("state", {})
        exchange: dict[str, Any] = {
            "model_call_id": secrets.token_hex(12),
            "model_ref": self._model,
            "client_session_id": Headers(scope=scope).get(SESSION_HEADER),
            "attempt": current_mark() or None,
            "path": scope["path"],
            "started_at": time(),
            **_payload("request", body),
        }
        sent = bytearray()

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange["status_code"] = message["status"]
            elif message["type"] == "http.response.body":
                exchange.setdefault("first_byte_at", time())
                sent.extend(message.get("body", b""))
                if not message.get("more_body"):
                    await self._write(rollout, scope, exchange, bytes(sent))
            await send(message)

        await self.app(scope, replay(body, receive), pass_on)

    async def _write(self, rollout: str, scope: Scope, exchange: dict[str, Any], sent: bytes) -> None:
        exchange["completed_at"] = time()
        exchange |= _payload("response", _whole(scope["path"], sent))
        execution = scope["state"].get(EXECUTION)
        exchange |= execution if isinstance(execution, Mapping) else {}
        try:
            await asyncio.to_thread(self._store.record, rollout, exchange)
        except OSError as error:
            logger.warning("a model call of rollout %s was not recorded: %s", rollout, error)
            try:
                self._store.mark_incomplete(rollout)
            except OSError:
                return


def _payload(name: str, body: bytes) -> dict[str, Any]:
    """A body as JSON, or as text if it is not a JSON object."""
    try:
        content = decode(body)
    except ValueError:
        content = None
    return {name: content} if isinstance(content, dict) else {f"{name}_raw": body.decode(errors="replace")}


def _whole(path: str, sent: bytes) -> bytes:
    """A reply as it would be without streaming; as it was sent if it broke off."""
    try:
        return assembled(sent, _ASSEMBLIES[path]) if is_stream(sent) else sent
    except BrokenStreamError:
        return sent


def install_recorder(app: FastAPI, store: CaptureStore, model: str | None) -> None:
    """Record the model calls of an app."""
    app.add_middleware(ModelCallRecorder, store=store, model=model)


def open_capture_store(config: ModelCallCaptureConfig) -> CaptureStore | None:
    """The store that a configuration asks for; None if it asks for none, or if its folder can't be made."""
    if not config.observability_enabled or config.model_call_capture_dir is None:
        return None
    try:
        return CaptureStore(config.model_call_capture_dir)
    except OSError as error:
        logger.warning("model calls are not recorded: %s", error)
        return None
