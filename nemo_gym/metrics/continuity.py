"""Whether the model calls of a rollout form one growing sequence of tokens, and where and why they do not. Pure.

Each call's prompt must begin with everything that was read and written before: the prompt of the previous call and
what was generated in it. Only items with ``generation_token_ids`` count, one for each model call. After a break the
check starts again from that call, so every break is reported once.

That a call breaks, and at which token, is exact. Why it breaks is inferred, because ids carry no text: where the
sequences meet again distinguishes history that was left out from a part that was written differently, and the items
show whether that part would have been written back as the same text.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nemo_gym.schemas.call_tokens import CallTokens, find_calls

Reason = Literal["retokenisation", "retemplating", "truncated_history", "unknown"]

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


def check_continuity(output: Sequence[Mapping[str, Any]]) -> Continuity:
    """Follow the tokens of a rollout through ``response.output``."""
    breaks, calls, begun = list[Break](), list[CallTokens](), 0
    count = 0
    for count, call in enumerate(find_calls(output), 1):
        if isinstance(call, int):
            message = f"turn {count}: the token ids of item {call} are not lists of whole numbers"
            breaks.append(Break(call, count, 0, "unknown", message))
            begun = len(calls)
            continue
        calls.append(call)
        if begun < len(calls) - 1 and not call.continues:
            breaks.append(_explain(output, calls[begun:-1], call, turn=count))
            begun = len(calls) - 1
    return Continuity(not breaks, count, tuple(breaks))


def _is_verbatim(item: Mapping[str, Any]) -> bool:
    """Whether a template writes an item as the model did: templates print the arguments of a call in one way only."""
    if item.get("type") != "function_call":
        return item.get("type") != "reasoning"
    arguments = item.get("arguments")
    try:
        return bool(arguments == json.dumps(json.loads(arguments or ""), ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return False


def _explain(output: Sequence[Mapping[str, Any]], calls: Sequence[CallTokens], call: CallTokens, *, turn: int) -> Break:
    """Describe a break, given the calls since the last one."""
    before, prompt, token = [*calls[-1].prompt, *calls[-1].generation], call.prompt, call.kept
    reason = _reason(_completions(output, calls), before, prompt, token)
    if token == len(prompt):
        found = f"the prompt ends after {token} of the {len(before)} tokens before it"
    else:
        found = f"token {token} of the prompt is {prompt[token]} and was {before[token]}"
    return Break(call.item, turn, token, reason, f"turn {turn}: {found}: {EXPLANATION[reason]} ({reason})")


def _completions(output: Sequence[Mapping[str, Any]], calls: Sequence[CallTokens]) -> Iterator[tuple[range, bool]]:
    """Where the completions of calls are in their sequence, and whether each goes back as the text it was."""
    start = 0
    for call in calls:
        verbatim = all(map(_is_verbatim, output[start : call.item + 1]))
        yield range(call.length - len(call.generation), call.length), verbatim
        start = call.item + 1


def _reason(
    completions: Iterable[tuple[range, bool]], before: Sequence[int], prompt: Sequence[int], token: int
) -> Reason:
    meeting = _meeting(before[token:], prompt[token:])
    if meeting is None:
        return "truncated_history" if len(prompt) < len(before) else "unknown" if token == 0 else "retemplating"
    removed, inserted = meeting
    if removed > SHORT and inserted <= removed // 4:
        return "truncated_history"
    span, verbatim = next((each for each in completions if token in each[0]), (range(0), False))
    is_alike = 0 < removed <= 4 * inserted and 0 < inserted <= 4 * removed and max(removed, inserted) <= LONG
    # The last token of a completion is the one that ends it; what comes in its place is the template's.
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
