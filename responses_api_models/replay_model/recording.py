"""The recording: a file with one exchange per line, which only grows.

    {"key": …, "path": "/v1/responses", "scope": [task, rollout, attempt], "base": …, "head": 812, "tail": 95,
     "request": "what is new", "status": 200, "answer": "the body, character by character"}

A request of a later turn repeats most of the one before it, so only what lies between their common start (``head``)
and their common end (``tail``) is written; ``base`` is the key of that earlier request. A line is written in one piece
under a lock. A line that a crash cut short stays in the file, and the next one begins behind it; all other lines are
complete. Several processes may record to one file.
"""

import base64
import fcntl
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from nemo_gym.schemas.call_tokens import common_prefix
from nemo_gym.servers.middleware.rollout_scope import RolloutScope
from responses_api_models.replay_model.matching import common_end

REMEMBERED: Final = 4096  # how many attempts to remember the last request of
WORTHWHILE: Final = 64  # characters in common

SHOWN_LINES: Final = 5
# How a line begins: whose reply a damaged one held can often still be read.
BEGINNING: Final = re.compile(rb'\{"key":"([0-9a-f]+)","path":"[^"]*","scope":(?:null|\[(-?\d+),(\d+),(\d+)\])')

Scope = tuple[int, int, int]  # task, rollout, attempt


class DamagedRecordingError(ValueError):
    """What was requested is, or may be, on a line that cannot be read."""

    def __init__(self, lines: Sequence[int]) -> None:
        shown = ", ".join(map(str, lines[:SHOWN_LINES])) + (", …" if len(lines) > SHOWN_LINES else "")
        which = f"lines {shown} of it are" if len(lines) > 1 else f"line {shown} of it is"
        super().__init__(f"{which} damaged")


class Place(NamedTuple):
    """Where a line is."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """The reply to a request."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request: its key, its path, its canonical text, and the rollout that made it."""

    key: str
    path: str
    text: str
    scope: RolloutScope | None


class _Line(msgspec.Struct):
    """A line without its request, which may be long."""

    key: str
    status: int
    scope: Scope | None
    answer: str | None = None
    answer_base64: str | None = None
    headers: dict[str, str] = {}

    @property
    def body(self) -> bytes:
        """The body of the reply; a ValueError if there is none."""
        if self.answer is not None:
            return self.answer.encode()
        if self.answer_base64 is None:
            raise ValueError("no reply")
        return base64.b64decode(self.answer_base64, validate=True)


_read_line = msgspec.json.Decoder(_Line).decode


class Recorder:
    """Appends exchanges to a recording."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._recent: OrderedDict[str | None, RecordedRequest] = OrderedDict()
        self._whole: RecordedRequest | None = None  # the last request that was written in full

    def append(self, request: RecordedRequest, reply: RecordedReply) -> Place:
        """Write an exchange completely or not at all."""
        line = orjson.dumps(self._shortened(request) | _encoded(reply)) + b"\n"
        with _locked(self._descriptor):
            offset = self._end_torn_line()
            try:
                rest = line
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except BaseException:
                os.ftruncate(self._descriptor, offset)
                raise
        self._remember(request)
        return Place(offset, len(line))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _shortened(self, request: RecordedRequest) -> dict[str, Any]:
        scope = list(request.scope[:3]) if request.scope is not None else None
        line = {"key": request.key, "path": request.path, "scope": scope}
        base = self._recent.get(_run(request), self._whole)
        if base is not None:
            head = common_prefix(base.text, request.text)
            tail = common_end(base.text[head:], request.text[head:])
            if head + tail > max(WORTHWHILE, len(request.text) // 2) and base.key != request.key:
                new = request.text[head : len(request.text) - tail]
                return line | {"base": base.key, "head": head, "tail": tail, "request": new}
        self._whole = request
        return line | {"request": request.text}

    def _remember(self, request: RecordedRequest) -> None:
        self._recent[_run(request)] = request
        self._recent.move_to_end(_run(request))
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def _end_torn_line(self) -> int:
        """Begin a new line, if another process died while it wrote; where the file ends then."""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            size += os.write(self._descriptor, b"\n")
        return size


class Recording:
    """Where the recorded replies are. The replies themselves stay in the file until they are needed."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._places: dict[str, list[tuple[Scope | None, Place]]] = {}
        self._own: dict[tuple[str, int, int], list[tuple[int, Place]]] = {}
        # The numbers of lines that cannot be read: all of them, those whose rollout is known, and the rest.
        self.unreadable: list[int] = []
        self._unreadable_of: dict[tuple[str, int, int] | tuple[str], list[int]] = {}
        self._nobodys: list[int] = []
        self._damaged: dict[Place, int] = {}
        offset = 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                self._add_line(line, Place(offset, len(line)), number)
                offset += len(line)

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def add(self, key: str, scope: Scope | None, place: Place) -> None:
        """Add a line that was written meanwhile."""
        self._places.setdefault(key, []).append((scope, place))
        if scope is not None:
            self._own.setdefault((key, *scope[:2]), []).append((scope[2], place))

    def is_known(self, key: str) -> bool:
        """Whether this request was recorded at all."""
        return key in self._places

    def find(self, key: str, scope: RolloutScope | None, number: int) -> Place | None:
        """Find the reply for an attempt that makes this request for the ``number``-th time, counted from 0.

        A recorded attempt gets the reply it got then. Otherwise the rollout's replies are used in the order in which
        they came. A rollout that was not recorded gets those of others, each rollout starting with a different one.
        Raises ``DamagedRecordingError`` if its reply may be on a line that cannot be read.
        """
        own = self._own.get((key, scope.task, scope.rollout)) if scope is not None else None
        others = self._places.get(key)
        who = (key, scope.task, scope.rollout) if scope is not None else (key,)
        if not own if scope is not None else number >= len(others or ()):
            unreadable = self._unreadable_of.get(who) or self._nobodys
            if unreadable:
                raise DamagedRecordingError(unreadable)
        if not others:
            return None
        if scope is None or not own:
            return others[((scope.rollout if scope is not None else 0) + number) % len(others)][1]
        exact = [place for attempt, place in own if attempt == scope.attempt] or [place for _, place in own]
        return exact[number] if number < len(exact) else None

    def reply(self, place: Place) -> RecordedReply:
        """Read the reply on a line."""
        if place in self._damaged:
            raise DamagedRecordingError([self._damaged[place]])
        line = _read_line(os.pread(self._descriptor, place.length, place.offset))
        return RecordedReply(line.status, line.body, line.headers)

    def text(self, place: Place) -> str | None:
        """Read the canonical text of the request on a line; None if a line that it builds on is missing."""
        if place in self._damaged:
            return None
        line, pieces = self._line(place), list[dict[str, Any]]()
        while line.get("base") is not None:
            pieces.append(line)
            bases = [base for _, base in self._places.get(line["base"], ()) if base not in self._damaged]
            if not bases or len(pieces) > REMEMBERED:
                return None
            line = self._line(bases[0])
        text: str = line["request"]
        for piece in reversed(pieces):
            text = text[: piece["head"]] + piece["request"] + text[len(text) - piece["tail"] :]
        return text

    def requests(self, scope: RolloutScope | None, most: int) -> Iterator[tuple[Scope | None, Place]]:
        """List a line for each request: those of the same rollout first, then of the same task, then the others."""

        def distance(who: Scope | None) -> int:
            if who is None or scope is None or who[0] != scope.task:
                return 2
            return int(who[1] != scope.rollout)

        nearest = (min(places, key=lambda one: distance(one[0])) for places in self._places.values())
        yield from sorted(nearest, key=lambda one: (distance(one[0]), one[1]))[:most]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _add_line(self, text: bytes, place: Place, number: int) -> None:
        try:
            str(text, "utf-8")  # the decoder does not check strings that it skips
            line = _read_line(text)
            _ = line.body
        except (ValueError, msgspec.MsgspecError):
            if text.strip():
                self._add_unreadable(text, place, number)
            return
        self.add(line.key, line.scope, place)

    def _add_unreadable(self, text: bytes, place: Place, number: int) -> None:
        """Note whose line cannot be read. One that a crash cut short never reached its caller, so it holds no place."""
        self.unreadable.append(number)
        found = list(BEGINNING.finditer(text))
        if not found or found[0].start():
            self._nobodys.append(number)
        for begun in found:  # more than one, if the end of a line is missing, and of its reply
            key, scope = begun[1].decode(), (int(begun[2]), int(begun[3]), int(begun[4])) if begun[2] else None
            self._unreadable_of.setdefault((key, *scope[:2]) if scope else (key,), []).append(number)
            if begun is found[-1] and text.rstrip().endswith(b"}"):
                damaged = Place(place.offset + begun.start(), place.length - begun.start())
                self._damaged[damaged] = number
                self.add(key, scope, damaged)

    def _line(self, place: Place) -> dict[str, Any]:
        line: dict[str, Any] = orjson.loads(os.pread(self._descriptor, place.length, place.offset))
        return line


def _run(request: RecordedRequest) -> str | None:
    return request.scope.run if request.scope is not None else None


def _encoded(reply: RecordedReply) -> dict[str, Any]:
    line: dict[str, Any] = {"status": reply.status}
    if reply.headers:
        line["headers"] = dict(reply.headers)
    try:
        return line | {"answer": reply.body.decode()}
    except UnicodeDecodeError:
        return line | {"answer_base64": base64.b64encode(reply.body).decode()}


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
