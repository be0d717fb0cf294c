"""When two requests count as the same, and how different ones differ.

The order of keys does not matter, nor whether a parameter is null or missing. Headers are not part of a request.

The key of a request is a digest of its canonical text. Of a conversation whose beginning was asked before, only the new
items are written and digested; the result is the same.
"""

import json
from hashlib import blake2b
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

import msgspec
import orjson
from pydantic import BaseModel, ConfigDict

from nemo_gym.conversion.chat_answers import uuid4
from nemo_gym.conversion.request_texts import LONG, RequestFrame, RequestTexts, SplitRequest
from nemo_gym.metrics.continuity import common_prefix
from nemo_gym.servers.direct.routes import UnreadBody

SHOWN: Final = 80
MISSING: Final = object()
DIGEST_BYTES: Final = 512  # of memory


def canonical(body: bytes) -> str:
    """Write a request so that equal requests give equal text; a body that is not a JSON object stays as it is."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="backslashreplace")
    if isinstance(request, dict):
        request = {name: value for name, value in request.items() if value is not None}
    return orjson.dumps(request, option=orjson.OPT_SORT_KEYS).decode()


def key_of(path: str, text: str) -> str:
    """Compute the key of a request from its canonical text."""
    return blake2b(f"{path}\n{text}".encode(errors="backslashreplace"), digest_size=16).hexdigest()


class AnyRequest(BaseModel):
    """A request that is forwarded or looked up without being read; the upstream server checks it."""

    model_config = ConfigDict(extra="allow")

    # A stream is made from the recorded answer, before the request comes here.
    stream: Literal[False] | None = None


def _texts(key: str) -> RequestTexts:
    fields: list[Any] = [(key, msgspec.Raw), ("stream", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET)]
    return RequestTexts(key, msgspec.defstruct("_Outline", fields, gc=False))


class _Digested(NamedTuple):
    """A digest of everything up to some item of a conversation, and with what it starts."""

    start: bytes
    digest: blake2b


class RecordedRequest(UnreadBody):
    """A request of the Responses API."""

    __slots__ = ()

    model = AnyRequest
    path: ClassVar[str] = "/v1/responses"
    decoder = msgspec.json.Decoder(str | list[msgspec.Raw])
    # It only saves time: whatever is not found here is read as a whole.
    texts: ClassVar[RequestTexts] = _texts("input")

    @classmethod
    def read(cls, text: bytes) -> Self:
        """The body of a direct call; a ValueError means that the model has to decide."""
        split = cls.texts.split(text, cls.decoder.decode)
        if split is None or split.frame.options.get("stream"):
            raise ValueError("not as usual")
        return cls(text, split)

    def key(self) -> str | None:
        """The key of the request, if its text was read in parts."""
        split: SplitRequest | None = self.outline
        if split is None:
            return None
        try:
            return self._key(split)
        except orjson.JSONDecodeError:
            return None

    def _key(self, split: SplitRequest) -> str:
        start, end = split.frame.products.get(self.path) or self._canonical(split.frame)
        if isinstance(split.items, str):
            return blake2b(start + _canonical_json(split.new) + end, digest_size=16).hexdigest()
        known = split.beginning.products.get(self.path) if split.beginning is not None else None
        if known is not None and known.start == start:
            digest, separator, new = known.digest.copy(), b",", split.new
        else:
            digest, separator, new = blake2b(start + b"[", digest_size=16), b"", split.conversation
        items = _canonical_json(new)[1:-1]
        if items:
            digest.update(separator + items)
        if len(split.text) >= LONG and split.text[split.end - 2 : split.end] == b"}]":
            self.texts.keep(split, split.end - 1, self.path, _Digested(start, digest.copy()), DIGEST_BYTES)
        digest.update(b"]" + end)
        return str(digest.hexdigest())

    def _canonical(self, frame: RequestFrame) -> tuple[bytes, bytes]:
        """What is digested before and after a conversation."""
        marker = orjson.dumps(uuid4().hex)
        text = canonical(b"%b%b%b" % (frame.head, marker, frame.tail)).encode()
        start, _, end = text.partition(marker)
        frame.products[self.path] = pair = f"{self.path}\n".encode() + start, end
        return pair


class RecordedChat(RecordedRequest):
    """A request of Chat Completions."""

    __slots__ = ()

    path = "/v1/chat/completions"
    texts = _texts("messages")


def _canonical_json(text: bytes) -> bytes:
    return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)


def common_end(one: str, other: str) -> int:
    """Count the characters that two texts have in common at the end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def likeness(one: str, other: str) -> int:
    """Measure how much two texts have in common; more is nearer."""
    start = common_prefix(one, other)
    return start + common_end(one[start:], other[start:]) - abs(len(one) - len(other)) // 4


def first_difference(recorded: str, asked: str) -> str:
    """Describe where two requests first differ."""
    try:
        found = _difference(orjson.loads(recorded), orjson.loads(asked), "")
    except orjson.JSONDecodeError:
        found = None
    if found is None:
        place = common_prefix(recorded, asked)
        return f"at character {place}: recorded {_shown(recorded[place:])}, asked {_shown(asked[place:])}"
    where, one, other = found
    return f"at {where or 'the top'}: recorded {_shown(one)}, asked {_shown(other)}"


def _difference(one: Any, other: Any, where: str) -> tuple[str, Any, Any] | None:
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{where}.{name}".lstrip("."), name) for name in sorted({*one, *other})]
        inner = ((place, one.get(name, MISSING), other.get(name, MISSING)) for place, name in pairs)
    elif isinstance(one, list) and isinstance(other, list):
        numbers = range(max(len(one), len(other)))
        inner = ((f"{where}[{n}]", _at(one, n), _at(other, n)) for n in numbers)
    else:
        return None if one == other and type(one) is type(other) else (where, one, other)
    return next((found for place, a, b in inner if (found := _difference(a, b, place))), None)


def _at(items: list[Any], number: int) -> Any:
    return items[number] if number < len(items) else MISSING


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
