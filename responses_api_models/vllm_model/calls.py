"""Sends requests to endpoints and reads their answers, for every route of a vllm_model."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
from fastapi import Body, Request
from fastapi.responses import Response

from nemo_gym.conversion.answer_tokens import UNTRUNCATED
from nemo_gym.conversion.chat_answers import ChatAnswer, answer_of, uuid4
from nemo_gym.conversion.chat_texts import ChatTexts
from nemo_gym.conversion.parts import POLICY_VERSION, UnsupportedContentError
from nemo_gym.conversion.unknown_items import release_items
from nemo_gym.io.json import encode_json
from nemo_gym.openai_utils import NeMoGymChatCompletion
from nemo_gym.responses_converter import ReasoningParserError, ResponsesConverter
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.servers.direct.replies import JsonResponse
from nemo_gym.servers.models.answering import MALFORMED, TEXTS, ConvertedParams, chat_of, chat_text_of
from nemo_gym.servers.models.failures import ModelCallError, ModelErrorKind
from nemo_gym.servers.models.gate import Gates
from nemo_gym.servers.models.policy import Policy
from nemo_gym.servers.rollout_scope import current_rollout_id, current_scope
from responses_api_models.vllm_model.correction import CHATS
from responses_api_models.vllm_model.replicas import Answered, good_content, is_overflow
from responses_api_models.vllm_model.request_metadata import (
    MetadataError,
    add_audio,
    audio_urls,
    wants_audio,
    with_options,
)
from responses_api_models.vllm_model.settings import VLLMModelConfig, open_replicas
from responses_api_models.vllm_model.token_calls import TokenCalls
from responses_api_models.vllm_model.tokens import OPTIONS, items_with_unread_tokens

# Lets a subclass change what is sent: takes the request and the chat and returns the chat, or an awaitable of it.
Preprocess = Callable[[Request | None, dict[str, Any]], Any]


class TokenParams(ConvertedParams):
    """A request with items whose fields stay JSON until they are needed: tokens may be most of it."""

    __slots__ = ()

    decoder = msgspec.json.Decoder(str | list[dict[str, msgspec.Raw]])


class ModelCalls:
    """All calls that a vllm_model makes to its endpoints."""

    def __init__(
        self, config: VLLMModelConfig, gates: Gates, converter: ResponsesConverter, preprocess: Preprocess | None = None
    ) -> None:
        self.config = config
        self.replicas = open_replicas(config, gates)
        self.policy = Policy(config.weights_token) if config.weights_token else None
        self._converter = converter
        self.preprocess = preprocess
        self._texts = ChatTexts(TEXTS, converter, self._to_send, model=config.model)
        self._tokens = TokenCalls(config, self.post) if config.return_token_id_information else None
        # Whether anything looks at the messages of a chat before it is sent, or changes its answer.
        self._is_read = (
            config.is_responses_native
            or self._tokens is not None
            or self.policy is not None
            or preprocess is not None
            or config.replace_developer_role_with_system
            or not config.sequential_reasoning_allowed
            or type(converter).request_to_chat is not ResponsesConverter.request_to_chat
        )
        self.leaves_tokens_unread = (
            self._tokens is not None and preprocess is None and type(converter) is ResponsesConverter
        )
        limit = config.max_concurrent_requests
        self._is_limited = limit is not None
        self.slots: contextlib.AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(limit) if limit else contextlib.nullcontext()
        )

    def session(self, request: Request, asked: Mapping[str, Any]) -> str:
        """Identify the rollout, or else the caller's conversation; irrelevant if there is only one endpoint."""
        known = self.rollout_session()
        if known is not None:
            return known
        # A client may use one cookie for any number of conversations, which need not share an endpoint.
        said = asked.get("input", asked.get("messages"))
        beginning = encode_json([asked.get("instructions"), said[:2] if isinstance(said, list) else said])
        return f"{request.session[SESSION_ID_KEY]}.{blake2b(beginning, digest_size=8).hexdigest()}"

    def rollout_session(self) -> str | None:
        """Identify the rollout; None if only the conversation can tell where a call belongs."""
        if len(self.replicas.all) == 1:
            return ""
        scope, rollout = current_scope(), current_rollout_id()
        if scope is not None:
            return scope.run
        return None if rollout is None else str(rollout)

    async def relay_responses(self, body: ConvertedParams = Body()) -> Response:
        """Answer a Responses API request; for a model of one endpoint."""
        return JsonResponse(await self.answer_text("", body))

    async def answer_text(self, session: str, body: ConvertedParams, *, request: Request | None = None) -> bytes:
        """Answer a request of the Responses API; its conversation becomes objects only if something looks at them."""
        metadata = body.options.get("metadata")
        is_read = self._is_read or (isinstance(metadata, dict) and wants_audio(metadata))
        sent = None if is_read else chat_text_of(body, self._texts)
        if body.split is None or self.config.is_responses_native:
            return encode_json(await self.respond(session, body, request=request))
        if sent is None:
            answer = await self._answer_to(session, body, request)
        else:
            answer = await self._answer_to_text(session, sent)
        try:
            return self._texts.response(body.split, answer)
        except ReasoningParserError as error:
            raise self._unparsed(session, error) from error

    async def _answer_to_text(self, session: str, sent: bytes) -> ChatAnswer:
        if self._is_limited:
            async with self.slots:
                answered = await self.replicas.post(session, CHATS, sent)
        else:
            answered = await self.replicas.post(session, CHATS, sent)
        if is_overflow(answered.status, answered.content):
            return answer_of(empty_completion("length", model=self.config.model, created=int(time.time())))
        return answered.replica.reader.chat_answer(good_content(answered))

    async def respond(self, session: str, body: ConvertedParams, *, request: Request | None = None) -> dict[str, Any]:
        """Answer a request of the Responses API."""
        if self.config.is_responses_native:
            return await self._respond_in_turn(session, body.asked())
        answer = await self._answer_to(session, body, request)
        try:
            return self._converter.answer_to_response(answer, body.options, model=self.config.model)
        except ReasoningParserError as error:
            raise self._unparsed(session, error) from error

    async def _answer_to(self, session: str, body: ConvertedParams, request: Request | None) -> ChatAnswer:
        chat = self._token_chat(body) if self.leaves_tokens_unread else None
        if chat is None:
            chat = chat_of(body, self._converter, self.replicas.all[0].address)
        return await self._answer(session, chat, request)

    def _token_chat(self, body: ConvertedParams) -> dict[str, Any] | None:
        """A request as a chat whose tokens are not read yet; None if only ``chat_of`` can say what is wrong with it."""
        split = body.split
        if split is None or split.beginning is not None or isinstance(split.items, str):
            return None
        with contextlib.suppress(UnsupportedContentError, msgspec.MsgspecError, *MALFORMED):
            items = items_with_unread_tokens(split.items)
            return self._converter.request_to_chat({**split.frame.options, "input": items})
        return None

    def _unparsed(self, session: str, error: ReasoningParserError) -> ModelCallError:
        """The error of an endpoint that parses reasoning although the configuration says otherwise."""
        address = self.replicas.all[self.replicas.index_of(session)].address
        return address.error(ModelErrorKind.INVALID_RESPONSE, str(error), hint="set uses_reasoning_parser: true")

    async def _respond_in_turn(self, session: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self.policy is None:
            return await self._respond_natively(session, asked)
        async with self.policy.turn() as version:
            response = await self._respond_natively(session, asked)
        for item in response["output"][-1:]:
            item[POLICY_VERSION] = version
        return response

    async def _respond_natively(self, session: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        body = self._with_options(asked)
        if isinstance(body["input"], list):
            body["input"] = release_items(body["input"])
        answer = await self.post(session, "/responses", body)
        if is_overflow(answer.status, answer.content):
            completion = empty_completion("length", model=self.config.model, created=int(time.time()))
            return self._converter.completion_to_response(completion, asked, model=self.config.model)
        return answer.replica.reader.response(good_content(answer), asked).response.model_dump()

    async def _answer(self, session: str, chat: dict[str, Any], request: Request | None) -> ChatAnswer:
        if self.policy is not None:
            return answer_of(await self.complete(session, chat, request=request))
        completed = await self._complete(session, chat, request)
        if isinstance(completed, Answered):
            return completed.replica.reader.chat_answer(good_content(completed))
        return answer_of(completed)

    async def complete(
        self, session: str, chat: dict[str, Any], *, request: Request | None = None
    ) -> NeMoGymChatCompletion:
        """Complete a chat, with its tokens and the version of the weights if they are requested."""
        if self.policy is None:
            return _read(await self._complete(session, chat, request))
        async with self.policy.turn() as version:
            completion = _read(await self._complete(session, chat, request))
        for choice in completion.choices:
            setattr(choice.message, POLICY_VERSION, version)
        return completion

    async def _complete(
        self, session: str, chat: dict[str, Any], request: Request | None
    ) -> Answered | NeMoGymChatCompletion:
        """What the endpoint answers, unread if it is to be read as it came."""
        body = await self.prepare(chat, request)
        now = int(time.time())
        if not self.config.sequential_reasoning_allowed and is_idle_turn(body["messages"]):
            return empty_completion("content_filter", model=self.config.model, created=now)
        if self._tokens is not None:
            completion = await self._tokens.complete(session, body)
            return completion or empty_completion("length", model=self.config.model, created=now)
        answer = await self.post(session, "/chat/completions", body)
        if is_overflow(answer.status, answer.content):
            return empty_completion("length", model=self.config.model, created=now)
        return answer

    async def prepare(self, chat: dict[str, Any], request: Request | None) -> dict[str, Any]:
        """Return the chat as it is sent, apart from the model's name."""
        metadata = chat.get("metadata")
        if self.preprocess is None:
            body = self.adapted(chat)
        else:
            body = self.preprocess(request, chat)
            if inspect.isawaitable(body):
                body = await body
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

    def _with_options(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        config = self.config
        try:
            return with_options(
                asked,
                extra_body=config.extra_body or {},
                chat_template_kwargs=config.chat_template_kwargs or {},
            )
        except MetadataError as error:
            raise self._rejected(str(error)) from error

    async def post(self, session: str, path: str, body: Mapping[str, Any]) -> Answered:
        """Send a request to the endpoint of a session."""
        async with self.slots:
            return await self.replicas.post(session, path, encode_json({**body, "model": self.config.model}))

    def _to_send(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.adapted(chat), "model": self.config.model}

    def _rejected(self, reason: str) -> ModelCallError:
        return self.replicas.all[0].address.error(ModelErrorKind.REJECTED, reason)


class UnreadTokenCalls:
    """The same for a model of one endpoint whose answers carry tokens."""

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls

    async def relay_responses(self, body: TokenParams = Body()) -> Response:
        """Answer a Responses API request."""
        return JsonResponse(await self._calls.answer_text("", body))


class SessionCalls:
    """The same for a model with several endpoints, or a subclass, for which the caller's session matters."""

    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls

    async def relay_responses(self, request: Request, body: ConvertedParams = Body()) -> Response:
        """Answer a Responses API request."""
        session = self._calls.rollout_session()
        if session is None:
            session = self._calls.session(request, body.asked())
        return JsonResponse(await self._calls.answer_text(session, body, request=request))


def _read(answer: Answered | NeMoGymChatCompletion) -> NeMoGymChatCompletion:
    return answer.replica.reader.completion(good_content(answer)) if isinstance(answer, Answered) else answer


def is_idle_turn(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is an assistant's without text or calls; the model would only think again, forever."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("content") and not last.get("tool_calls")


def empty_completion(
    finish_reason: Literal["length", "content_filter"], *, model: str, created: int
) -> NeMoGymChatCompletion:
    """Make an answer without content."""
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
