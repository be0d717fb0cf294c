"""Completes chats with the tokens of their answers, checked, and with a record of how they were sampled.

The first answer shows which engine it is. If that engine needs another form of request (llama.cpp returns no tokens
without ``top_logprobs``, and each engine has its own way of correcting earlier turns), the request is repeated in that
form, which is then used from the start.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson

from nemo_gym.conversion.answer_tokens import SAMPLING_FIELD
from nemo_gym.io.json import encode_json
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChatCompletionMessageForTraining, NeMoGymChoice
from nemo_gym.servers.models.failures import ModelErrorKind
from responses_api_models.vllm_model.correction import (
    COMPLETIONS,
    CORRECTABLE,
    Corrected,
    Correction,
    uncorrected,
    without_tokens_in,
)
from responses_api_models.vllm_model.rendering import Post, Rendering, RenderingError
from responses_api_models.vllm_model.replicas import Answered, Replica, good_content, is_overflow
from responses_api_models.vllm_model.settings import VLLMModelConfig
from responses_api_models.vllm_model.text_completions import chat_answer
from responses_api_models.vllm_model.tokens import (
    LLAMA_CPP_UNTRUNCATED,
    PREFIX_FIELD,
    SUPPORT_HINT,
    CallTokens,
    Dialect,
    TokenError,
    check_counts,
    dialect_of,
    sampling_of,
    tokens_of,
    trained_answers,
    with_read_tokens,
)

logger = logging.getLogger(__name__)

MISSING: Final = frozenset({403, 404, 405, 501})  # routes that an endpoint does not have

SessionPost = Callable[[str, str, Mapping[str, Any]], Awaitable[Answered]]


class TokenCalls:
    """The chats of one model."""

    def __init__(self, config: VLLMModelConfig, post: SessionPost) -> None:
        self.dialect = Dialect.UNKNOWN
        self._config = config
        self._post = post
        self._correction = Correction()
        self._context: int | None = None  # of llama.cpp, which may be set to forget the beginning of a longer sequence

    async def complete(self, session: str, chat: dict[str, Any]) -> NeMoGymChatCompletion | None:
        """Complete a chat; None if its prompt does not fit."""

        async def post(path: str, body: Mapping[str, Any]) -> Answered:
            return await self._post(session, path, body)

        for number in trained_answers(chat["messages"])[-1:]:
            chat["messages"][number] = with_read_tokens(chat["messages"][number])
        while True:
            knew = self.dialect
            request = await self._request(chat, post)
            answered = await post(request.path, request.body)
            if is_overflow(answered.status, answered.content):
                return None
            if request.path == COMPLETIONS and answered.status in MISSING:
                self._correction.completions = False
                continue
            completion = self._read(answered, request, chat)
            if knew is Dialect.UNKNOWN:
                self.dialect = dialect_of(completion)
                if await self._was_misasked(completion, chat, answered.replica, post):
                    continue
            if request.reason:
                answered.replica.reader.warn_once(f"earlier turns are tokenized anew: {request.reason}")
            await self._add_tokens(completion, chat, request, answered, post)
            return completion

    async def _request(self, chat: dict[str, Any], post: Post) -> Corrected:
        if self.dialect is Dialect.LLAMA_CPP:
            # Without any top_logprobs, it returns no log-probabilities at all.
            chat = {**LLAMA_CPP_UNTRUNCATED, **chat, "top_logprobs": max(chat.get("top_logprobs") or 0, 1)}
        carries = bool(trained_answers(chat["messages"]))
        if carries and self._config.on_policy_correction and self.dialect in CORRECTABLE:
            return await self._correction.of(chat, self.dialect, post)
        return uncorrected(chat)

    def _read(self, answered: Answered, request: Corrected, chat: Mapping[str, Any]) -> NeMoGymChatCompletion:
        content = good_content(answered)
        if request.prompt is not None:
            try:
                parses = self._config.uses_reasoning_parser
                answer = chat_answer(orjson.loads(content), chat, request.prompt, parses_reasoning=parses)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise answered.replica.address.unusable(content, f"no completion ({error})") from error
            content = encode_json(answer)
        return answered.replica.reader.completion(content)

    async def _was_misasked(
        self, completion: NeMoGymChatCompletion, chat: Mapping[str, Any], replica: Replica, post: Post
    ) -> bool:
        if self.dialect is Dialect.LLAMA_CPP:
            await self._learn_properties(replica, post)
        if not completion.choices[0].logprobs and self.dialect is Dialect.LLAMA_CPP:
            return True
        trained = trained_answers(chat["messages"])
        if not trained or not self._config.on_policy_correction or self.dialect not in CORRECTABLE:
            return False
        last = chat["messages"][trained[-1]]
        before = [*last["prompt_token_ids"], *last["generation_token_ids"]]
        told = (completion.model_extra or {}).get("prompt_token_ids")
        return not isinstance(told, list) or told[: len(before)] != before

    async def _learn_properties(self, replica: Replica, post: Post) -> None:
        """Learn what llama.cpp does not say in answers: the token that ends one, and how many fit its context."""
        reply = await replica.probe.send("GET", f"{replica.root}/props", None)
        if not reply.ok:
            return
        properties = orjson.loads(await reply.read())
        context = (properties.get("default_generation_settings") or {}).get("n_ctx")
        self._context = context if isinstance(context, int) and context > 0 else None
        named = {"content": properties.get("eos_token") or "", "add_special": False, "parse_special": True}
        answered = await post("/tokenize", named)
        tokens = orjson.loads(good_content(answered)).get("tokens") or []
        self._correction.ends |= set(tokens[-1:])

    async def _add_tokens(
        self,
        completion: NeMoGymChatCompletion,
        chat: Mapping[str, Any],
        request: Corrected,
        answered: Answered,
        post: Post,
    ) -> None:
        # Which distribution the log-probabilities come from depends on the engine that computed them: of several
        # endpoints, one may be another engine, and so may one that was restarted.
        told = dialect_of(completion)
        dialect = self.dialect if told is Dialect.UNKNOWN else told
        sampling = sampling_of(request.body, dialect, mode=self._config.logprobs_mode)
        for choice in completion.choices:
            try:
                tokens = tokens_of(completion, choice)
                prompt = tokens.prompt or await self._prompt(chat, request, answered, post)
                check_counts(prompt, tokens, completion, context=self._context)
            except (TokenError, RenderingError) as error:
                reason = f"the answer has {error}"
                raise answered.replica.address.error(
                    ModelErrorKind.INVALID_RESPONSE, reason, hint=SUPPORT_HINT
                ) from error
            if completion.usage is None and tokens.prompt is None:
                answered.replica.reader.note("no token counts, so the tokens of its prompts can't be checked")
            self._correction.learn(choice, tokens.generation, chat)
            choice.message = _with_tokens(choice, tokens, prompt, sampling)
            if self._config.on_policy_correction and choice is completion.choices[0]:
                self._correction.remember(chat, self.dialect, prompt)

    async def _prompt(self, chat: Mapping[str, Any], request: Corrected, answered: Answered, post: Post) -> list[int]:
        """Ask the endpoint that answered for the tokens of the prompt, which did not come with the answer."""

        async def same(path: str, body: Mapping[str, Any]) -> Answered:
            told = await post(path, body)
            if told.replica is not answered.replica:
                raise RenderingError(f"another endpoint at {path} than the one that answered")
            return told

        if "input_ids" in request.body:
            given: list[int] = request.body["input_ids"]
            return given
        prefix = request.body.get(PREFIX_FIELD)
        takes_prefix = prefix is not None and self.dialect is not Dialect.LLAMA_CPP
        plain = without_tokens_in(chat)
        asked = {**plain, PREFIX_FIELD: prefix} if takes_prefix else plain
        # Not from earlier calls: the endpoint may have been restarted with another template since.
        return await Rendering().tokens(same, asked, self.dialect)


def _with_tokens(
    choice: NeMoGymChoice, tokens: CallTokens, prompt: list[int], sampling: Mapping[str, Any]
) -> NeMoGymChatCompletionMessageForTraining:
    message = choice.message.__dict__ | (choice.message.model_extra or {})
    told = message.get(SAMPLING_FIELD)  # a trainer's own server knows how it sampled
    fields = tokens.fields(prompt, told if isinstance(told, dict) else sampling)
    # All of it has been validated, and the tokens may be many.
    return NeMoGymChatCompletionMessageForTraining.model_construct(**message | fields)
