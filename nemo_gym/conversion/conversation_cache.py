"""Converts conversations item by item to JSON, and remembers how they began.

An agent sends its whole conversation with every call, and all of it but the last turn was converted at the call before.
So the messages of a conversation are kept, as JSON, for the call that continues it, which converts only what is new. A
beginning is found by its length and its last item and then compared in full; a conversation that branches or was edited
is converted anew. What a beginning lost in conversion was reported when it was first converted.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nemo_gym.io.json import decode_exactly, encode_json

Raw = msgspec.Raw
Items = list[dict[str, Any]]

# How many items a turn may add. After more, the conversation is converted as a whole.
LONGEST_TURN: Final = 64
DEFAULT_MAX_BYTES: Final = 64 * 2**20


class _Beginning(NamedTuple):
    items: bytes  # as they came, joined by commas
    messages: bytes  # likewise

    @property
    def size(self) -> int:
        return len(self.items) + len(self.messages)


class ConversationCache:
    """The latest conversations; the oldest are forgotten when they get too large together."""

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[tuple[int, bytes], _Beginning] = OrderedDict()

    def convert(self, items: Sequence[Raw], convert: Callable[[Items], Items]) -> bytes:
        """The messages for a conversation, as JSON joined by commas; ``convert`` makes them from parsed items."""
        count, messages = self._take(items)
        new: Items = decode_exactly(b"[%b]" % b",".join(items[count:]))
        # The assistant's last items may become one message with those that follow.
        end = next((end for end in range(len(new), 0, -1) if _ends_a_turn(new[end - 1])), 0)
        if end:
            messages = joined(messages, encode_list(convert(new[:end])))
        self._keep(items[: count + end], messages)
        return joined(messages, encode_list(convert(new[end:]))) if end < len(new) else messages

    def _take(self, items: Sequence[Raw]) -> tuple[int, bytes]:
        """How many of these items were converted before, and their messages, which are forgotten here."""
        for count in range(len(items), max(len(items) - LONGEST_TURN, 0), -1):
            key = count, bytes(items[count - 1])
            found = self._known.get(key)
            if found is not None and found.items == b",".join(items[:count]):
                self._forget(key)
                return count, found.messages
        return 0, b""

    def _keep(self, items: Sequence[Raw], messages: bytes) -> None:
        if not items:
            return
        key = len(items), bytes(items[-1])
        if key in self._known:
            self._forget(key)
        beginning = self._known[key] = _Beginning(b",".join(items), messages)
        self._bytes += beginning.size
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._known)))

    def _forget(self, key: tuple[int, bytes]) -> None:
        self._bytes -= self._known.pop(key).size


def _ends_a_turn(item: Mapping[str, Any]) -> bool:
    """Whether whatever the assistant says next is a message of its own."""
    kind = item.get("type") or "message"
    return kind == "function_call_output" or (kind == "message" and item.get("role") != "assistant")


def encode_list(values: Sequence[Any]) -> bytes:
    """Values as JSON, joined by commas."""
    return encode_json(list(values))[1:-1] if values else b""


def joined(*parts: bytes) -> bytes:
    """Values that are joined by commas already, in one."""
    return b",".join([part for part in parts if part])
