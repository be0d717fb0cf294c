"""Replaces the beginning of a newly rendered prompt by the tokens that were really used. Pure.

An answer goes from token ids to text to parsed items and comes back through the chat template: the ids of the same
conversation may differ the second time (the text is split elsewhere, a tool call is written otherwise). A trainer
needs one growing sequence, so the true ids replace what the template made of them.

True ids are used only for the history they belong to. An earlier message that was edited since, other tools or another
option of the template make another prompt: then the ids of that turn and of all later ones are history of something
else, and the prompt is the template's from there on.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.parts import BEGIN, END, extract_reasoning, separate_reasoning

# The text of a special token, or a tag: <|im_end|>, </s>, <think>, [THINK].
MARK: Final = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
REPLACEMENT: Final = "\ufffd"  # for a character that a token limit cut in two


class PrefixMismatchError(ValueError):
    """The prompt can't be corrected, because the template does not repeat the history unchanged."""


def splice_prefix(
    template_ids: Sequence[int],
    template_prefix_ids: Sequence[int],
    true_prefix_ids: Sequence[int],
    eos_id: int,
) -> list[int]:
    """The whole prompt, with the true tokens up to the end of the assistant's last answer.

    ``template_ids``
        the template's rendering of the whole history, with the prompt for the next answer
    ``template_prefix_ids``
        its rendering of the history up to and including the last answer that has true tokens
    ``true_prefix_ids``
        prompt and generation of the call that produced this answer
    ``eos_id``
        the token that ends a turn

    The last ``eos_id`` of ``template_prefix_ids`` ends that answer. Everything before it is replaced by
    ``true_prefix_ids``, whose own final ``eos_id`` is not repeated: an answer that was cut off (``max_output_tokens``)
    has none, while the template always writes one. So the result starts with the true tokens and continues with those
    of the template. Without true tokens it is ``template_ids``.

    Raises ``PrefixMismatchError`` if there is no ``eos_id`` in ``template_prefix_ids``, or another history in
    ``template_ids``. What follows the ``eos_id`` is not compared: a line break may merge with what comes next.
    """
    if not true_prefix_ids:
        return list(template_ids)
    cut = _last(template_prefix_ids, eos_id)
    if cut < 0:
        raise PrefixMismatchError(
            f"the template does not end turns with token {eos_id}; check that it is the right token"
        )
    repeated, history = list(template_ids[: cut + 1]), list(template_prefix_ids[: cut + 1])
    if repeated != history:
        raise PrefixMismatchError(
            "the template must keep earlier turns and their reasoning unchanged, but when the conversation goes on it "
            f"renders them differently from token {_first_difference(repeated, history)} on"
        )
    end = len(true_prefix_ids) - (true_prefix_ids[-1] == eos_id)
    return [*true_prefix_ids[:end], *template_ids[cut:]]


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier answer: its true tokens, and how the template renders the conversation around it today.

    ``before`` ends with the prompt for this answer, ``through`` ends with the answer itself.
    """

    prompt: Sequence[int]
    generation: Sequence[int]
    before: Sequence[int]
    through: Sequence[int]
    edited: bool = False  # the message no longer says what was generated


class Prompt(NamedTuple):
    """What to send, how many of the past turns it contains token by token, and why not all of them."""

    ids: list[int]
    kept: int
    reason: str = ""


def true_prompt(turns: Sequence[PastTurn], whole: Sequence[int], eos_id: int) -> Prompt:
    """The prompt that continues the past turns; ``whole`` is the template's rendering of the whole conversation.

    Every turn is checked by asking what its prompt would have been: the same function gave it then. The first whose
    recorded prompt is another one was asked something else, so it and what follows it are not kept.
    """
    kept: PastTurn | None = None
    for number, turn in enumerate(turns):
        if turn.edited or list(turn.prompt) != _continued(kept, turn.before, eos_id).ids:
            what = f"answer {number + 1}" if turn.edited else f"what was said before answer {number + 1}"
            ids, _, reason = _continued(kept, whole, eos_id)
            return Prompt(ids, 0 if reason else number, reason or f"{what} is no longer what it was")
        kept = turn
    ids, _, reason = _continued(kept, whole, eos_id)
    return Prompt(ids, 0 if reason else len(turns), reason)


def turns_within(
    prompt: Sequence[int], rendered: Sequence[tuple[Sequence[int], Sequence[int]]], eos_id: int
) -> list[PastTurn]:
    """The turns that the true prompt of a later one contains, as far as they can be found in it.

    A client may send the tokens of the last answer alone, because they include all earlier ones. ``rendered`` is what
    the template makes of the conversation before and through each earlier answer.
    """
    turns: list[PastTurn] = []
    for before, through in rendered:
        begun = _continued(turns[-1] if turns else None, before, eos_id).ids
        rest = list(prompt[len(begun) :])
        if list(prompt[: len(begun)]) != begun or eos_id not in rest:
            break
        turns.append(PastTurn(begun, rest[: rest.index(eos_id) + 1], before, through))
    return turns


def end_of_turn(through: Sequence[int], candidates: Iterable[int]) -> int | None:
    """Which of the tokens ends the answer that a rendering ends with; nothing but a line break may follow it."""
    known = set(candidates)
    return next((token for token in reversed(through[-2:]) if token in known), None)


def says(text: str, message: Mapping[str, Any], *, stops: Iterable[str] = ()) -> bool:
    """Whether generated text says what a message of the assistant says: the same words and the same calls.

    Blanks and marks don't count, and JSON may be written differently, because text changes in this way when it becomes
    items. A stop string ends the text, but is not part of the message.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or part.get("refusal") or "" for part in content)
    reasoning = separate_reasoning(message)
    said = _words(reasoning) + _words(content)
    calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    if not calls:
        generated = _words(text if CALL_BEGIN in content else _without_unfinished_call(text))
        rest = generated.removeprefix(said)
        endings = tuple(filter(None, map(_words, stops)))
        return generated.startswith(said) and (not rest or rest.startswith(endings))
    if _words(content) not in _words(text) or (_thinks(text) and not reasoning and END not in content):
        return False
    objects = _objects(text)
    return all(_parsed(call["arguments"]) in objects for call in calls)


def _without_unfinished_call(text: str) -> str:
    """A text without the call that a limit cut off at its end, which is neither a call nor something said."""
    before, begun, call = text.rpartition(CALL_BEGIN)
    return before if begun and CALL_END not in call else text


def _thinks(text: str) -> bool:
    """Whether a text begins with reasoning; the template may have opened its block."""
    thoughts, _ = extract_reasoning(text if BEGIN in text else BEGIN + text)
    return any(map(str.strip, thoughts))


def _words(text: str) -> str:
    return "".join(MARK.sub("", text).replace(REPLACEMENT, "").split())


def _objects(text: str) -> list[Any]:
    """All JSON objects in some text, including nested ones."""
    decoder, found = json.JSONDecoder(), list[Any]()
    for position, character in enumerate(text):
        if character == "{":
            try:
                found.append(decoder.raw_decode(text, position)[0])
            except (ValueError, RecursionError):
                continue
    return found


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _continued(kept: PastTurn | None, whole: Sequence[int], eos_id: int) -> Prompt:
    if kept is None:
        return Prompt(list(whole), 0)
    try:
        return Prompt(splice_prefix(whole, kept.through, [*kept.prompt, *kept.generation], eos_id), 0)
    except PrefixMismatchError as error:
        return Prompt(list(whole), 0, str(error))


def _last(ids: Sequence[int], wanted: int) -> int:
    """The last position of the token, or -1."""
    for position in range(len(ids) - 1, -1, -1):
        if ids[position] == wanted:
            return position
    return -1


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
