"""On-policy correction: makes prompts begin with the true tokens of the earlier turns.

How that is done depends on the engine, which is recognised by its answers: servers of trainers accept
``required_prefix_token_ids``, SGLang accepts a chat with ``input_ids``, and vLLM and llama.cpp accept tokens only as a
plain completion. A prompt that the template already renders correctly is always sent as a chat. So is one that can't be
corrected; the continuity check then reports the result.

The prompt of an answer contains the tokens of all earlier ones. So if a conversation is known to have had just this
prompt, only its last answer is looked at; otherwise, as after a restart, every answer is.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import orjson

from nemo_gym.conversion.answer_tokens import MARK, PastTurn, end_of_turn, says, true_prompt
from nemo_gym.schemas.chat import NeMoGymChoice
from responses_api_models.vllm_model.rendering import Post, Rendering, RenderingError, asked_for
from responses_api_models.vllm_model.text_completions import completion_request, writes_known_calls
from responses_api_models.vllm_model.tokens import (
    PREFIX_FIELD,
    Dialect,
    carry_prefix,
    trained_answers,
    with_read_tokens,
    without_tokens,
)

CHATS: Final = "/chat/completions"
REMEMBERED_TOOLS: Final = 256
REMEMBERED_PROMPTS: Final = 2**16
# Options with which a prompt is not a whole conversation that an answer follows.
NOT_WHOLE: Final = ("continue_final_message", "add_generation_prompt", "truncate_prompt_tokens")
COMPLETIONS: Final = "/completions"
# Engines that accept given tokens, each in its own way.
CORRECTABLE: Final = frozenset({Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMA_CPP})
UNKNOWN_CALLS: Final = "its template asks for tool calls in a form that only the endpoint can read"
NO_LIMIT: Final = "the request has no max_output_tokens, and the endpoint does not tell its context"
NOT_TEXT: Final = "images and recordings can't be sent with tokens"
NO_COMPLETIONS: Final = "the endpoint has no /v1/completions"
STOPPED_BY: Final = ("stop_reason", "matched_stop")  # where vLLM and SGLang say what ended an answer
NO_END: Final = "nothing tells which token ends a turn"


@dataclass(frozen=True, slots=True)
class Corrected:
    """The request to send. ``prompt`` has the tokens of a completion; ``reason`` says why a chat was not corrected."""

    path: str
    body: dict[str, Any]
    prompt: list[int] | None = None
    reason: str = ""


@dataclass(slots=True)
class Correction:
    """Corrects the prompts of one model."""

    rendering: Rendering = field(default_factory=Rendering)
    # Tokens that have ended an answer so far.
    ends: set[int] = field(default_factory=set)
    completions: bool = True  # until an endpoint turns out not to have the route
    _known_calls: dict[bytes, bool] = field(default_factory=dict)
    # Of conversations that were answered lately, digests: of everything that was rendered, and of the true prompt.
    _prompts: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    async def of(self, chat: Mapping[str, Any], dialect: Dialect, post: Post) -> Corrected:
        """The request for a chat whose earlier answers carry tokens."""
        if not all(map(_is_text, chat["messages"])):
            return uncorrected(chat, reason=NOT_TEXT)
        try:
            return await self._of(chat, dialect, post)
        except RenderingError as error:
            return uncorrected(chat, reason=str(error))

    async def _of(self, chat: Mapping[str, Any], dialect: Dialect, post: Post) -> Corrected:
        plain = without_tokens_in(chat)
        whole = await self.rendering.tokens(post, plain, dialect)
        turns = await self._turns(chat, plain, dialect, post)
        end = end_of_turn(turns[-1].through, self.ends or await self._likely_ends(turns, post))
        if end is None:
            return uncorrected(chat, reason=NO_END)
        prompt = true_prompt(turns, whole, end)
        if prompt.kept == len(turns) > 1:
            number = trained_answers(chat["messages"])[-1]
            self._remember(_conversation_key(plain, dialect, number), turns[-1].prompt)
        if prompt.ids == whole:
            return Corrected(CHATS, plain, reason=prompt.reason)
        if dialect is Dialect.SGLANG:
            return Corrected(CHATS, {**plain, "input_ids": prompt.ids}, reason=prompt.reason)
        body = completion_request(plain, prompt.ids, dialect, context=self.rendering.context)
        if not self.completions or body is None or not await self._reads_calls(chat, whole, post):
            reason = prompt.reason or (NO_COMPLETIONS if not self.completions else UNKNOWN_CALLS if body else NO_LIMIT)
            return Corrected(CHATS, plain, reason=reason) if prompt.reason else uncorrected(chat, reason=reason)
        return Corrected(COMPLETIONS, body, prompt.ids, reason=prompt.reason)

    async def _turns(
        self, chat: Mapping[str, Any], plain: Mapping[str, Any], dialect: Dialect, post: Post
    ) -> list[PastTurn]:
        """The answers that decide what the prompt begins with."""
        trained = trained_answers(chat["messages"])
        message, number = chat["messages"][trained[-1]], trained[-1]
        if self._prompts.get(_conversation_key(plain, dialect, number)) == _key_of(message["prompt_token_ids"]):
            turn = await self._turn(post, plain, message, number, dialect, is_prompt_known=True)
            if not turn.edited:
                return [turn]
        return await asyncio.gather(
            *(self._turn(post, plain, with_read_tokens(chat["messages"][at]), at, dialect) for at in trained)
        )

    def remember(self, chat: Mapping[str, Any], dialect: Dialect, prompt: Sequence[int]) -> None:
        """Remember the true prompt of a conversation, unless it is not what the template makes of the conversation."""
        if dialect in CORRECTABLE and not any(name in chat for name in NOT_WHOLE):
            plain = without_tokens_in(chat)
            self._remember(_conversation_key(plain, dialect, len(plain["messages"])), prompt)

    def _remember(self, conversation: bytes, prompt: Sequence[int]) -> None:
        self._prompts[conversation] = _key_of(prompt)
        if len(self._prompts) > REMEMBERED_PROMPTS:
            self._prompts.popitem(last=False)

    async def _likely_ends(self, turns: Sequence[PastTurn], post: Post) -> set[int]:
        """Which tokens may end a turn, as long as none has been seen to: an answer may have been cut off anywhere."""
        last = {turn.generation[-1] for turn in turns if turn.generation}
        closing = turns[-1].through[-2:]
        texts = await asyncio.gather(*(self.rendering.text(post, [token]) for token in closing))
        return {
            token
            for token, text in zip(closing, texts, strict=True)
            if MARK.fullmatch(text) or (token in last and not text.isspace())
        }

    async def _reads_calls(self, chat: Mapping[str, Any], whole: Sequence[int], post: Post) -> bool:
        if not chat.get("tools"):
            return True
        tools = orjson.dumps(chat["tools"])
        if tools not in self._known_calls:
            written = await self.rendering.text(post, whole)
            for said in map(_text_of, chat["messages"]):  # it may mention calls of any form
                written = written.replace(said.strip(), "") if said.strip() else written
            self._known_calls[tools] = writes_known_calls(written)
            if len(self._known_calls) > REMEMBERED_TOOLS:
                del self._known_calls[next(iter(self._known_calls))]
        return self._known_calls[tools]

    async def _turn(
        self,
        post: Post,
        chat: Mapping[str, Any],
        message: Mapping[str, Any],
        number: int,
        dialect: Dialect,
        *,
        is_prompt_known: bool = False,
    ) -> PastTurn:
        """An answer that carries tokens; ``chat`` carries none. A known prompt need not be rendered again."""
        prompt, generation = message["prompt_token_ids"], message["generation_token_ids"]
        through, text = await asyncio.gather(
            self.rendering.through(post, chat, dialect, number, self.ends), self.rendering.text(post, generation)
        )
        before = prompt if is_prompt_known else await self.rendering.tokens(post, chat, dialect, count=number)
        edited = not says(text, message, stops=_stops(chat), one_call=chat.get("parallel_tool_calls") is False)
        return PastTurn(prompt, generation, before, through, edited=edited)

    def learn(self, choice: NeMoGymChoice, generation: Sequence[int], chat: Mapping[str, Any]) -> None:
        """Remember which token ended an answer, unless a limit, a stop string or a token chosen by the caller did."""
        beside = choice.model_extra or {}
        told = [beside[name] for name in STOPPED_BY if name in beside]
        is_unclear = not told and bool(_stops(chat))
        is_ended = choice.finish_reason in ("stop", "tool_calls") and not any(isinstance(stop, str) for stop in told)
        is_chosen = bool(generation) and generation[-1] in (chat.get("stop_token_ids") or ())
        if generation and is_ended and not is_unclear and not is_chosen:
            self.ends.add(generation[-1])


def uncorrected(chat: Mapping[str, Any], *, reason: str = "") -> Corrected:
    """The unchanged chat, together with the earlier tokens for servers that can use them."""
    body = {**chat, "messages": list(chat["messages"])}
    carry_prefix(body)
    return Corrected(CHATS, body, reason=reason)


def _stops(chat: Mapping[str, Any]) -> list[str]:
    stops = chat.get("stop") or []
    return [stops] if isinstance(stops, str) else list(stops)


def _is_text(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return not isinstance(content, list) or all(part.get("type") in ("text", "refusal") for part in content)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def without_tokens_in(chat: Mapping[str, Any]) -> dict[str, Any]:
    """A chat whose messages carry no tokens."""
    kept = {name: value for name, value in chat.items() if name != PREFIX_FIELD}
    return kept | {"messages": [without_tokens(message) for message in chat["messages"]]}


def _conversation_key(chat: Mapping[str, Any], dialect: Dialect, count: int) -> bytes:
    rendered = asked_for(chat, dialect, chat["messages"][:count])
    return blake2b(orjson.dumps([dialect, rendered]), digest_size=16).digest()


def _key_of(prompt: Sequence[int]) -> bytes:
    try:
        return blake2b(array("q", prompt), digest_size=16).digest()
    except (TypeError, OverflowError):
        return b""  # these are not tokens, and never equal to what was remembered
