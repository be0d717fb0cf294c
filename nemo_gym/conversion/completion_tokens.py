"""The tokens of completions: what is recorded with them, and how the prompt of the next turn begins with them. Pure.

A trainer that mistakes log-probabilities of one distribution for those of another optimises the wrong objective, and
nothing in the numbers shows it. So every completion with tokens states their origin beside them, in
``generation_sampling``. Truncated sampling (top-k, top-p) excludes tokens to which the log-probabilities still assign
probability; a penalty changes them. When token ids are requested, both are therefore off unless the request sets
them, regardless of the model's defaults.

A completion goes from token ids to text to parsed items and comes back through the chat template: the ids of the same
conversation may differ the second time (the text is split elsewhere, a tool call is written otherwise). A trainer
needs one growing sequence, so the true ids replace what the template made of them.

True ids are used only for the history they belong to. An earlier message that was edited since, other tools or another
option of the template make another prompt: then the ids of that turn and of all later ones are history of something
else, and the prompt is the template's from there on.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.parts import END, separate_reasoning

# The options for which a model's generation_config.json may have other defaults.
UNTRUNCATED: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# All options that change which tokens are sampled, by the names that engines use.
RECORDED: Final = (
    *UNTRUNCATED,
    *("repeat_penalty", "logit_bias", "allowed_token_ids", "bad_words", "thinking_token_budget", "watermarking"),
    *("typical_p", "top_a", "top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat", "dynatemp_range"),
    *("min_tokens", "ignore_eos", "use_beam_search", "best_of", "custom_logit_processor", "logits_processors"),
)
SAMPLING_FIELD: Final = "generation_sampling"


class LogProbs(StrEnum):
    """The distribution that log-probabilities come from."""

    RAW = "raw"  # the model's own, at temperature 1
    GRAMMAR_MASKED = "grammar_masked"  # the same, renormalised over the tokens that a grammar allows
    PROCESSED = "processed"  # after the temperature, as sampled


def sampling_record(kind: LogProbs, options: Mapping[str, Any]) -> dict[str, Any]:
    """The ``generation_sampling`` of a completion that was sampled with these options."""
    return {"log_probs": str(kind), **{name: options[name] for name in RECORDED if options.get(name) is not None}}


# The text of a special token, or a tag: <|im_end|>, </s>, <think>, [THINK].
MARK: Final = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
# Under which names engines write the arguments of a call.
_GIVEN: Final = ("arguments", "parameters")
# What may stand between the text of a message and the arguments of its calls, given their names.
_NAMES: Final = r"(?:[\[\](`.,;:]|functions?|json|(?:%s)(?::\d+)?)*"
REPLACEMENT: Final = "\ufffd"  # for a character that a token limit cut in two


class PrefixMismatchError(ValueError):
    """The prompt can't be corrected, because the template does not repeat the history unchanged."""


def splice_prefix(
    template_ids: Sequence[int],
    template_prefix_ids: Sequence[int],
    true_prefix_ids: Sequence[int],
    eos_id: int,
) -> list[int]:
    """The whole prompt, with the true tokens up to the end of the assistant's last completion.

    ``template_ids``
        the template's rendering of the whole history, with the prompt for the next completion
    ``template_prefix_ids``
        its rendering of the history up to and including the last completion that has true tokens
    ``true_prefix_ids``
        prompt and generation of the call that produced this completion
    ``eos_id``
        the token that ends a turn

    The last ``eos_id`` of ``template_prefix_ids`` ends that completion. Everything before it is replaced by
    ``true_prefix_ids``, whose own final ``eos_id`` is not repeated: a completion that was cut off
    (``max_output_tokens``) has none, while the template always writes one. So the result starts with the true tokens
    and continues with those of the template. Without true tokens it is ``template_ids``.

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
    """An earlier completion: its true tokens, and how the template renders the conversation around it today.

    ``before`` ends with the prompt for this completion, ``through`` ends with the completion itself.
    """

    prompt: Sequence[int]
    generation: Sequence[int]
    before: Sequence[int]
    through: Sequence[int]
    edited: bool = False  # the message no longer says what was generated


class Prompt(NamedTuple):
    """What to send, how many of the past turns it contains token by token, and why not all of them."""

    ids: list[int]
    past: int
    reason: str = ""


def true_prompt(turns: Sequence[PastTurn], whole: Sequence[int], eos_id: int) -> Prompt:
    """The prompt that continues the past turns; ``whole`` is the template's rendering of the whole conversation.

    Every turn is checked by asking what its prompt would have been: the same function gave it then. The first whose
    recorded prompt is another one belongs to another history, so it and what follows it are not used.
    """
    last: PastTurn | None = None
    for number, turn in enumerate(turns):
        if turn.edited or list(turn.prompt) != _continued(last, turn.before, eos_id).ids:
            what = f"completion {number + 1}" if turn.edited else f"what came before completion {number + 1}"
            ids, _, reason = _continued(last, whole, eos_id)
            return Prompt(ids, 0 if reason else number, reason or f"{what} is no longer what it was")
        last = turn
    ids, _, reason = _continued(last, whole, eos_id)
    return Prompt(ids, 0 if reason else len(turns), reason)


def turns_within(
    prompt: Sequence[int], rendered: Sequence[tuple[Sequence[int], Sequence[int]]], eos_id: int
) -> list[PastTurn]:
    """The turns that the true prompt of a later one contains, as far as they can be found in it.

    A client may send the tokens of the last completion alone, because they include all earlier ones. ``rendered`` is
    what the template makes of the conversation before and through each earlier completion.
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
    """Which of the tokens ends the completion that a rendering ends with; nothing but a line break may follow it."""
    known = set(candidates)
    return next((token for token in reversed(through[-2:]) if token in known), None)


def says(text: str, message: Mapping[str, Any], *, stops: Iterable[str] = (), one_call: bool = False) -> bool:
    """Whether generated text says what a message of the assistant says: the same text and the same calls.

    Blanks and marks don't count, and JSON may be written differently, because text changes in this way when it becomes
    items. A stop string ends the text, but is not part of the message. ``one_call``: the endpoint drops all calls but
    the first.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or part.get("refusal") or "" for part in content)
    written = _bare_text(separate_reasoning(message)) + _bare_text(content)
    calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    if calls:
        return _makes(calls, text, written, one_call=one_call)
    generated = _bare_text(text if CALL_BEGIN in content else _without_unfinished_call(text))
    rest = generated.removeprefix(written)
    endings = tuple(filter(None, map(_bare_text, stops)))
    return generated.startswith(written) and (not rest or rest.startswith(endings))


def _without_unfinished_call(text: str) -> str:
    """A text without the call that a limit cut off at its end, which is neither a call nor text."""
    before, begun, call = text.rpartition(CALL_BEGIN)
    return before if begun and CALL_END not in call else text


class _Call(NamedTuple):
    """A tool call. Of a forced one, only the arguments are generated."""

    name: str | None
    arguments: Any


def _makes(calls: Sequence[Mapping[str, Any]], text: str, written: str, *, one_call: bool) -> bool:
    """Whether a text consists of a text and then these calls, in this order, and makes no others."""
    wanted = [_Call(call["name"], _typed(_parsed(call["arguments"]))) for call in calls]
    made: list[_Call] = []
    first, others = len(text), 0
    for start, value in _objects(text, text.rfind(END) + 1):  # reasoning may mention calls without making them
        for call in _calls_in(value, wanted[len(made)].arguments if len(made) < len(wanted) else None):
            if len(made) < len(wanted) and call in (wanted[len(made)], wanted[len(made)]._replace(name=None)):
                made.append(call)
                first = min(first, start)
            else:
                others += 1
    before = _bare_text(text[:first])
    # The names of calls may be written before their arguments. What follows a call is dropped by endpoints.
    named = re.compile(_NAMES % "|".join(re.escape(_bare_text(call["name"])) for call in calls))
    is_written = before.startswith(written) and named.fullmatch(before, len(written)) is not None
    are_named = before == written or all(call["name"] in text for call in calls)
    return is_written and are_named and len(made) == len(wanted) and (one_call or not others)


def _calls_in(value: Any, arguments: Any) -> Iterator[_Call]:
    """The calls in a JSON value: ``arguments`` alone, or objects with a name and arguments at any depth."""
    if arguments is not None and _typed(value) == arguments:
        yield _Call(None, arguments)
    elif isinstance(value, dict) and isinstance(value.get("name"), str) and not value.keys().isdisjoint(_GIVEN):
        given = next(value[key] for key in _GIVEN if key in value)
        yield _Call(value["name"], _typed(_parsed(given) if isinstance(given, str) else given))
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _calls_in(inner, arguments)


def _bare_text(text: str) -> str:
    return "".join(MARK.sub("", text).replace(REPLACEMENT, "").split())


def _objects(text: str, start: int) -> Iterator[tuple[int, Any]]:
    """All JSON objects in some text that are not part of another one, and where they begin."""
    decoder = json.JSONDecoder()
    while (start := text.find("{", start)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield start, value
        start = end


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _typed(value: Any) -> Any:
    """A JSON value that equals only those of the same type: in Python, true equals 1."""
    if isinstance(value, dict):
        return {name: _typed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    return (bool, value) if isinstance(value, bool) else value


def _continued(last: PastTurn | None, whole: Sequence[int], eos_id: int) -> Prompt:
    if last is None:
        return Prompt(list(whole), 0)
    try:
        return Prompt(splice_prefix(whole, last.through, [*last.prompt, *last.generation], eos_id), 0)
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
