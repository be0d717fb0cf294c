"""Completes chats with their tokens, checked, and with a record of how they were sampled.

The first completion shows which engine it is. If that engine needs another form of request (llama.cpp returns no tokens
without ``top_logprobs``, and each engine has its own way of correcting earlier turns), the request is repeated in that
form, which is then used from the start.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from nemo_gym.capture.calls import AttemptCalls, SampledTokens, json_text, json_values
from nemo_gym.capture.conversations import Linked, Resumed, as_kept, keep, link
from nemo_gym.conversion.completion_tokens import SAMPLING_FIELD
from nemo_gym.conversion.parts import CALL_REFERENCE, TOKEN_FIELDS
from nemo_gym.io.json import encode_json
from nemo_gym.schemas.chat import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChoice,
)
from nemo_gym.servers.models.capturing import Capture
from nemo_gym.servers.models.failures import ModelErrorKind
from responses_api_models.vllm_model.correction import (
    COMPLETIONS,
    CORRECTABLE,
    Corrected,
    Correction,
    uncorrected,
    without_tokens_in,
)
from responses_api_models.vllm_model.rendering import PROMPT_OPTIONS, Post, Rendering, RenderingError
from responses_api_models.vllm_model.replicas import EndpointReply, Replica, good_content, is_overflow
from responses_api_models.vllm_model.settings import VLLMModelConfig
from responses_api_models.vllm_model.text_completions import chat_completion_of
from responses_api_models.vllm_model.tokens import (
    LLAMA_CPP_UNTRUNCATED,
    PREFIX_FIELD,
    SUPPORT_HINT,
    CallTokens,
    Dialect,
    TokenError,
    check_counts,
    dialect_of,
    reported_prompt,
    sampling_of,
    split_prompt,
    tokens_of,
    trained_messages,
)

logger = logging.getLogger(__name__)

MISSING: Final = frozenset({403, 404, 405, 501})  # routes that an endpoint does not have

SessionPost = Callable[[str, str, Mapping[str, Any]], Awaitable[EndpointReply]]


class TokenCalls:
    """The chats of one model."""

    def __init__(self, config: VLLMModelConfig, post: SessionPost, capture: Capture) -> None:
        self.dialect = Dialect.UNKNOWN
        self._capture = capture
        self._config = config
        self._post = post
        self._correction = Correction()
        self._context: int | None = None  # of llama.cpp, which may be set to forget the beginning of a longer sequence

    async def complete(
        self, session: str, chat: dict[str, Any], resumed: Resumed | None = None
    ) -> NeMoGymChatCompletion | None:
        """Complete a chat; None if its prompt does not fit. One that was resumed has only the messages that are new."""

        async def post(path: str, body: Mapping[str, Any]) -> EndpointReply:
            return await self._post(session, path, body)

        attempt = self._capture.attempt() if chat.get("n", 1) in (None, 1) else None
        chat = as_kept(chat, attempt) if attempt is not None and resumed is None else chat
        linked = _link(chat, attempt, resumed) if attempt is not None else None
        if resumed is not None:
            chat = {**chat, "messages": resumed.messages(chat["messages"])}
        while True:
            knew = self.dialect
            request = await self._request(chat, post, linked)
            reply = await post(request.path, request.body)
            if is_overflow(reply.status, reply.content):
                return None
            if request.path == COMPLETIONS and reply.status in MISSING:
                self._correction.completions = False
                continue
            completion, prompt = self._read(reply, request, chat, is_captured=linked is not None)
            if linked is not None and _has_read_another(completion, prompt, request.expected):
                self._correction.distrust(linked, chat, self.dialect)
                continue
            if knew is Dialect.UNKNOWN:
                self.dialect = dialect_of(completion)
                if await self._needs_other_form(completion, chat, reply.replica, post):
                    continue
            if request.reason:
                reply.replica.reader.warn_once(f"earlier turns are tokenized anew: {request.reason}")
            await self._add_tokens(completion, chat, request, reply, post=post, linked=linked, text=prompt)
            return completion

    async def _request(self, chat: dict[str, Any], post: Post, linked: Linked | None) -> Corrected:
        if self.dialect is Dialect.LLAMA_CPP:
            # Without any top_logprobs, it returns no log-probabilities at all.
            chat = {**LLAMA_CPP_UNTRUNCATED, **chat, "top_logprobs": max(chat.get("top_logprobs") or 0, 1)}
        if linked is not None:
            is_continued = self._config.on_policy_correction and self.dialect in CORRECTABLE
            short = await self._correction.continuing(linked, chat, self.dialect, post) if is_continued else None
            if short is not None:
                return short
            chat = {**chat, "messages": linked.with_tokens(chat["messages"])}
        carries = bool(trained_messages(chat["messages"]))
        if carries and self._config.on_policy_correction and self.dialect in CORRECTABLE:
            return await self._correction.of(chat, self.dialect, post)
        return uncorrected(chat)

    def _read(
        self, reply: EndpointReply, request: Corrected, chat: Mapping[str, Any], *, is_captured: bool
    ) -> tuple[NeMoGymChatCompletion, bytes | None]:
        """The completion; if it is captured, also the ids of its prompt as text, which are then not parsed."""
        content, prompt = good_content(reply), None
        if request.prompt is not None:
            try:
                parses = self._config.uses_reasoning_parser
                completed = chat_completion_of(orjson.loads(content), chat, request.prompt, parses_reasoning=parses)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise reply.replica.address.unusable(content, f"no completion ({error})") from error
            content = encode_json(completed)
        elif is_captured:
            content, prompt = split_prompt(content, request.expected)
        return reply.replica.reader.chat_completion(content), prompt

    async def _needs_other_form(
        self, completion: NeMoGymChatCompletion, chat: Mapping[str, Any], replica: Replica, post: Post
    ) -> bool:
        if self.dialect is Dialect.LLAMA_CPP:
            await self._learn_properties(replica, post)
        if not completion.choices[0].logprobs and self.dialect is Dialect.LLAMA_CPP:
            return True
        trained = trained_messages(chat["messages"])
        if not trained or not self._config.on_policy_correction or self.dialect not in CORRECTABLE:
            return False
        last = chat["messages"][trained[-1]]
        before = [*last["prompt_token_ids"], *last["generation_token_ids"]]
        reported = (completion.model_extra or {}).get("prompt_token_ids")
        return not isinstance(reported, list) or reported[: len(before)] != before

    async def _learn_properties(self, replica: Replica, post: Post) -> None:
        """Learn what llama.cpp does not report in completions: the token that ends them, and its context."""
        reply = await replica.probe.send("GET", f"{replica.root}/props", None)
        if not reply.ok:
            return
        properties = orjson.loads(await reply.read())
        context = (properties.get("default_generation_settings") or {}).get("n_ctx")
        self._context = context if isinstance(context, int) and context > 0 else None
        named = {"content": properties.get("eos_token") or "", "add_special": False, "parse_special": True}
        tokenized = await post("/tokenize", named)
        tokens = orjson.loads(good_content(tokenized)).get("tokens") or []
        self._correction.ends |= set(tokens[-1:])

    async def _add_tokens(
        self,
        completion: NeMoGymChatCompletion,
        chat: Mapping[str, Any],
        request: Corrected,
        reply: EndpointReply,
        *,
        post: Post,
        linked: Linked | None,
        text: bytes | None,
    ) -> None:
        # Which distribution the log-probabilities come from depends on the engine that computed them: of several
        # endpoints, one may be another engine, and so may one that was restarted.
        reported = dialect_of(completion)
        dialect = self.dialect if reported is Dialect.UNKNOWN else reported
        sampling = sampling_of(request.body, dialect, mode=self._config.logprobs_mode)
        for choice in completion.choices:
            try:
                tokens = tokens_of(completion, choice)
                if text is not None:
                    is_expected = text is request.expected
                    # Only their number is looked at.
                    prompt: Sequence[int] = range(request.length if is_expected else text.count(b",") + 1)
                else:
                    prompt = tokens.prompt or await self._prompt(chat, request, reply, post)
                check_counts(prompt, tokens, completion, context=self._context)
            except (TokenError, RenderingError) as error:
                reason = f"the completion has {error}"
                raise reply.replica.address.error(ModelErrorKind.INVALID_RESPONSE, reason, hint=SUPPORT_HINT) from error
            if completion.usage is None and tokens.prompt is None:
                reply.replica.reader.note("no token counts, so the tokens of its prompts can't be checked")
            self._correction.learn(choice, tokens.generation, chat)
            if linked is not None:
                prompt_text = json_text(prompt) if text is None else text
                choice.message = _captured(choice, tokens, prompt_text, sampling, linked=linked, request=request)
                continue
            choice.message = _with_tokens(choice, tokens, list(prompt), sampling)
            if self._config.on_policy_correction and choice is completion.choices[0]:
                self._correction.remember(chat, self.dialect, prompt)

    async def _prompt(self, chat: Mapping[str, Any], request: Corrected, reply: EndpointReply, post: Post) -> list[int]:
        """Ask the endpoint that replied for the tokens of the prompt, which did not come with the completion."""

        async def same(path: str, body: Mapping[str, Any]) -> EndpointReply:
            rendered = await post(path, body)
            if rendered.replica is not reply.replica:
                raise RenderingError(f"another endpoint at {path} than the one that replied")
            return rendered

        if request.expected is not None:
            return json_values(request.expected)
        if "input_ids" in request.body:
            given: list[int] = request.body["input_ids"]
            return given
        prefix = request.body.get(PREFIX_FIELD)
        takes_prefix = prefix is not None and self.dialect is not Dialect.LLAMA_CPP
        plain = without_tokens_in(chat)
        body = {**plain, PREFIX_FIELD: prefix} if takes_prefix else plain
        # Not from earlier calls: the endpoint may have been restarted with another template since.
        return await Rendering().tokens(same, body, self.dialect)


def _link(chat: Mapping[str, Any], attempt: AttemptCalls, resumed: Resumed | None) -> Linked:
    if resumed is None:
        return link(chat["messages"], _options(chat), attempt)
    return resumed.link(chat["messages"], _options(chat), attempt)


def _options(chat: Mapping[str, Any]) -> bytes:
    return encode_json({name: chat[name] for name in PROMPT_OPTIONS if chat.get(name) is not None})


def _has_read_another(completion: NeMoGymChatCompletion, prompt: bytes | None, expected: bytes | None) -> bool:
    """Whether the endpoint reports another prompt than the one that was expected, or another number of tokens."""
    if expected is None or prompt is not None:
        return expected not in (None, prompt)
    if completion.usage is None:
        return False
    if completion.usage.prompt_tokens != expected.count(b",") + 1:
        return True
    reported = reported_prompt(completion, completion.choices[0])
    return isinstance(reported, list) and json_text(reported) != expected


def _captured(
    choice: NeMoGymChoice,
    tokens: CallTokens,
    prompt: bytes,
    sampling: Mapping[str, Any],
    *,
    linked: Linked,
    request: Corrected,
) -> NeMoGymChatCompletionMessage:
    """The message with a reference to its tokens, which are kept."""
    message = choice.message.__dict__ | (choice.message.model_extra or {})
    reported = message.get(SAMPLING_FIELD)
    details = tokens.fields([], reported if isinstance(reported, dict) else sampling)
    kept = {name: value for name, value in details.items() if name not in TOKEN_FIELDS[:3]}
    sampled = SampledTokens(prompt, json_text(tokens.generation), json_text(tokens.log_probs), kept)
    call = keep(linked, sampled, as_rendered=request.as_rendered)
    fields = {name: value for name, value in message.items() if name not in TOKEN_FIELDS}
    return NeMoGymChatCompletionMessage.model_construct(**fields | {CALL_REFERENCE: call.id})


def _with_tokens(
    choice: NeMoGymChoice, tokens: CallTokens, prompt: list[int], sampling: Mapping[str, Any]
) -> NeMoGymChatCompletionMessageForTraining:
    message = choice.message.__dict__ | (choice.message.model_extra or {})
    reported = message.get(SAMPLING_FIELD)  # a trainer's own server knows how it sampled
    fields = tokens.fields(prompt, reported if isinstance(reported, dict) else sampling)
    # All of it has been validated, and the tokens may be many.
    return NeMoGymChatCompletionMessageForTraining.model_construct(**message | fields)
