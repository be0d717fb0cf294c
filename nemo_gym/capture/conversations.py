"""Which captured call a request continues, by what its conversation says.

A request repeats the whole conversation. If it begins with that of an earlier call, unchanged, and with its completion,
then its prompt has to begin with the tokens of that call, whatever a template makes of them. The call is named by the
reference on its items, or else found by what it said.

Most requests repeat even the text of the one before, byte for byte. Then only what follows is parsed and converted
(``resume``), so that a turn costs what it adds.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.capture.calls import AttemptCalls, CapturedCall, SampledTokens, json_text, json_values
from nemo_gym.capture.lineage import RootReason, Sequenced, prompt_text
from nemo_gym.conversion.parts import CALL_REFERENCE, TOKEN_FIELDS, joined_text, separate_reasoning
from nemo_gym.io.json import decode_exactly

_REFERENCE: Final = b'"%b":"' % CALL_REFERENCE.encode()
_INPUT: Final = b'"input":['
_UNSENT: Final = frozenset({*TOKEN_FIELDS, CALL_REFERENCE})
Repeat = Callable[[Mapping[str, Any]], dict[str, Any]]  # makes a chat of a request


@dataclass(slots=True)
class AskedConversation:
    """What a call was asked, as text, and how its prompt came about."""

    text: bytes  # the messages as JSON, without the last bracket; empty once a later conversation begins with it
    options: bytes  # everything else that changes the prompt
    count: int  # of messages
    head: Sequence[Mapping[str, Any]]  # the messages of the first call
    head_ids: list[int] = field(default_factory=list)  # what the template made of them
    as_rendered: bool = False  # the prompt is what the template makes of the messages, not a corrected one
    later: "AskedConversation | None" = None
    size: int = 0  # of the text
    # Of a request of the Responses API: its text up to its last item, what stands before its items, and its messages.
    # Empty once a later conversation begins with it.
    request: bytes = b""
    leading: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[dict[str, Any]] = ()

    def begins(self, text: bytes, reply: bytes) -> bool:
        """Whether messages begin with these and a completion."""
        holder = self
        while holder.later is not None:
            holder = holder.later
        end = self.size + 1 + len(reply)
        return (
            bool(holder.text)
            and text[: self.size] == holder.text[: self.size]
            and text[self.size : end] == b"," + reply
            and text[end : end + 1] in (b",", b"")
        )

    def move_into(self, later: "AskedConversation") -> None:
        """Hold the text only once, in a conversation that begins with this one."""
        if self.later is None:
            self.later, self.text, self.request, self.messages = later, b"", b"", ()


@dataclass(slots=True)
class Linked:
    """A request and the captured call that it continues, if there is one."""

    attempt: AttemptCalls
    messages: list[dict[str, Any]]  # as the endpoint gets them
    conversation: AskedConversation
    call: CapturedCall | None = None
    reason: RootReason | None = None  # why there is none
    changed: CapturedCall | None = None  # the call that it would continue, had nothing been changed

    @property
    def before(self) -> AskedConversation | None:
        """The conversation that is continued."""
        state = self.call.state if self.call is not None else None
        return state if isinstance(state, AskedConversation) else None

    @property
    def roles(self) -> tuple[str, ...]:
        """Of the messages since then, the completion included."""
        before = self.before
        return tuple(message["role"] for message in self.messages[before.count if before is not None else 0 :])

    def window(self) -> list[dict[str, Any]]:
        """The short conversation that ends like the whole one."""
        before = self.before
        assert before is not None
        return [*before.head, *self.messages[before.count :]]  # type: ignore[list-item]

    def with_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with the tokens of all completions that are known, as a client would have sent them."""
        found = [_with_tokens(message, self.attempt.find(message.get(CALL_REFERENCE))) for message in messages]
        call: Sequenced | None = self.call or self.changed
        while isinstance(call, CapturedCall):
            place = _count(call)
            found[place] = _with_tokens(found[place], call)
            call = call.parent
        return found


def as_kept(chat: dict[str, Any], attempt: AttemptCalls) -> dict[str, Any]:
    """A chat of a program with earlier completions as they were, where it only wrote them in another form.

    Clients parse and write arguments, leave out empty fields, and turn texts into parts to mark them for a cache. None
    of that is content, but it would make other tokens of the same conversation.
    """
    if not attempt.repeats:
        return chat
    return {**chat, "messages": [part for message in chat["messages"] for part in _message_as_kept(message, attempt)]}


def _message_as_kept(message: dict[str, Any], attempt: AttemptCalls) -> Sequence[dict[str, Any]]:
    if message["role"] == "assistant":
        call = attempt.repeats.get(_saying(message))
        return call.messages if call is not None else (message,)
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text":
        return ({**message, "content": content[0]["text"]},)
    return (message,)


def expect_repeats(attempt: AttemptCalls, call: CapturedCall, message: Mapping[str, Any] | None = None) -> None:
    """Recognize the completion of a call in later requests; ``message`` is it as a chat, if that is not kept yet."""
    if message is not None:
        call.messages = [
            {"role": "assistant", **{key: value for key, value in without_tokens(message).items() if value}}
        ]
        call.reply = json_text(call.messages)
    if len(call.messages) == 1:
        attempt.repeats[_saying(call.messages[0])] = call


def _saying(message: Mapping[str, Any]) -> bytes:
    """What an assistant's message says, however it is written."""
    content = message.get("content")
    text = joined_text(content) if isinstance(content, list) else content or ""
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return orjson.dumps([text.strip(), separate_reasoning(message).strip(), calls], option=orjson.OPT_SORT_KEYS)


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or call.get("custom") or {}
    given: Any = function.get("arguments", function.get("input"))
    with suppress(orjson.JSONDecodeError, TypeError):
        given = orjson.loads(given)
    return [call.get("id"), function.get("name"), given]


def link(given: Sequence[Mapping[str, Any]], options: bytes, attempt: AttemptCalls) -> Linked:
    """Find the call that a chat continues; ``options`` is everything but its messages that may change a prompt."""
    messages = [without_tokens(message) for message in given]
    text = orjson.dumps(messages)[:-1]
    made = AskedConversation(text, options, len(messages), messages, size=len(text), messages=messages)
    linked = Linked(attempt, messages, made)
    named = [message[CALL_REFERENCE] for message in given if message.get(CALL_REFERENCE) is not None]
    call = attempt.find(named[-1]) if named else _by_content(messages, attempt)
    if call is None:
        linked.reason = RootReason.UNKNOWN if named else None
        return linked
    before = call.state
    if not isinstance(before, AskedConversation) or options != before.options:
        linked.reason = RootReason.CHANGED
        return linked
    if not before.begins(text, call.reply):
        linked.reason = RootReason.CHANGED
        return linked
    linked.call = call
    made.head, made.head_ids = before.head, before.head_ids
    return linked


class Resumed(NamedTuple):
    """A request whose text begins with that of a captured call and its completion."""

    call: CapturedCall
    before: AskedConversation
    request: dict[str, Any]  # with the items that are new
    text: bytes  # up to the last of them

    def messages(self, new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """All messages, given those of the new items."""
        return [*self.before.messages, *self.call.messages, *new]

    def link(self, new: Sequence[dict[str, Any]], options: bytes, attempt: AttemptCalls) -> Linked:
        """The request linked to the call; ``new`` are the messages of its new items."""
        messages = self.messages(new)
        if options != self.before.options:
            text = orjson.dumps(messages)[:-1]
            made = AskedConversation(text, options, len(messages), messages, size=len(text), messages=messages)
            return Linked(attempt, messages, made, reason=RootReason.CHANGED, changed=self.call)
        made = replace(self.before, text=b"", size=0, count=len(messages), messages=messages, request=self.text)
        return Linked(attempt, messages, made, self.call)


def resume(attempt: AttemptCalls, text: bytes) -> Resumed | None:
    """Find the call whose conversation the text of a request begins with; None if the whole has to be read."""
    start = text.rfind(_REFERENCE) + len(_REFERENCE)
    call = attempt.find(text[start : text.find(b'"', start)].decode("latin-1")) if start >= len(_REFERENCE) else None
    before = call.state if call is not None else None
    if call is None or not isinstance(before, AskedConversation) or not before.request or not before.head_ids:
        return None
    begun = b"%b,%b," % (before.request, call.texts.output)
    if not text.startswith(begun):
        return None
    try:
        fields = decode_exactly(b'{"input":[' + text[len(begun) :])
        new = fields["input"]
        end = len(begun) + len(json_text(new))
    except (ValueError, KeyError, TypeError):
        return None
    if (
        not new
        or not _is_said_to_model(new[0])
        or text[end : end + 1] != b"]"
        or text[len(begun) : end] != json_text(new)
    ):
        return None
    return Resumed(call, before, {**before.leading, **fields}, text[:end])


def _is_said_to_model(item: Any) -> bool:
    """Whether an item can't become part of the message before it."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type", "message")
    return kind == "function_call_output" or (kind == "message" and item.get("role") not in (None, "assistant"))


def without_tokens(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its tokens or the reference to them, which endpoints do not know."""
    return {name: value for name, value in message.items() if name not in _UNSENT}


def _by_content(messages: Sequence[Mapping[str, Any]], attempt: AttemptCalls) -> CapturedCall | None:
    """The call whose completion is the last of the conversation, for clients that drop references."""
    place = next((n for n in range(len(messages) - 1, -1, -1) if messages[n]["role"] == "assistant"), None)
    if place is None or not attempt.calls:
        return None
    reply = orjson.dumps(messages[place])
    found = [each for each in attempt.calls.values() if each.reply == reply and _count(each) == place]
    return found[-1] if found else None


def _count(call: CapturedCall) -> int:
    return call.state.count if isinstance(call.state, AskedConversation) else -1


def _with_tokens(message: Mapping[str, Any], call: CapturedCall | None) -> dict[str, Any]:
    plain = {name: value for name, value in message.items() if name != CALL_REFERENCE}
    if call is None:
        return plain
    ids = (json_values(prompt_text(call)), json_values(call.generation), json_values(call.texts.log_probs))
    return plain | dict(zip(TOKEN_FIELDS[:3], ids, strict=True)) | dict(call.details)


def keep(linked: Linked, tokens: SampledTokens, *, as_rendered: bool) -> CapturedCall:
    """Keep the call that a request became; ``as_rendered`` if its prompt is what the template makes of its messages."""
    reason = linked.reason or (RootReason.RETOKENIZED if linked.call is not None else None)
    call = linked.attempt.add(tokens, linked.call, reason)
    conversation = linked.conversation
    conversation.as_rendered = as_rendered
    if linked.call is None or call.parent is not linked.call:
        conversation.head = linked.messages
        conversation.head_ids = json_values(tokens.prompt) if as_rendered else []
    elif linked.before is not None:
        linked.before.move_into(conversation)
    call.state = conversation
    return call


def keep_items(
    attempt: AttemptCalls | None,
    conversation: Any,
    output: Sequence[Mapping[str, Any]],
    repeat: Repeat,
    *,
    text: bytes = b"",
    resumed: Resumed | None = None,
) -> None:
    """Keep the items of a call whose tokens are kept, and how the next request will repeat them.

    ``text`` is the request as it came; ``conversation`` are its items, or the new ones if it was resumed.
    """
    call = attempt.find(output[-1].get(CALL_REFERENCE)) if attempt is not None and output else None
    if attempt is None or call is None:
        return
    items = conversation if isinstance(conversation, list) else [{"role": "user", "content": conversation}]
    attempt.describe(call, items, output, before=resumed.call.items if resumed is not None else 0)
    call.messages = [without_tokens(message) for message in repeat({"input": output})["messages"]]
    call.reply = json_text(call.messages)
    state = call.state
    if resumed is None and text and isinstance(state, AskedConversation) and isinstance(conversation, list):
        state.request, state.leading = _beginning(text, json_text(conversation))


def _beginning(text: bytes, items: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """The text of a request up to its last item, and the options before its items; nothing if it is written oddly."""
    start = text.find(_INPUT) + len(_INPUT)
    end = start + len(items)
    if start < len(_INPUT) or text[start:end] != items or text[end : end + 1] != b"]":
        return b"", {}
    before = text[: start - len(_INPUT)].rstrip(b",")
    try:
        return text[:end], decode_exactly(before + b"}")
    except ValueError:
        return b"", {}
