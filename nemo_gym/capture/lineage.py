"""Which call a call continues: the one whose tokens, read and sampled, are the longest beginning of its prompt. Pure.

Sequences are JSON text without brackets, ``1,2,3``. A call holds only what it adds to another, so the calls of an
attempt are a tree, which is searched from its roots: a prompt is compared with each part of it once, at most.

- A prompt that continues no call opens a new root.
- So does one that continues several calls equally well (a tie), unless the request itself says which of them it means.
- A repeated request is a sibling: it has the same prompt, and nobody continues both.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple


class RootReason(StrEnum):
    """Why a call continues no other."""

    FIRST = "first_call"
    TIE = "several_equal_calls"  # which of them it continues is not known
    SEPARATE = "new_conversation"  # a sub-agent, a title, history that was summed up
    CHANGED = "changed_history"  # the agent edited or left out what came before
    UNKNOWN = "unknown_call"  # the model server was restarted, or another one answered the call before
    RETOKENIZED = "other_tokens"  # the same conversation became other tokens, which is nobody's intention


class Sequenced:
    """A call as a sequence of tokens that begins with (a part of) another one."""

    __slots__ = ("base", "children", "end", "kept", "length", "parent", "start", "text")

    def __init__(self) -> None:
        self.base: Sequenced | None = None  # whose tokens the prompt begins with, maybe only with some of them
        self.parent: Sequenced | None = None  # the same call, if the prompt begins with all of them
        self.children: list[Sequenced] = []
        self.start = 0  # where the added text begins, in bytes
        self.kept = 0  # the same in tokens
        self.end = 0  # where the text of the whole sequence ends, in bytes
        self.length = 0  # the same in tokens
        self.text: bytes | None = None  # the whole sequence, as long as nothing continues it

    @property
    def added(self) -> bytes:
        """What the prompt adds."""
        raise NotImplementedError

    @property
    def generation(self) -> bytes:
        """What was sampled."""
        raise NotImplementedError

    def continue_from(self, base: "Sequenced", start: int, *, is_parent: bool) -> None:
        """Begin with the first bytes of another call's sequence."""
        self.base, self.start = base, start
        self.kept = base.length if is_parent else _count(sequence_text(base)[:start])
        if is_parent:
            self.parent = base
            base.text = None
            base.children.append(self)

    def complete(self, prompt: bytes) -> None:
        """Note the whole sequence, once the texts are known."""
        generation = self.generation
        self.text = joined(prompt, generation)
        self.length = self.kept + _count(self.added) + _count(generation)
        self.end = len(self.text)


class FoundParent(NamedTuple):
    """The call that is continued, or the reason why there is none."""

    call: Sequenced | None
    reason: RootReason | None = None


def find_parent(
    prompt: bytes, roots: Sequence[Sequenced], hint: Sequenced | None = None, likely: Iterable[Sequenced] = ()
) -> FoundParent:
    """The call whose sequence is the longest beginning of a prompt; among equals, the hint or else a likely one."""
    # A longer sequence would continue the hint, or be a root that could have continued several calls.
    is_longest = hint is not None and not hint.children and not any(root.end > hint.end for root in roots)
    if hint is not None and is_longest and _begins(prompt, sequence_text(hint), 0):
        return FoundParent(hint)
    best = _longest(prompt, roots)
    if hint is not None and hint in best:
        return FoundParent(hint)
    if len(best) == 1:
        return FoundParent(best[0])
    expected = next((call for call in likely if call in best), None)
    if expected is not None:
        return FoundParent(expected)
    return FoundParent(None, RootReason.TIE if best else RootReason.SEPARATE if roots else RootReason.FIRST)


def _longest(prompt: bytes, roots: Iterable[Sequenced]) -> list[Sequenced]:
    best: list[Sequenced] = []
    waiting = [call for call in roots if _begins(prompt, sequence_text(call), 0)]
    while waiting:
        call = waiting.pop()
        if not best or call.end > best[0].end:
            best = [call]
        elif call.end == best[0].end:
            best.append(call)
        waiting += [child for child in call.children if _begins(prompt, _own_text(child), child.start)]
    return best


def _begins(prompt: bytes, text: bytes, start: int) -> bool:
    end = start + len(text)
    return prompt.startswith(text, start) and (len(prompt) == end or not text or prompt[end : end + 1] == b",")


def _own_text(call: Sequenced) -> bytes:
    """What a call adds, as it stands in the text of its sequence."""
    return b"".join(b"," + part for part in (call.added, call.generation) if part)[0 if call.start else 1 :]


def sequence_text(call: Sequenced) -> bytes:
    """Everything that was read and sampled up to the end of a call."""
    path: list[Sequenced] = []
    node: Sequenced | None = call
    while node is not None and node.text is None:
        path.append(node)
        node = node.base
    if not path:
        return call.text or b""
    text = bytearray(node.text or b"" if node is not None else b"")
    for node in reversed(path):
        del text[node.start :]
        text += _own_text(node)
    return bytes(text)


def prompt_text(call: Sequenced) -> bytes:
    """Everything that was read by a call."""
    text, generation = sequence_text(call), call.generation
    return text[: len(text) - len(generation)].removesuffix(b",") if generation else text


def shared_text(base: Sequenced, prompt: bytes) -> int:
    """How many bytes of whole tokens a prompt has in common with the sequence of another call."""
    text = sequence_text(base)
    if _begins(prompt, text, 0):
        return len(text)
    low, high = 0, min(len(text), len(prompt))
    while low < high:  # by halves, because slices are compared at the speed of memory
        middle = (low + high + 1) // 2
        if text[low:middle] == prompt[low:middle]:
            low = middle
        else:
            high = middle - 1
    whole = all(each[low : low + 1] in (b"", b",") for each in (text, prompt))
    return low if whole else max(text.rfind(b",", 0, low), 0)


def joined(*texts: bytes) -> bytes:
    """Texts of tokens one after the other."""
    return b",".join(filter(None, texts))


def _count(text: bytes) -> int:
    return text.count(b",") + 1 if text else 0
