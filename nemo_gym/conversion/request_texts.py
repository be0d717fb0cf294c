"""Splits the JSON of requests into options and conversation, and recognizes what earlier requests had in common.

The requests of a run differ in their conversations but hardly in their options, and an agent sends its whole
conversation with every call. So two things are remembered, each with whatever was made from it: the text around a
conversation (a :class:`RequestFrame`), and how conversations began (a :class:`Beginning`). What is known is compared
byte by byte and not parsed again, so an edited or branched conversation is never mistaken for another one.

Why that is safe: a beginning ends behind an item of the conversation, where only a comma or the closing bracket can
follow, whatever comes before; and no prefix of a JSON list or string is itself one, so a request has one frame at most.
Frames and beginnings are forgotten when they become too many or too large; then the text is simply parsed again.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from nemo_gym.io.json import decode_exactly, encode_json

# From this number of bytes on, it is cheaper to look for a known beginning than to parse the whole.
LONG: Final = 4096
DEFAULT_MAX_BYTES: Final = 64 * 2**20
# Beginnings are looked up by the bytes before the last multiple of STEP, at most STEPS of them from the end.
STEP: Final = 2048
STEPS: Final = 64
WINDOW: Final = 48
ALIKE: Final = 64  # beginnings with the same bytes there, as of rollouts of one task
MOST_FRAMES: Final = 512
MOST_TAILS: Final = 8
MOST_MARKS: Final = 8  # places that may be the conversation's key; it also occurs in schemas of tools
LONGEST_FRAME: Final = 2**18
MAX_FRAME_BYTES: Final = 2**22  # of all of them; what is made from one is about as large
# What may follow an item, as it is usually written. After a comma comes another item.
_FOLLOWING: Final = (b",{", b", {", b"]")

Decode = Callable[[bytes], Any]


class RequestFrame:
    """The text around a conversation."""

    __slots__ = ("head", "options", "products", "tail")

    def __init__(self, head: bytes, tail: bytes, options: dict[str, Any]) -> None:
        self.head = head
        self.tail = tail
        self.options = options  # shared by all requests with this frame, so they must not be changed
        self.products: dict[Hashable, Any] = {}  # what was made from it, by maker


class Beginning:
    """A text up to and including some item of its conversation."""

    __slots__ = ("head_size", "products", "size", "text")

    def __init__(self, text: bytes, head_size: int) -> None:
        self.text = text
        self.head_size = head_size
        self.size = len(text)
        self.products: dict[Hashable, Any] = {}


class SplitRequest(NamedTuple):
    """A request whose conversation is everything in the beginning, if there is one, and then the new items."""

    text: bytes
    frame: RequestFrame
    beginning: Beginning | None
    # The new part of the conversation: JSON of a list or of a string.
    new: bytes
    items: Any  # of the new part, as the caller's decoder sees them

    @property
    def end(self) -> int:
        """Where the frame goes on after the conversation."""
        return len(self.text) - len(self.frame.tail)

    @property
    def conversation(self) -> bytes:
        """The JSON of the whole conversation."""
        return self.text[len(self.frame.head) : self.end]


class RequestTexts:
    """What is known about the texts of requests whose conversation has a certain key."""

    def __init__(self, key: str, outline: Any, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """``outline`` is a structure of ``msgspec.Raw``, or of nothing where an option is missing."""
        self._key = key
        self._mark = f'"{key}":'.encode()
        self._outline = msgspec.json.Decoder(outline)
        self._max_bytes = max_bytes
        self.size = 0
        self._frames: dict[bytes, list[RequestFrame]] = {}
        self.frame_count = 0
        self._frame_bytes = 0
        self._known: dict[tuple[int, bytes], list[Beginning]] = {}
        self._used: OrderedDict[Beginning, None] = OrderedDict()

    def split(self, text: bytes, decode: Decode) -> SplitRequest | None:
        """The parts of a request; None if it can't be split safely. Raises ``ValueError`` if it is not as expected.

        ``decode`` reads the JSON of a conversation, or of the new items in one.
        """
        beginning = self._find(text) if len(text) >= LONG else None
        try:
            if beginning is not None:
                rest = text[len(beginning.text) :].removeprefix(b",")
                found = self._split(text, b"%b[%b" % (text[: beginning.head_size], rest), beginning, decode)
                if found is not None:
                    return found
            return self._split(text, text, None, decode)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None

    def _split(self, text: bytes, short: bytes, beginning: Beginning | None, decode: Decode) -> SplitRequest | None:
        """``short`` is the text without the items of the beginning."""
        if beginning is not None:
            starts: Iterable[int] = (beginning.head_size,)
        else:
            first = short.find(self._mark) + len(self._mark)
            starts = (first + (short[first : first + 1] == b" "),)  # usually it is the first place
        found = self._in_frame(text, short, starts, beginning, decode)
        if found is None and beginning is None:
            starts = list(self._starts(short))
            found = self._in_frame(text, short, starts, beginning, decode)
        return found or self._learn(text, short, starts, beginning, decode)

    def _in_frame(
        self, text: bytes, short: bytes, starts: Iterable[int], beginning: Beginning | None, decode: Decode
    ) -> SplitRequest | None:
        """The parts of a request whose conversation begins in one of these places, if its frame is known."""
        for start in starts:
            for frame in self._frames.get(short[:start], ()):
                if not short.endswith(frame.tail):
                    continue
                new = short[start : len(short) - len(frame.tail)]
                try:
                    if not new.isascii():
                        str(new, "utf-8")  # the decoder does not check strings that it skips
                    return SplitRequest(text, frame, beginning, new, decode(new))
                except (ValueError, msgspec.MsgspecError):
                    continue  # the tail is part of a longer one
        return None

    def _learn(
        self, text: bytes, short: bytes, starts: Iterable[int], beginning: Beginning | None, decode: Decode
    ) -> SplitRequest | None:
        str(short, "utf-8")
        new = bytes(getattr(self._outline.decode(short), self._key))
        items = decode(new)
        for start in starts:
            if not short.startswith(new, start):
                continue
            head, tail = short[:start], short[start + len(new) :]
            # With something else in this place, that is the conversation; so this was not merely an equal text.
            outline = self._outline.decode(b"%b0%b" % (head, tail))
            if bytes(getattr(outline, self._key)) == b"0":
                frame = RequestFrame(head, tail, self._options(outline))
                self._remember(frame)
                return SplitRequest(text, frame, beginning, new, items)
        return None

    def _options(self, outline: Any) -> dict[str, Any]:
        given = ((name, getattr(outline, name)) for name in outline.__struct_fields__ if name != self._key)
        return {name: decode_exactly(bytes(value)) for name, value in given if value is not msgspec.UNSET}

    def _starts(self, text: bytes) -> Iterator[int]:
        """Where the conversation may start."""
        start = 0
        for _ in range(MOST_MARKS):
            start = text.find(self._mark, start) + len(self._mark)
            if start < len(self._mark):
                return
            yield start + (text[start : start + 1] == b" ")

    def _remember(self, frame: RequestFrame) -> None:
        size = len(frame.head) + len(frame.tail)
        if size > LONGEST_FRAME:
            return
        self.frame_count += 1
        self._frame_bytes += size
        if self.frame_count > MOST_FRAMES or self._frame_bytes > MAX_FRAME_BYTES:
            self._frames, self.frame_count, self._frame_bytes = {}, 1, size
        frames = self._frames.setdefault(frame.head, [])
        frames.insert(0, frame)
        del frames[MOST_TAILS:]

    # ---- beginnings -------------------------------------------------------------------------------------------------
    def keep(self, request: SplitRequest, end: int, maker: Hashable, product: Any, size: int = 0) -> None:
        """Remember the text up to ``end``, behind an item, and what was made from it; not what it continues."""
        known = request.beginning
        if known is not None and len(known.text) == end and known in self._used:
            self._add(known, maker, product, size)
            self._used.move_to_end(known)
            return
        if known is not None:
            self._forget(known)
        if end < LONG:
            return
        text = request.text[:end]
        alike = self._known.setdefault(_place(text, end - end % STEP), [])
        beginning = next((one for one in alike if one.text == text), None)
        if beginning is None:
            beginning = Beginning(text, len(request.frame.head))
            alike.append(beginning)
            self._used[beginning] = None
            self.size += beginning.size
        self._add(beginning, maker, product, size)
        if len(alike) > ALIKE:
            self._forget(alike[0])
        while self.size > self._max_bytes and self._used:
            self._forget(next(iter(self._used)))

    def _add(self, beginning: Beginning, maker: Hashable, product: Any, size: int) -> None:
        if maker not in beginning.products:
            beginning.size += size
            self.size += size
        beginning.products[maker] = product

    def _find(self, text: bytes) -> Beginning | None:
        last = len(text) - len(text) % STEP
        for at in range(last, max(last - STEPS * STEP, 0), -STEP):
            for beginning in reversed(self._known.get(_place(text, at), ())):
                if text.startswith(beginning.text) and text.startswith(_FOLLOWING, len(beginning.text)):
                    return beginning
        return None

    def _forget(self, beginning: Beginning) -> None:
        if beginning not in self._used:
            return
        del self._used[beginning]
        self.size -= beginning.size
        place = _place(beginning.text, len(beginning.text) - len(beginning.text) % STEP)
        alike = self._known[place]
        alike.remove(beginning)
        if not alike:
            del self._known[place]


def _place(text: bytes, at: int) -> tuple[int, bytes]:
    return at, text[at - WINDOW : at]


def encode_list(values: list[Any]) -> bytes:
    """Values as JSON, joined by commas."""
    return encode_json(values)[1:-1] if values else b""


def joined(one: bytes, other: bytes) -> bytes:
    """Lists of values, each already joined by commas, as one."""
    return b"%b,%b" % (one, other) if one and other else one or other
