"""Completes a row with the calls that were captured: tokens on the items of its response, other chains as traces. Pure.

The response stays what the agent made it: the chain that ends in its answer. Calls that are not in it are the agent's
too (a sub-agent, history that was compacted or edited later). Each of them is in exactly one trace, a chain of calls in
which each continues the one before. So every sampled token has one owner.

A row has traces if there are calls outside its response, if the agent changed its history within it, or if a program
made the calls. The first stands for the response itself (``{"response": true}``, of a program with the first
``input``). Each of the others has

- ``input``: the items before its first call, all of them or those added to the conversation of ``parent``,
- ``output``: its items in order, with tokens, as in a response,
- ``parent``: the trace that its first call continues (0 is the response), or null,
- ``reason``: why it continues none,
- ``"trained": false`` if it is a repeated call and the other one was used, or one beside the work (a title),
- what is known of its first call if a program made it: ``thread`` and ``parent_thread``, ``window`` and ``kind`` as the
  program names them, ``follows`` (the trace after which the thread began anew, with its history summed up),
  ``auxiliary``, ``disagreement``.

Calls without tokens form traces, too, by what was said.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nemo_gym.capture.calls import ID, INPUT, KEPT_OF, NOTES, OUTPUT, PARENT, REASON, SAID, CallFields
from nemo_gym.capture.lineage import RootReason
from nemo_gym.conversion.parts import CALL_REFERENCE
from nemo_gym.schemas.call_tokens import (
    ADDED,
    FORM_KEY,
    KEPT,
    LOG_PROBS,
    PROMPT_FORM,
    TRAINABLE,
    TRAINED,
    CallTokens,
    common_prefix,
)
from nemo_gym.schemas.rows import LOST_CALLS_KEY, RESPONSE_KEY_NAME, TRACES_KEY_NAME

Item = dict[str, Any]
Trace = dict[str, Any]
MAIN: Final = 0
AUXILIARY: Final = "auxiliary"  # a call beside the work, such as a title
FOLLOWS: Final = "follows"  # the call, in a trace its place, after which a thread began anew
# The agent meant to begin anew, or nothing else was possible. Other tokens for the same conversation are a mistake,
# which the continuity check reports.
INTENDED: Final = frozenset({RootReason.SEPARATE, RootReason.CHANGED, RootReason.TIE, RootReason.UNKNOWN})


def references(record: Mapping[str, Any]) -> list[str]:
    """The calls that the response of a row refers to, in order."""
    return [item[CALL_REFERENCE] for item in _output(record) if isinstance(item.get(CALL_REFERENCE), str)]


def complete(record: dict[str, Any], calls: Sequence[CallFields]) -> None:
    """Give a row the tokens of its calls, in place."""
    captured = _Captured(calls)
    writer = _TokenWriter(captured.tokens)
    lost = 0
    for item in _output(record):
        reference = item.pop(CALL_REFERENCE, None)
        if reference in captured.by_id and reference not in captured.place:
            captured.place[reference] = MAIN
            writer.write(item, captured.by_id[reference])
        elif reference is not None and reference not in captured.place:
            lost += 1
    others = [call for call in calls if call[ID] not in captured.place]
    first = next((call for call in calls if captured.place.get(call[ID]) == MAIN), {})
    if others or INPUT in first or any(call[REASON] in INTENDED for call in calls):
        asked = {INPUT: first[INPUT]} if INPUT in first else {}
        traces = [{"response": True, **first.get(NOTES, {}), **asked}, *_traces(others, captured, writer)]
        for trace in traces:
            if FOLLOWS in trace:
                trace[FOLLOWS] = captured.place.get(trace[FOLLOWS])
        record[TRACES_KEY_NAME] = traces
    if lost:
        record[LOST_CALLS_KEY] = lost
    if writer.latest is not None:
        record[FORM_KEY] = PROMPT_FORM


def _output(record: Mapping[str, Any]) -> Iterator[Item]:
    response = record.get(RESPONSE_KEY_NAME)
    output = response.get("output") if isinstance(response, dict) else None
    return (item for item in output if isinstance(item, dict)) if isinstance(output, list) else iter(())


class _Captured:
    """The calls of an attempt, their tokens, and the trace that each is in."""

    def __init__(self, calls: Sequence[CallFields]) -> None:
        self.by_id = {call[ID]: call for call in calls}
        self.continued = {call[PARENT] for call in calls}
        self.place: dict[str, int] = {}
        self.tokens: dict[str, CallTokens] = {}
        for call in calls:
            if SAID in call:
                continue
            self.tokens[call[ID]] = CallTokens(
                call[TRAINABLE],
                call[LOG_PROBS],
                before=self.tokens.get(call[KEPT_OF]),
                kept=call["kept"],
                added=call["added"],
            )

    def is_unused(self, call: CallFields) -> bool:
        """Whether a call was repeated, and the other one was used: delivered or continued."""
        if call[ID] in self.continued:
            return False
        used = [name for name in self.by_id if name in self.continued or self.place.get(name) == MAIN]
        siblings = [name for name in used if self.by_id[name][PARENT] == call[PARENT]]
        if SAID in call:
            return any(self.by_id[name].get(SAID) == call[SAID] for name in siblings)
        mine = self.tokens[call[ID]]
        same = (self.tokens[name] for name in siblings if name in self.tokens)
        return any(each.read == mine.read and each.prompt == mine.prompt for each in same)


class _TokenWriter:
    """Puts tokens on items; prompts as what they add to the call that was written before."""

    def __init__(self, tokens: Mapping[str, CallTokens]) -> None:
        self._tokens = tokens
        self.latest: CallTokens | None = None

    def write(self, item: Item, call: CallFields) -> None:
        if call[ID] not in self._tokens:
            return
        tokens, before = self._tokens[call[ID]], self.latest
        added, kept = tokens.added, tokens.kept
        if tokens.before is not before:
            prompt = tokens.prompt
            kept = common_prefix([*before.prompt, *before.generation], prompt) if before is not None else 0
            added = prompt[kept:]
        item[ADDED] = added
        if kept != (before.length if before is not None else 0):
            item[KEPT] = kept
        item |= {TRAINABLE: tokens.generation, LOG_PROBS: tokens.log_probs, **call["details"]}
        self.latest = tokens


def _traces(calls: Sequence[CallFields], captured: _Captured, writer: _TokenWriter) -> list[Trace]:
    """The chains of the calls that are not in the response."""
    traces: list[Trace] = []
    for chain in _chains(calls):
        first = chain[0]
        output: list[Item] = []
        notes = first.get(NOTES, {})
        trace: Trace = {PARENT: captured.place.get(first[PARENT]), REASON: first[REASON], **notes, INPUT: first[INPUT]}
        if notes.get(AUXILIARY) or (len(chain) == 1 and captured.is_unused(first)):
            trace[TRAINED] = False
        traces.append({**trace, OUTPUT: output})
        for call in chain:
            captured.place[call[ID]] = len(traces)  # the response is the one before all of them
            made = [{name: value for name, value in item.items() if name != CALL_REFERENCE} for item in call[OUTPUT]]
            if made:
                writer.write(made[-1], call)
            output += [*(call[INPUT] if call is not first else ()), *made]
    return traces


def _chains(calls: Sequence[CallFields]) -> list[list[CallFields]]:
    """Calls in chains: one child continues the chain of its parent, the others begin their own.

    Which child that is: the first that was itself continued, so that a repeated call does not end the chain.
    """
    continued = {call[PARENT] for call in calls}
    chains: list[list[CallFields]] = []
    ends: dict[str, list[CallFields]] = {}
    for call in sorted(calls, key=lambda call: call[ID] not in continued):
        chain = ends.pop(call[PARENT], None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(call)
        ends[call[ID]] = chain
    return sorted(chains, key=lambda chain: float(chain[0]["started"]))
