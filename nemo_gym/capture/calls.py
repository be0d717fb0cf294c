"""What is kept of the model calls of open attempts, in the process of the model server that answered them.

Items that a model server returns inside an attempt carry a reference (``ng_call``) instead of their tokens, and the
tokens are kept here: of a prompt only what it adds to an earlier call, as JSON text, which takes a fifth of the memory
of Python's numbers and is compared at the speed of memory. When the attempt has ended, the collector takes its calls
once, in one piece.

An attempt is named by its mark, which nobody can guess, and sees only its own calls. Beyond a limit of memory, the
texts of attempts that were quiet the longest move to a temporary file. An attempt that nobody ends is forgotten when
very many came after it. One that has ended is not opened again: a late call gets tokens on its items.
"""

import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_hex
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from nemo_gym.capture.lineage import RootReason, Sequenced, find_parent, prompt_text, shared_text
from nemo_gym.schemas.call_tokens import LOG_PROBS, TRAINABLE

MOST_ATTEMPTS: Final = 65_536
MOST_BYTES: Final = 1 << 30  # in memory, of all attempts
ID, PARENT, REASON, INPUT, OUTPUT, KEPT_OF = "id", "parent", "reason", "input", "output", "kept_of"
NOTES, SAID = "notes", "said"  # the second: what the outline of a prompt without tokens amounts to

CallFields = dict[str, Any]


class SampledTokens(NamedTuple):
    """The tokens of a completion as JSON text without brackets, and what is recorded beside them."""

    prompt: bytes
    generation: bytes
    log_probs: bytes
    details: Mapping[str, Any]


def json_text(values: Sequence[Any]) -> bytes:
    """Numbers or items as JSON text without brackets."""
    return orjson.dumps(values)[1:-1]


def json_values(text: bytes) -> list[Any]:
    """The numbers of such a text."""
    numbers: list[Any] = orjson.loads(b"[%b]" % text)
    return numbers


@dataclass(slots=True)
class AnsweredRequest:
    """A request of a program that is being answered."""

    likely: Sequence[Sequenced] = ()  # the calls that it may continue, in this order, if several fit equally well
    kept: "list[CapturedCall]" = field(default_factory=list)  # for it


answered_request: ContextVar[AnsweredRequest | None] = ContextVar("answered_request", default=None)


class _Texts(NamedTuple):
    """The parts of a call that take memory."""

    added: bytes
    generation: bytes
    log_probs: bytes
    input: bytes = b""
    output: bytes = b""


class CapturedCall(Sequenced):
    """One model call."""

    __slots__ = (
        "_file",
        "_held",
        "_place",
        "details",
        "has_tokens",
        "id",
        "items",
        "messages",
        "notes",
        "outlined",
        "reason",
        "reply",
        "seconds",
        "started",
        "state",
    )

    def __init__(self, name: str, tokens: SampledTokens, reason: RootReason | None, *, has_tokens: bool = True) -> None:
        super().__init__()
        self.id = name
        self.has_tokens = has_tokens  # if not, the numbers are the outline of what was said
        self.notes: dict[str, Any] = {}  # what a program says of the call, for the trace that it is in
        self.outlined = 0  # how many numbers the outline of the conversation has, the completion included
        self.details = tokens.details
        self.reason = reason  # why it continues no other call
        self.items = 0  # how many items the conversation has with its completion
        self.messages: list[dict[str, Any]] = []  # the completion as a chat will repeat it
        self.reply = b""  # the same as text
        self.state: Any = None  # what the server remembers to continue this call; dropped once that has happened
        self.started, self.seconds = time.time(), 0.0
        self._held: _Texts | None = _Texts(tokens.prompt, tokens.generation, tokens.log_probs)
        self._file: BinaryIO | None = None
        self._place: list[int] = []

    @property
    def texts(self) -> _Texts:
        """The parts of the call, from memory or from the file."""
        if self._held is not None:
            return self._held
        assert self._file is not None
        self._file.seek(self._place[0])
        return _Texts(*(self._file.read(length) for length in self._place[1:]))

    def hold(self, **texts: bytes) -> int:
        """Change parts of the call, and return by how many bytes it has grown."""
        before = self.size
        self._held = self.texts._replace(**texts)
        return sum(map(len, self._held)) - before

    def spill(self, file: BinaryIO) -> None:
        """Move the texts to the end of a file."""
        if self._held is None:
            return
        self._file, self._place = file, [file.seek(0, 2), *map(len, self._held)]
        file.write(b"".join(self._held))
        self._held = None

    @property
    def size(self) -> int:
        """How many bytes of memory the texts take."""
        return sum(map(len, self._held)) if self._held is not None else 0

    @property
    def added(self) -> bytes:
        return self.texts.added

    @property
    def generation(self) -> bytes:
        return self.texts.generation

    def fields(self, *, items: bool) -> CallFields:
        """The call as JSON: with its tokens, and the items that it added to the conversation if they are wanted."""
        texts = self.texts
        shown = {INPUT: json_values(texts.input), OUTPUT: json_values(texts.output)} if items else {}
        tokens = {
            KEPT_OF: self.base.id if isinstance(self.base, CapturedCall) else None,
            "kept": self.kept,
            "added": json_values(texts.added),
            TRAINABLE: json_values(texts.generation),
            LOG_PROBS: json_values(texts.log_probs),
            "details": self.details,
        }
        return {
            ID: self.id,
            PARENT: self.parent.id if isinstance(self.parent, CapturedCall) else None,
            REASON: self.reason,
            **(tokens if self.has_tokens else {SAID: blake2b(prompt_text(self), digest_size=8).hexdigest()}),
            **({NOTES: self.notes} if self.notes else {}),
            "started": round(self.started, 3),
            "seconds": round(self.seconds, 3),
            **shown,
        }


@dataclass(slots=True)
class HeldBytes:
    """How many bytes of memory the texts of all attempts take; a sum over them would cost each call as many steps."""

    total: int = 0


@dataclass(slots=True)
class AttemptCalls:
    """The calls of one attempt."""

    # Random, so that references to calls of a forgotten attempt are not mistaken for others.
    name: str = field(default_factory=lambda: token_hex(4))
    calls: dict[str, CapturedCall] = field(default_factory=dict)
    roots: list[Sequenced] = field(default_factory=list)
    outlined_roots: list[Sequenced] = field(default_factory=list)  # of calls without tokens
    repeats: dict[bytes, CapturedCall] = field(default_factory=dict)  # of a program, by what their completions say
    size: int = 0
    held: HeldBytes = field(default_factory=HeldBytes)

    def _grow(self, size: int) -> None:
        self.size += size
        self.held.total += size

    def let_go(self) -> None:
        """No longer count among what is held; a call that still runs may come to it later."""
        self.held.total -= self.size
        self.held = HeldBytes()

    def find(self, reference: object) -> CapturedCall | None:
        """The call that a reference names."""
        return self.calls.get(reference) if isinstance(reference, str) else None

    def add(
        self,
        tokens: SampledTokens,
        hint: CapturedCall | None = None,
        reason: RootReason | None = None,
        *,
        has_tokens: bool = True,
    ) -> CapturedCall:
        """Keep a call. Its parent is the call whose tokens its prompt begins with; among equals, the hint.

        ``reason`` says why it continues none, if its request shows that. Of a call without tokens, the numbers are the
        outline of what was said.
        """
        roots = self.roots if has_tokens else self.outlined_roots
        request = answered_request.get()
        found = find_parent(tokens.prompt, roots, hint, request.likely if request is not None else ())
        why = None if found.call is not None else reason or found.reason
        call = CapturedCall(f"{self.name}.{len(self.calls)}", tokens, why, has_tokens=has_tokens)
        alike = (each for each in reversed(self.calls.values()) if each.has_tokens is has_tokens)
        base = found.call or hint or next(alike, None)
        if base is not None:
            call.continue_from(base, shared_text(base, tokens.prompt), is_parent=base is found.call)
            call.hold(added=tokens.prompt[call.start :].removeprefix(b","))
        call.complete(tokens.prompt)
        if found.call is None:
            roots.append(call)
        self.calls[call.id] = call
        self._grow(call.size)
        if request is not None:
            request.kept.append(call)
        return call

    def describe(
        self,
        call: CapturedCall,
        conversation: Sequence[Any],
        output: Sequence[Any],
        *,
        before: int = 0,
        begun: int | None = None,
    ) -> None:
        """Keep the items of a call: those that it adds to its parent's conversation, or all if it has no parent.

        ``before`` is how many items came before those of the conversation; ``begun`` how many of them are the parent's,
        if that is known better than by counting.
        """
        parent = call.parent if isinstance(call.parent, CapturedCall) else None
        if begun is None:
            begun = max(0, parent.items - before) if parent is not None else 0
            begun = begun if begun <= len(conversation) else 0
        call.items = before + len(conversation) + len(output)
        call.seconds = time.time() - call.started
        self._grow(call.hold(input=json_text(conversation[begun:]), output=json_text(output)))

    def taken(self, delivered: Iterable[str]) -> list[CallFields]:
        """All calls in order. Those that the caller has got already come without their items.

        What a program asked first comes in any case: only its answer is delivered.
        """
        known = frozenset(delivered)
        calls = self.calls.values()
        return [
            call.fields(items=call.id not in known or (call.parent is None and call.outlined > 0)) for call in calls
        ]


class CallStore:
    """The open attempts of one process."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_attempts: int = MOST_ATTEMPTS) -> None:
        self._most_bytes, self._most_attempts = most_bytes, most_attempts
        self._open: OrderedDict[str, AttemptCalls] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._held = HeldBytes()
        self._file: BinaryIO | None = None
        self._in_file: set[str] = set()  # attempts with texts there

    def __len__(self) -> int:
        return len(self._open)

    def attempt(self, mark: str) -> AttemptCalls | None:
        """The calls of an attempt, which is opened by its first call; None if it has ended."""
        if mark in self._ended:
            return None
        found = self._open.get(mark)
        if found is None:
            found = self._open[mark] = AttemptCalls(held=self._held)
            if len(self._open) > self._most_attempts:
                self._close(next(iter(self._open)))
        self._open.move_to_end(mark)
        return found

    def take(self, mark: str, delivered: Iterable[str] = ()) -> list[CallFields]:
        """The calls of an attempt, which ends with this."""
        found = self._open.get(mark)
        calls = [] if found is None else found.taken(delivered)
        self._close(mark)
        self._ended[mark] = None
        if len(self._ended) > self._most_attempts:
            self._ended.popitem(last=False)
        return calls

    def _close(self, mark: str) -> None:
        if (found := self._open.pop(mark, None)) is not None:
            found.let_go()
        if self._file is not None and mark in self._in_file:
            self._in_file.remove(mark)
            if not self._in_file:
                self._file.truncate(0)  # a run of days would fill the disk

    def forget(self, mark: str) -> None:
        """End an attempt whose calls nobody takes."""
        if mark in self._open:
            self.take(mark)

    def make_room(self) -> None:
        """Move texts to a file if there are too many in memory, those of the quietest attempts first."""
        excess = self.size - self._most_bytes
        for mark, attempt in self._open.items() if excess > 0 else ():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="ng-calls-")  # noqa: SIM115 - it lives as long as this
                weakref.finalize(self, self._file.close)
            for call in attempt.calls.values():
                call.spill(self._file)
            self._in_file.add(mark)
            excess -= attempt.size
            self._held.total -= attempt.size
            attempt.size = 0
            if excess <= 0:
                break

    @property
    def size(self) -> int:
        """How many bytes of memory the texts of all attempts take."""
        return self._held.total
