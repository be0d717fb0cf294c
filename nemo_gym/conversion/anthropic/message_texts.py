"""Converts requests of the Responses API to Anthropic's Messages API as text.

As in ``chat_texts``, the options are converted once, and of a conversation only what was added since the last call.
What is remembered ends with a message of the user, where the assistant's next one begins. Every part is checked for
losses before it is remembered, so an error is an error every time.
"""

from collections.abc import Callable, Mapping
from os import urandom
from typing import Any, NamedTuple

from nemo_gym.conversion.anthropic.calling import MessageHistory, add_items, request_to_messages
from nemo_gym.conversion.chat_answers import ResponseTemplate
from nemo_gym.conversion.chat_texts import Items, end_of_item, end_of_turns
from nemo_gym.conversion.losses import LossPolicy, Way
from nemo_gym.conversion.request_texts import (
    LONG,
    RequestFrame,
    RequestTexts,
    SplitRequest,
    encode_list,
    joined,
)
from nemo_gym.io.json import EncodedJson, decode_exactly, encode_json


class _Known(NamedTuple):
    """The messages of a conversation so far, the instructions before them, and the names of their calls."""

    messages: bytes = b""
    system: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()


class MessageTexts:
    """The requests of one model server. ``finish`` adds what the server sends besides the converted options."""

    def __init__(
        self,
        texts: RequestTexts,
        losses: LossPolicy,
        finish: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        max_tokens: int,
        model: str,
    ) -> None:
        self._texts = texts
        self._losses = losses
        self._finish = finish
        self._max_tokens = max_tokens
        self._model = model
        self._marker = encode_json(urandom(16).hex())
        # Under these names, frames and beginnings hold what was made here.
        self._requests, self._responses = object(), object()

    def request(self, asked: SplitRequest) -> bytes:
        """The body of a request; raises what the conversion raises."""
        beginning = asked.beginning.products.get(self._requests) if asked.beginning is not None else None
        known = self._converted(asked, beginning) if beginning is not None else None
        known = known or self._converted(asked, None) or _Known()
        key = self._requests, known.system
        before, after = asked.frame.products.get(key) or self._shell(asked.frame, key)
        return b"%b[%b]%b" % (before, known.messages, after)

    def template(self, asked: SplitRequest) -> ResponseTemplate:
        """What all responses to requests with these options have in common."""
        template: ResponseTemplate | None = asked.frame.products.get(self._responses)
        if template is None:
            template = ResponseTemplate(asked.frame.options, model=self._model)
            asked.frame.products[self._responses] = template
        return template

    def _shell(self, frame: RequestFrame, key: tuple[object, tuple[str, ...]]) -> tuple[bytes, bytes]:
        """What a request has before its messages, and what follows them."""
        instructions = [{"role": "system", "content": text} for text in key[1]]
        body, lost = request_to_messages({**frame.options, "input": instructions}, max_tokens=self._max_tokens)
        self._losses.check(Way.TO_MESSAGES, lost)
        text = encode_json(self._finish({**body, "messages": EncodedJson(self._marker)}))
        before, _, after = text.partition(self._marker)
        frame.products[key] = shell = before, after
        return shell

    def _converted(self, asked: SplitRequest, known: _Known | None) -> _Known | None:
        """The whole conversation; None if what is new can't simply follow what is known."""
        new = asked.conversation if known is None else asked.new
        before = known or _Known()
        history = MessageHistory(system=list(before.system), has_begun=bool(before.messages), names=set(before.names))
        items: str | Items = decode_exactly(new)
        end = 0 if isinstance(items, str) or len(asked.text) < LONG else end_of_turns(items)
        add_items(items[:end], history)
        is_settled = history.ends_with_user and not history.awaits_results
        count, names = len(history.messages) if is_settled else 0, frozenset(history.names)
        turns = encode_list(history.messages[:count])
        add_items(items[end:], history)
        if before.messages and history.messages and history.messages[0]["role"] == "user":
            return None  # it would have to become part of the last message
        if history.lost:
            self._losses.check(Way.TO_MESSAGES, list(dict.fromkeys(history.lost)))
        made = _Known(joined(before.messages, turns), tuple(history.system), names)
        place = end_of_item(asked, new, end) if is_settled else 0
        if place:
            self._texts.keep(asked, place, self._requests, made, len(made.messages))
        return made._replace(messages=joined(made.messages, encode_list(history.messages[count:])))
