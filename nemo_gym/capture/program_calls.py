"""What is known of the calls that a program made: what was asked and answered, which continue each other. Pure.

A program may name its threads (main agent, sub-agents) in headers. Such a name is a hint: it decides between several
calls that a request could continue, and where it contradicts what the request says, that is reported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.capture.calls import AttemptCalls, CapturedCall, SampledTokens
from nemo_gym.capture.conversations import expect_repeats
from nemo_gym.capture.outline import Outline, outline
from nemo_gym.capture.traces import AUXILIARY, FOLLOWS
from nemo_gym.conversion.programs.dialects import Answered, Dialect

SHORT: Final = 40  # characters; a shorter text may occur elsewhere by chance


class ThreadHint(NamedTuple):
    """What a program says of a request: its thread, the part of the thread since its history was summed up, and why."""

    thread: str | None = None
    window: str | None = None
    kind: str | None = None
    parent: str | None = None  # the thread that began this one


MAIN_THREAD: Final = "main"  # of programs that name only the others
NO_HINT: Final = ThreadHint()
_SIDE_KINDS: Final = frozenset({"title", "summary", "topic"})


def thread_hint(headers: Mapping[str, str]) -> ThreadHint:
    """The hint in the headers of a request."""
    told = headers.get("x-codex-turn-metadata")
    if told:
        try:
            fields = orjson.loads(told)
        except orjson.JSONDecodeError:
            fields = None
        if isinstance(fields, dict):
            names = ("thread_id", "window_number", "request_kind", "parent_thread_id")
            return ThreadHint(*(None if fields.get(name) is None else str(fields[name]) for name in names))
    agent = headers.get("x-claude-code-agent-id")
    if agent:
        return ThreadHint(agent, parent=headers.get("x-claude-code-parent-agent-id") or MAIN_THREAD)
    return ThreadHint(MAIN_THREAD) if headers.get("x-claude-code-session-id") else NO_HINT


@dataclass(slots=True)
class ProgramCall:
    """One call."""

    dialect: Dialect
    model: str
    hint: ThreadHint
    offers_tools: bool
    started: float
    ended: float = 0.0
    status: int | None = None
    failure: str = ""  # the class of a failure of the endpoint
    message: str = ""
    call: CapturedCall | None = None  # once it was answered
    added: list[Any] = field(default_factory=list)  # the items since the call that it continues
    answer: list[Any] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    incomplete: str | None = None
    disagreement: str = ""

    @property
    def text(self) -> str:
        """What the completion says to the user."""
        messages = [item for item in self.answer if item.get("type", "message") == "message"]
        return "".join(texts_of(messages[-1].get("content"))) if messages else ""

    @property
    def is_auxiliary(self) -> bool:
        return self.call is not None and bool(self.call.notes.get(AUXILIARY))


def texts_of(content: Any) -> Iterator[str]:
    """The texts of a message's content."""
    if isinstance(content, str):
        yield content
        return
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            yield part["text"]


def keep_answer(
    each: ProgramCall,
    attempt: AttemptCalls,
    earlier: Sequence[ProgramCall],
    *,
    asked: Sequence[Mapping[str, Any]],
    answered: Answered,
    kept: CapturedCall | None,
) -> None:
    """Keep what a call was answered; ``kept`` is the call if its tokens are kept already."""
    prompt, completion = outline(asked), outline(answered.items)
    last = next(iter(likely_parents(each.hint, earlier)), None) if each.hint.thread is not None else None
    if kept is None:
        kept = attempt.add(SampledTokens(prompt.text, completion.text, b"", {}), has_tokens=False)
        kept.started = each.started
    elif kept.has_tokens:
        expect_repeats(attempt, kept, answered.message)
    kept.outlined = prompt.length + completion.length
    begun = _begun(kept, prompt)
    attempt.describe(kept, asked, answered.items, begun=begun)
    each.call, each.added, each.answer = kept, list(asked[begun or 0 :]), list(answered.items)
    each.usage, each.incomplete = answered.usage, answered.incomplete
    if last is not None and kept.parent is None:
        kept.notes[FOLLOWS] = last.id
    each.disagreement = _disagreement(each.hint, kept, last)
    hint = each.hint
    named = {"thread": hint.thread, "parent_thread": hint.parent, "window": hint.window, "kind": hint.kind}
    named["disagreement"] = each.disagreement
    kept.notes |= {name: value for name, value in named.items() if value}


def _begun(call: CapturedCall, prompt: Outline) -> int | None:
    """How many items of a conversation the call that it continues already had; None if only counting tells."""
    if call.parent is None:
        return 0
    assert isinstance(call.parent, CapturedCall)
    return prompt.items_after(call.parent.outlined) if call.parent.outlined else None


def likely_parents(hint: ThreadHint, earlier: Sequence[ProgramCall]) -> list[CapturedCall]:
    """The calls of a thread, the last one first; all calls if a program does not name its threads."""
    answered = [each for each in reversed(earlier) if each.call is not None]
    return [each.call for each in answered if each.call is not None and each.hint.thread == hint.thread]


def _disagreement(hint: ThreadHint, kept: CapturedCall, last: CapturedCall | None) -> str:
    """What is wrong with the thread that a program names, if its request says something else.

    A thread may begin anew, with its history summed up; where the program counts how often, not without counting.
    """
    if last is None:
        return ""
    parent = kept.parent
    if parent is None:
        began = hint.window is not None and last.notes.get("window") == hint.window
        return f"call {kept.id} names the same window as call {last.id}, but begins anew" if began else ""
    assert isinstance(parent, CapturedCall)
    thread = parent.notes.get("thread")
    return "" if thread == hint.thread else f"call {kept.id} names thread {hint.thread}, but continues {thread}"


def mark_side_calls(calls: Sequence[ProgramCall]) -> None:
    """Mark the calls beside the work, such as titles.

    They stand alone and offer no tools although the program has some, and nothing of what they say comes back later: a
    summary of the history that the program continues with is part of the work.
    """
    continued = {id(each.call.parent) for each in calls if each.call is not None}
    has_tools = any(each.offers_tools for each in calls)
    for place, each in enumerate(calls):
        if each.call is None:
            continue
        alone = each.call.parent is None and id(each.call) not in continued and not each.offers_tools
        side = each.hint.kind in _SIDE_KINDS or (alone and has_tools and not _comes_back(each, calls[place + 1 :]))
        if side:
            each.call.notes[AUXILIARY] = True
        else:
            each.call.notes.pop(AUXILIARY, None)


def _comes_back(each: ProgramCall, later: Sequence[ProgramCall]) -> bool:
    text = each.text.strip()
    begun = (one for one in later if one.call is not None and one.call.parent is None)
    return len(text) >= SHORT and any(
        text in said or text[:2000] in said
        for one in begun
        for item in one.added
        for said in texts_of(item.get("content"))
    )


def main_chain(calls: Sequence[ProgramCall]) -> list[ProgramCall]:
    """The calls from a root to the last one that belongs to the work of the main thread.

    That is the thread that began, if the program names its threads: a sub-agent may still be running when it answers.
    """
    of_call = {id(each.call): each for each in calls}
    work = [each for each in calls if not each.is_auxiliary]
    work = [each for each in work if each.hint.thread == work[0].hint.thread]
    ended = max(work or calls, key=lambda each: each.ended, default=None)
    chain: list[ProgramCall] = []
    node = ended.call if ended is not None else None
    while isinstance(node, CapturedCall):
        chain.append(of_call[id(node)])
        node = node.parent  # type: ignore[assignment]
    return chain[::-1]
