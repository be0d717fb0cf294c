"""On-policy correction: makes prompts begin with the true tokens of the earlier turns.

How that is done depends on the engine, which is recognised by its replies: servers of trainers accept
``required_prefix_token_ids``, SGLang accepts a chat with ``input_ids``, and vLLM and llama.cpp accept tokens only as a
plain completion. A prompt that the template already renders correctly is always sent as a chat. So is one that can't be
corrected; the continuity check then reports the result.

A request that continues a captured call unchanged has a prompt that begins with the tokens of that call, and only the
rest has to be tokenized. A template renders whole conversations, so it is given a short one: the messages of the first
call, the last completion, and what follows it. That is right for templates that render a message in the same way
wherever it stands. The first conversations show whether this one does, because their whole is tokenized too, and an
endpoint that reports the prompt it has read shows it with every call. Where it is not so, the whole is tokenized.

The prompt of a completion contains the tokens of all earlier ones. So if a conversation is known to have had just this
prompt, only its last completion is looked at; otherwise, as after a restart, every completion is.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import orjson

from nemo_gym.capture.calls import json_text, json_values
from nemo_gym.capture.conversations import AskedConversation, Linked, without_tokens
from nemo_gym.capture.lineage import joined, sequence_text
from nemo_gym.conversion.completion_tokens import MARK, PastTurn, Prompt, end_of_turn, says, true_prompt
from nemo_gym.schemas.chat import NeMoGymChoice
from responses_api_models.vllm_model.rendering import Post, Rendering, RenderingError, rendering_request
from responses_api_models.vllm_model.text_completions import completion_request, writes_known_calls
from responses_api_models.vllm_model.tokens import (
    PREFIX_FIELD,
    Dialect,
    carry_prefix,
    trained_messages,
)

CHATS: Final = "/chat/completions"
REMEMBERED_TOOLS: Final = 256
REMEMBERED_PROMPTS: Final = 2**16
# Options with which a prompt is not a whole conversation that a completion follows.
NOT_WHOLE: Final = ("continue_final_message", "add_generation_prompt", "truncate_prompt_tokens")
COMPLETIONS: Final = "/completions"
# Engines that accept given tokens, each in its own way.
CORRECTABLE: Final = frozenset({Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMA_CPP})
UNKNOWN_CALLS: Final = "its template asks for tool calls in a form that only the endpoint can read"
NO_LIMIT: Final = "the request has no max_output_tokens, and the endpoint does not tell its context"
NOT_TEXT: Final = "images and recordings can't be sent with tokens"
NO_COMPLETIONS: Final = "the endpoint has no /v1/completions"
STOPPED_BY: Final = ("stop_reason", "matched_stop")  # where vLLM and SGLang say what ended a completion
NO_END: Final = "nothing tells which token ends a turn"


@dataclass(frozen=True, slots=True)
class Corrected:
    """The request to send. ``prompt`` has the tokens of a completion; ``reason`` says why a chat was not corrected."""

    path: str
    body: dict[str, Any]
    prompt: list[int] | None = None
    reason: str = ""
    expected: bytes | None = None  # the prompt that the endpoint should report, as text
    length: int = 0  # of that prompt, in tokens
    as_rendered: bool = True  # the prompt is what the template makes of the messages


@dataclass(slots=True)
class Correction:
    """Corrects the prompts of one model."""

    rendering: Rendering = field(default_factory=Rendering)
    # Tokens that have ended a completion so far.
    ends: set[int] = field(default_factory=set)
    completions: bool = True  # until an endpoint turns out not to have the route
    _known_calls: dict[bytes, bool] = field(default_factory=dict)
    # Whether a template ends a short conversation as it ends a long one, by the roles of the last messages.
    _windows: dict[tuple[Any, ...], bool] = field(default_factory=dict)
    # Of conversations that were completed lately, digests: of everything that was rendered, and of the true prompt.
    _prompts: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    async def of(self, chat: Mapping[str, Any], dialect: Dialect, post: Post) -> Corrected:
        """The request for a chat whose earlier completions carry tokens."""
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
        if prompt.past == len(turns) > 1:
            number = trained_messages(chat["messages"])[-1]
            self._remember(_conversation_key(plain, dialect, number), turns[-1].prompt)
        if prompt.ids == whole:
            return Corrected(CHATS, plain, reason=prompt.reason)
        if dialect is Dialect.SGLANG:
            return Corrected(CHATS, {**plain, "input_ids": prompt.ids}, reason=prompt.reason, as_rendered=False)
        body = completion_request(plain, prompt.ids, dialect, context=self.rendering.context)
        if not self.completions or body is None or not await self._reads_calls(chat, whole, post):
            reason = prompt.reason or (NO_COMPLETIONS if not self.completions else UNKNOWN_CALLS if body else NO_LIMIT)
            return Corrected(CHATS, plain, reason=reason) if prompt.reason else uncorrected(chat, reason=reason)
        return Corrected(COMPLETIONS, body, prompt.ids, reason=prompt.reason, as_rendered=False)

    async def continuing(
        self, linked: Linked, chat: Mapping[str, Any], dialect: Dialect, post: Post
    ) -> Corrected | None:
        """The request that continues a captured call; None if the whole conversation has to be tokenized."""
        before = linked.before
        if before is None or not before.head_ids or self._windows.get(_shape(linked, chat, dialect)) is False:
            return None
        if not all(map(_is_text, linked.messages[before.count :])):
            return None
        try:
            return await self._continuing(linked, before, chat, dialect, post)
        except RenderingError:
            return None

    async def _continuing(
        self, linked: Linked, before: AskedConversation, chat: Mapping[str, Any], dialect: Dialect, post: Post
    ) -> Corrected | None:
        assert linked.call is not None
        plain = {name: value for name, value in chat.items() if name != PREFIX_FIELD} | {"messages": linked.messages}
        short, generation = {**plain, "messages": linked.window()}, json_values(linked.call.generation)
        true = [*before.head_ids, *generation]
        whole = await self.rendering.tokens(post, short, dialect)
        if whole[: len(true)] == true and generation[-1:] and generation[-1] in self.ends:
            prompt: Prompt | None = Prompt(whole, 1)  # the template writes the completion as it was sampled
        else:
            prompt = await self._spliced(short, linked, generation, whole, dialect=dialect, post=post)
        new = [] if prompt is None or prompt.reason else prompt.ids[len(true) :]
        if not await self._is_alike(linked, plain, new, dialect, post):
            self.distrust(linked, chat, dialect)
            return None
        assert prompt is not None
        expected = joined(sequence_text(linked.call), json_text(new))
        if before.as_rendered and prompt.ids == whole:
            return Corrected(CHATS, plain, expected=expected, length=linked.call.length + len(new))
        return await self._given(plain, json_values(expected), dialect, chat, post)

    async def _spliced(
        self,
        short: Mapping[str, Any],
        linked: Linked,
        generation: list[int],
        whole: Sequence[int],
        *,
        dialect: Dialect,
        post: Post,
    ) -> Prompt | None:
        """The short conversation with the completion as it was sampled; None if nothing shows where it ends."""
        assert linked.before is not None
        head = linked.before.head_ids
        through = await self.rendering.through(post, short, dialect, len(linked.before.head), self.ends)
        turn = PastTurn(head, generation, head, through)
        end = end_of_turn(through, self.ends or await self._likely_ends([turn], post))
        return true_prompt([turn], whole, end) if end is not None else None

    async def _is_alike(
        self,
        linked: Linked,
        plain: Mapping[str, Any],
        new: Sequence[int],
        dialect: Dialect,
        post: Post,
    ) -> bool:
        """Whether a template ends the whole conversation as it ends the short one; looked at once for each shape."""
        shape = _shape(linked, plain, dialect)
        if not new:
            return False
        if shape in self._windows or linked.before is None or linked.before.count == len(linked.before.head):
            return True
        whole = await self.rendering.tokens(post, plain, dialect)
        self._windows[shape] = whole[-len(new) :] == new
        return self._windows[shape]

    async def _given(
        self, plain: dict[str, Any], prompt: list[int], dialect: Dialect, chat: Mapping[str, Any], post: Post
    ) -> Corrected | None:
        """The request with a prompt of given tokens; None if the endpoint takes none."""
        if dialect is Dialect.SGLANG:
            return Corrected(CHATS, {**plain, "input_ids": prompt}, as_rendered=False)
        body = completion_request(plain, prompt, dialect, context=self.rendering.context)
        if not self.completions or body is None or not await self._reads_calls(chat, prompt, post):
            return None
        return Corrected(COMPLETIONS, body, prompt, as_rendered=False)

    async def _turns(
        self, chat: Mapping[str, Any], plain: Mapping[str, Any], dialect: Dialect, post: Post
    ) -> list[PastTurn]:
        """The completions that decide what the prompt begins with."""
        trained = trained_messages(chat["messages"])
        message, number = chat["messages"][trained[-1]], trained[-1]
        if self._prompts.get(_conversation_key(plain, dialect, number)) == _key_of(message["prompt_token_ids"]):
            turn = await self._turn(post, plain, message, number, dialect, is_prompt_known=True)
            if not turn.edited:
                return [turn]
        return await asyncio.gather(*(self._turn(post, plain, chat["messages"][at], at, dialect) for at in trained))

    def distrust(self, linked: Linked, chat: Mapping[str, Any], dialect: Dialect) -> None:
        """Tokenize whole conversations of this shape from now on: the endpoint has read another prompt."""
        self._windows[_shape(linked, chat, dialect)] = False

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
        """Which tokens may end a turn, as long as none has been seen to: completions may be cut off anywhere."""
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
            for text in map(_text_of, chat["messages"]):  # it may mention calls of any form
                written = written.replace(text.strip(), "") if text.strip() else written
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
        """A completion that carries tokens; ``chat`` carries none. A known prompt need not be rendered again."""
        prompt, generation = message["prompt_token_ids"], message["generation_token_ids"]
        through, text = await asyncio.gather(
            self.rendering.through(post, chat, dialect, number, self.ends), self.rendering.text(post, generation)
        )
        before = prompt if is_prompt_known else await self.rendering.tokens(post, chat, dialect, count=number)
        edited = not says(text, message, stops=_stops(chat), one_call=chat.get("parallel_tool_calls") is False)
        return PastTurn(prompt, generation, before, through, edited=edited)

    def learn(self, choice: NeMoGymChoice, generation: Sequence[int], chat: Mapping[str, Any]) -> None:
        """Remember which token ended a completion, unless a limit, a stop string or a token of the caller did."""
        beside = choice.model_extra or {}
        reported = [beside[name] for name in STOPPED_BY if name in beside]
        is_unclear = not reported and bool(_stops(chat))
        is_ended = choice.finish_reason in ("stop", "tool_calls") and not any(
            isinstance(stop, str) for stop in reported
        )
        is_chosen = bool(generation) and generation[-1] in (chat.get("stop_token_ids") or ())
        if generation and is_ended and not is_unclear and not is_chosen:
            self.ends.add(generation[-1])


def _shape(linked: Linked, chat: Mapping[str, Any], dialect: Dialect) -> tuple[Any, ...]:
    """What decides how a template renders the end of a conversation, apart from its text."""
    return dialect, bool(chat.get("tools")), linked.roles


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
    without = {name: value for name, value in chat.items() if name != PREFIX_FIELD}
    return without | {"messages": [without_tokens(message) for message in chat["messages"]]}


def _conversation_key(chat: Mapping[str, Any], dialect: Dialect, count: int) -> bytes:
    rendered = rendering_request(chat, dialect, chat["messages"][:count])
    return blake2b(orjson.dumps([dialect, rendered]), digest_size=16).digest()


def _key_of(prompt: Sequence[int]) -> bytes:
    try:
        return blake2b(array("q", prompt), digest_size=16).digest()
    except (TypeError, OverflowError):
        return b""  # these are not tokens, and never equal to what was remembered
