"""Whether the model calls of a rollout form one growing sequence of tokens, and where and why they do not. Pure.

Each call's prompt must begin with everything that was read and written before: the prompt of the previous call and
what was generated in it. Only items with ``generation_token_ids`` count, one for each model call. After a break the
check starts again from that call, so every break is reported once.

That a call breaks, and at which token, is exact. Why it breaks is inferred, because ids carry no text: where the
sequences meet again distinguishes history that was left out from a part that was written differently, and the items
show whether that part would have been written back as the same text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

Reason = Literal["retokenisation", "retemplating", "truncated_history", "unknown"]

TRAINABLE: Final = "generation_token_ids"
# History that was left out is longer than a word or two; text that became other tokens is not longer than a line.
SHORT: Final = 8
LONG: Final = 48
# How many equal tokens show that two sequences have met again, and how far to look: few are soon met by chance.
ANCHORS: Final = ((6, 100_000), (3, 64), (1, SHORT + 1))

EXPLANATION: Final[Mapping[Reason, str]] = {
    "retokenisation": "the text of an earlier answer became other tokens than those it was made of",
    "retemplating": "an earlier part of the conversation was written differently",
    "truncated_history": "an earlier part of the conversation is missing",
    "unknown": "the prompt is unrelated to what came before",
}


@dataclass(frozen=True, slots=True)
class Break:
    """A call whose prompt does not continue what came before.

    ``item`` is the index of the call's last item in the output, ``turn`` the number of the call, from 1, and ``token``
    the index of the first token of its prompt that differs.
    """

    item: int
    turn: int
    token: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Continuity:
    """The result of the check; a rollout without token ids has no calls and no breaks."""

    ok: bool
    calls: int
    breaks: tuple[Break, ...] = ()


class _Call(NamedTuple):
    item: int
    prompt: list[int]
    generation: list[int]
    verbatim: bool  # what was generated goes back as the text it was


@dataclass(slots=True)
class _Seen:
    """The tokens so far, and which of them were generated."""

    prompt: list[int] = field(default_factory=list)
    generation: list[int] = field(default_factory=list)
    answers: list[tuple[range, bool]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.generation)

    def begins(self, prompt: Sequence[int]) -> bool:
        middle = len(self.prompt)
        return prompt[:middle] == self.prompt and prompt[middle : len(self)] == self.generation

    def add(self, call: _Call) -> None:
        self.prompt, self.generation = call.prompt, call.generation
        self.answers.append((range(len(call.prompt), len(self)), call.verbatim))


def check_continuity(output: Sequence[Mapping[str, Any]]) -> Continuity:
    """Follow the tokens of a rollout through ``response.output``."""
    seen, breaks, calls, start = _Seen(), list[Break](), 0, 0
    for number in filter(lambda number: _is_trainable(output[number]), range(len(output))):
        calls += 1
        call = _read(output, start, number)
        start = number + 1
        if call is None:
            message = f"turn {calls}: the token ids of item {number} are not lists of whole numbers"
            breaks.append(Break(number, calls, 0, "unknown", message))
            seen = _Seen()
            continue
        if not seen.begins(call.prompt):
            breaks.append(_explain(seen, call, turn=calls))
            seen = _Seen()
        seen.add(call)
    return Continuity(not breaks, calls, tuple(breaks))


def common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The length of the beginning that two sequences, of tokens or of characters, have in common."""
    # By halves: comparing slices runs at the speed of C, comparing tokens one by one does not.
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_trainable(item: object) -> bool:
    return isinstance(item, Mapping) and item.get(TRAINABLE) is not None


def _read(output: Sequence[Mapping[str, Any]], start: int, number: int) -> _Call | None:
    item = output[number]
    prompt, generation = item.get("prompt_token_ids"), item[TRAINABLE]
    if not isinstance(prompt, list) or not isinstance(generation, list):
        return None
    if not (set(map(type, prompt)) | set(map(type, generation))) <= {int}:
        return None
    return _Call(number, prompt, generation, all(map(_is_verbatim, output[start : number + 1])))


def _is_verbatim(item: Mapping[str, Any]) -> bool:
    """Whether a template writes an item as the model did: templates print the arguments of a call in one way only."""
    if item.get("type") != "function_call":
        return item.get("type") != "reasoning"
    arguments = item.get("arguments")
    try:
        return bool(arguments == json.dumps(json.loads(arguments or ""), ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return False


def _explain(seen: _Seen, call: _Call, *, turn: int) -> Break:
    before = [*seen.prompt, *seen.generation]
    token = common_prefix(before, call.prompt)
    reason = _reason(seen, before, call.prompt, token)
    if token == len(call.prompt):
        found = f"the prompt ends after {token} of the {len(before)} tokens before it"
    else:
        found = f"token {token} of the prompt is {call.prompt[token]} and was {before[token]}"
    return Break(call.item, turn, token, reason, f"turn {turn}: {found}: {EXPLANATION[reason]} ({reason})")


def _reason(seen: _Seen, before: Sequence[int], prompt: Sequence[int], token: int) -> Reason:
    meeting = _meeting(before[token:], prompt[token:])
    if meeting is None:
        return "truncated_history" if len(prompt) < len(before) else "unknown" if token == 0 else "retemplating"
    removed, inserted = meeting
    if removed > SHORT and inserted <= removed // 4:
        return "truncated_history"
    span, verbatim = next((answer for answer in seen.answers if token in answer[0]), (range(0), False))
    is_alike = 0 < removed <= 4 * inserted and 0 < inserted <= 4 * removed and max(removed, inserted) <= LONG
    # The last token of an answer is the one that ends it; what comes in its place is the template's.
    return "retokenisation" if verbatim and is_alike and token + removed < span.stop else "retemplating"


def _meeting(before: Sequence[int], prompt: Sequence[int]) -> tuple[int, int] | None:
    """How many tokens were removed and inserted before the sequences agree again; None if they never do."""
    for length, window in ANCHORS:
        places: dict[tuple[int, ...], int] = {}
        for place in range(min(len(prompt), window) - length, -1, -1):
            places[tuple(prompt[place : place + length])] = place
        meetings = [
            (removed, inserted)
            for removed in range(min(len(before), window) - length + 1)
            if (inserted := places.get(tuple(before[removed : removed + length]))) is not None
        ]
        if meetings:
            return min(meetings, key=sum)
    return None
