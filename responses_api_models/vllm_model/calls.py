"""Sends requests to endpoints and reads their completions, for every route of a vllm_model."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal

from fastapi import Request

from nemo_gym.capture.conversations import Resumed, keep_items, resume
from nemo_gym.conversion.completion_tokens import UNTRUNCATED
from nemo_gym.conversion.new_responses import uuid4
from nemo_gym.conversion.parts import POLICY_VERSION, release_items
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import NeMoGymChatCompletion
from nemo_gym.responses_converter import ReasoningParserError, ResponsesConverter
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.servers.http.gate import Gates
from nemo_gym.servers.middleware.rollout_scope import current_rollout_id, current_scope
from nemo_gym.servers.models.capturing import Capture
from nemo_gym.servers.models.endpoint import RequestLimit
from nemo_gym.servers.models.failures import ModelCallError, ModelErrorKind
from nemo_gym.servers.models.model_requests import UnreadRequest, chat_of
from nemo_gym.servers.models.policy import Policy
from responses_api_models.vllm_model.correction import CHATS
from responses_api_models.vllm_model.replicas import EndpointReply, good_content, is_overflow
from responses_api_models.vllm_model.request_metadata import (
    MetadataError,
    add_audio,
    audio_urls,
    wants_audio,
    with_options,
)
from responses_api_models.vllm_model.settings import VLLMModelConfig, open_replicas
from responses_api_models.vllm_model.token_calls import TokenCalls
from responses_api_models.vllm_model.tokens import OPTIONS, Dialect

STRICT_NOTE: Final = (
    "tools are sent without `strict`, so the model is not held to their schemas (strict_tools: true sends it)"
)

# Makes the chat that is sent, which a subclass can change: takes the request and a chat, returns the chat or an
# awaitable of it.
Preprocess = Callable[[Request | None, dict[str, Any]], Any]


class ModelCalls:
    """All calls that a vllm_model makes to its endpoints."""

    def __init__(
        self,
        config: VLLMModelConfig,
        gates: Gates,
        converter: ResponsesConverter,
        preprocess: Preprocess,
        capture: Capture,
        *,
        resumes: bool = True,
    ) -> None:
        self.config = config
        self.replicas = open_replicas(config, gates)
        self.policy = Policy(config.weights_token) if config.weights_token else None
        self._converter = converter
        self._preprocess = preprocess
        self._capture = capture
        self._strict_is_kept = config.strict_tools
        self._resumes = resumes  # a subclass that prepares requests wants to see all their messages
        self._tokens = TokenCalls(config, self.post, capture) if config.return_token_id_information else None
        limit = config.max_concurrent_requests
        self.slots: contextlib.AbstractAsyncContextManager[None] = (
            RequestLimit(limit) if limit else contextlib.nullcontext()
        )

    @property
    def dialect(self) -> Dialect:
        """How the endpoint is spoken to; vLLM's if nothing has shown it yet."""
        known = self._tokens.dialect if self._tokens is not None else Dialect.UNKNOWN
        return Dialect.VLLM if known is Dialect.UNKNOWN else known

    def session(self, request: Request, body: Mapping[str, Any] | UnreadRequest) -> str:
        """Identify the rollout, or else the caller's conversation; irrelevant if there is only one endpoint."""
        if len(self.replicas.all) == 1:
            return ""
        scope, rollout = current_scope(), current_rollout_id()
        if scope is not None:
            return scope.run
        if rollout is not None:
            return str(rollout)
        # A client may use one cookie for any number of conversations, which need not share an endpoint.
        items = body.get("input", body.get("messages"))
        beginning = encode_json([body.get("instructions"), items[:2] if isinstance(items, list) else items])
        return f"{request.session[SESSION_ID_KEY]}.{blake2b(beginning, digest_size=8).hexdigest()}"

    async def respond_to(
        self, session: str, unread: UnreadRequest, *, request: Request | None = None
    ) -> dict[str, Any]:
        """Complete a request of the Responses API that was not read; one that continues a captured call never is."""
        attempt = self._capture.attempt() if self._resumes else None
        resumed = resume(attempt, unread.text) if attempt is not None else None
        body = unread.fields if resumed is None or resumed.request.get("metadata") else resumed.request
        resumed = resumed if resumed is not None and body is resumed.request else None
        text = unread.text if attempt is not None else b""
        return await self.respond(session, body, request=request, text=text, resumed=resumed)

    async def respond(
        self,
        session: str,
        body: Mapping[str, Any],
        *,
        request: Request | None = None,
        text: bytes = b"",
        resumed: Resumed | None = None,
    ) -> dict[str, Any]:
        """Complete a request of the Responses API."""
        if self.config.is_responses_native:
            return await self._respond_in_turn(session, body)
        self._note_strict_tools(body)
        sent = body if resumed is None else {**body, "instructions": None}
        chat = chat_of(sent, self._converter, self.replicas.all[0].address)
        completion = await self.complete(session, chat, request=request, resumed=resumed)
        try:
            response = self._converter.completion_to_response(completion, body, model=self.config.model)
        except ReasoningParserError as error:
            raise self._unparsed(session, error) from error
        if self._tokens is not None:
            attempt, repeat = self._capture.attempt(), self._converter.request_to_chat
            keep_items(attempt, body["input"], response["output"], repeat, text=text, resumed=resumed)
        return response

    def _note_strict_tools(self, body: Mapping[str, Any]) -> None:
        """Say once that tools are sent without ``strict``."""
        if self._strict_is_kept or not any(tool.get("strict") for tool in body.get("tools") or ()):
            return
        self._strict_is_kept = True  # or known not to be
        self.replicas.all[0].reader.warn_once(STRICT_NOTE)

    def _unparsed(self, session: str, error: ReasoningParserError) -> ModelCallError:
        """The error of an endpoint that parses reasoning although the configuration says otherwise."""
        address = self.replicas.all[self.replicas.index_of(session)].address
        return address.error(ModelErrorKind.INVALID_RESPONSE, str(error), hint="set uses_reasoning_parser: true")

    async def _respond_in_turn(self, session: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.policy is None:
            return await self._respond_natively(session, request)
        async with self.policy.turn() as version:
            response = await self._respond_natively(session, request)
        for item in response["output"][-1:]:
            item[POLICY_VERSION] = version
        return response

    async def _respond_natively(self, session: str, request: Mapping[str, Any]) -> dict[str, Any]:
        body = self._with_options(request)
        if isinstance(body["input"], list):
            body["input"] = release_items(body["input"])
        reply = await self.post(session, "/responses", body)
        if is_overflow(reply.status, reply.content):
            completion = empty_completion("length", model=self.config.model, created=int(time.time()))
            return self._converter.completion_to_response(completion, request, model=self.config.model)
        return reply.replica.reader.response(good_content(reply), request).response.model_dump()

    async def complete(
        self,
        session: str,
        chat: dict[str, Any],
        *,
        request: Request | None = None,
        resumed: Resumed | None = None,
    ) -> NeMoGymChatCompletion:
        """Complete a chat, with its tokens and the version of the weights if they are wanted.

        Of a chat that was resumed, ``chat`` has only the messages that are new.
        """
        if self.policy is None:
            return await self._complete(session, chat, request, resumed)
        async with self.policy.turn() as version:
            completion = await self._complete(session, chat, request, resumed)
        for choice in completion.choices:
            setattr(choice.message, POLICY_VERSION, version)
        return completion

    async def _complete(
        self, session: str, chat: dict[str, Any], request: Request | None, resumed: Resumed | None
    ) -> NeMoGymChatCompletion:
        body = await self.prepare(chat, request)
        now = int(time.time())
        if not self.config.sequential_reasoning_allowed and is_idle_turn(body["messages"]):
            return empty_completion("content_filter", model=self.config.model, created=now)
        if self._tokens is not None:
            completion = await self._tokens.complete(session, body, resumed)
            return completion or empty_completion("length", model=self.config.model, created=now)
        reply = await self.post(session, CHATS, body)
        if is_overflow(reply.status, reply.content):
            return empty_completion("length", model=self.config.model, created=now)
        return reply.replica.reader.chat_completion(good_content(reply))

    async def prepare(self, chat: dict[str, Any], request: Request | None) -> dict[str, Any]:
        """Return the chat as it is sent, apart from the model's name."""
        metadata = chat.get("metadata")
        prepared = self._preprocess(request, chat)
        body: dict[str, Any] = await prepared if inspect.isawaitable(prepared) else prepared
        if metadata and wants_audio(metadata):
            root = Path(self.config.audio_root) if self.config.audio_root else None
            try:
                add_audio(body["messages"], await asyncio.to_thread(audio_urls, metadata, root))
            except MetadataError as error:
                raise self._rejected(str(error)) from error
        return body

    def adapted(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """Adapt a chat to the endpoint as configured; audio recordings, which have to be read, are added later."""
        body = self._with_options(chat)
        if self.config.replace_developer_role_with_system:
            body["messages"] = [
                message | {"role": "system"} if message["role"] == "developer" else message
                for message in body["messages"]
            ]
        if self.config.return_token_id_information:
            body = {**UNTRUNCATED, **OPTIONS, **body, "logprobs": True}
        return body

    def _with_options(self, request: Mapping[str, Any]) -> dict[str, Any]:
        config = self.config
        try:
            return with_options(
                request,
                extra_body=config.extra_body or {},
                chat_template_kwargs=config.chat_template_kwargs or {},
            )
        except MetadataError as error:
            raise self._rejected(str(error)) from error

    async def post(self, session: str, path: str, body: Mapping[str, Any]) -> EndpointReply:
        """Send a request to the endpoint of a session."""
        async with self.slots:
            return await self.replicas.post(session, path, encode_json({**body, "model": self.config.model}))

    def _rejected(self, reason: str) -> ModelCallError:
        return self.replicas.all[0].address.error(ModelErrorKind.REJECTED, reason)


def is_idle_turn(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is an assistant's without text or calls; the model would only think again, forever."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("content") and not last.get("tool_calls")


def empty_completion(
    finish_reason: Literal["length", "content_filter"], *, model: str, created: int
) -> NeMoGymChatCompletion:
    """Make a completion without content."""
    message = {"role": "assistant", "content": None}
    return NeMoGymChatCompletion.model_validate(
        {
            "id": f"chatcmpl-{uuid4().hex}",
            "choices": [{"finish_reason": finish_reason, "index": 0, "message": message}],
            "created": created,
            "model": model,
            "object": "chat.completion",
        }
    )
