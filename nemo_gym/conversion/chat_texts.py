"""Converts requests of the Responses API to Chat Completions as text, and the answers back.

What earlier requests have in common with a new one is not converted again: the options are converted once, and of a
conversation only what was added since the last call. Every part is checked for losses before it is remembered, so an
error is an error every time.
"""

from collections.abc import Callable, Mapping
from os import urandom
from typing import Any, Protocol

import msgspec

from nemo_gym.conversion.chat_answers import ChatAnswer, ResponseTemplate
from nemo_gym.conversion.request_texts import (
    LONG,
    RequestFrame,
    RequestTexts,
    SplitRequest,
    encode_list,
    joined,
)
from nemo_gym.io.json import EncodedJson, decode_exactly, encode_json

Items = list[dict[str, Any]]
_raw_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Converter(Protocol):
    """Converts requests and answers."""

    def request_to_chat(self, asked: Mapping[str, Any], /) -> dict[str, Any]:
        """The same request for Chat Completions."""

    def conversation_to_chat(self, conversation: str | Items, /) -> Items:
        """The messages for text or for items."""

    def answer_to_json(self, answer: ChatAnswer, template: ResponseTemplate, /) -> bytes:
        """The response for an answer."""


class ChatTexts:
    """The requests of one model server. ``finish`` adds what the server sends besides the converted options."""

    def __init__(
        self,
        texts: RequestTexts,
        converter: Converter,
        finish: Callable[[dict[str, Any]], Mapping[str, Any]],
        *,
        model: str,
    ) -> None:
        self._texts = texts
        self._converter = converter
        self._finish = finish
        self._model = model
        self._marker = encode_json(urandom(16).hex())
        # Under these names, frames and beginnings hold what was made here.
        self._requests, self._responses = object(), object()

    def request(self, asked: SplitRequest) -> bytes:
        """The chat for a request; raises what the conversion raises."""
        before, first, after = asked.frame.products.get(self._requests) or self._shell(asked.frame)
        messages = [part for part in (first, *self._messages(asked)) if part]
        return b"%b[%b]%b" % (before, b",".join(messages), after)

    def response(self, asked: SplitRequest, answer: ChatAnswer) -> bytes:
        """The response to a request."""
        template = asked.frame.products.get(self._responses)
        if template is None:
            template = ResponseTemplate(asked.frame.options, model=self._model)
            asked.frame.products[self._responses] = template
        return self._converter.answer_to_json(answer, template)

    def _shell(self, frame: RequestFrame) -> tuple[bytes, bytes, bytes]:
        """What a chat has before its messages, its first messages, and the rest; all but the conversation."""
        chat = self._converter.request_to_chat({**frame.options, "input": ()})
        first = encode_list(chat["messages"])
        text = encode_json(self._finish({**chat, "messages": EncodedJson(self._marker)}))
        before, _, after = text.partition(self._marker)
        frame.products[self._requests] = shell = before, first, after
        return shell

    def _messages(self, asked: SplitRequest) -> tuple[bytes, ...]:
        """The messages for a conversation, in parts; those of each are joined by commas."""
        known, new, beginning = b"", asked.new, asked.beginning
        if beginning is not None:
            given = beginning.products.get(self._requests)
            known, new = (b"", asked.conversation) if given is None else (given, new)
        items: str | Items = decode_exactly(new)
        if isinstance(items, str) or len(asked.text) < LONG:
            return (self._convert(items),)
        end = end_of_turns(items)
        if end:
            known = joined(known, self._convert(items[:end]))
            place = end_of_item(asked, new, end)
        else:
            place = len(beginning.text) if beginning is not None and known else 0
        if place:
            self._texts.keep(asked, place, self._requests, known, len(known))
        return (known, self._convert(items[end:])) if end < len(items) else (known,)

    def _convert(self, items: str | Items) -> bytes:
        return encode_list(self._converter.conversation_to_chat(items))


def end_of_item(asked: SplitRequest, new: bytes, count: int) -> int:
    """Where in a request the item with this number ends, counted in its new part; 0 if its layout is unusual."""
    end = asked.end - 1
    left = _raw_items(new)[count:]
    for separator in (b",", b", "):
        rest = b"".join([separator + bytes(item) for item in left])
        place = end - len(rest)
        if asked.text[place - 1 : end] == b"}" + rest:
            return place
    return 0


def end_of_turns(items: Items) -> int:
    """After how many items the assistant's last turn begins, if it has begun: more may become part of it."""
    return next((end for end in range(len(items), 0, -1) if _ends_a_turn(items[end - 1])), 0)


def _ends_a_turn(item: Mapping[str, Any]) -> bool:
    """Whether the assistant's next words start a new message."""
    kind = item.get("type") or "message"
    return kind == "function_call_output" or (kind == "message" and item.get("role") != "assistant")
