"""The tokens of a row's model calls, in both forms in which a row may have them. Pure.

The tokens of a call are on the last item that it produced: what it sampled in ``generation_token_ids`` and
``generation_log_probs``, and what it read, its prompt, in one of two forms:

- **full**: ``prompt_token_ids`` has all of it. Every call repeats everything before it.
- **added**: ``prompt_token_ids_added`` has what the prompt adds to the call before, the previous one in the row (in
  ``response.output``, then in the ``output`` of each of its ``traces``). The prompt begins with the prompt and the
  generation of that call; if it shares less than all of it, ``prompt_tokens_kept`` says how many tokens.
  Such a row says ``"_ng_token_form": 1``.

Both may be mixed in one file. ``read_calls`` reads either, and makes whole prompts only on demand, so reading a row in
the second form takes time in proportion to its size. ``with_added_prompts`` and ``with_full_prompts`` convert.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TRACES_KEY_NAME

TRAINABLE: Final = "generation_token_ids"
LOG_PROBS: Final = "generation_log_probs"
PROMPT: Final = "prompt_token_ids"
ADDED: Final = "prompt_token_ids_added"
KEPT: Final = "prompt_tokens_kept"
TRAINED: Final = "trained"  # false on a trace whose tokens nothing came of
FORM_KEY: Final = "_ng_token_form"
PROMPT_FORM: Final = 1
_IDS: Final = list[int]
_NUMBERS: Final = list[float]
_INVALID: Final = "token ids that are not lists of whole numbers"

Items = Sequence[Mapping[str, Any]]
Convert = Callable[[dict[str, Any], "CallTokens"], dict[str, Any]]


class RolloutFormatError(ConfigError, ValueError):
    """A line or a record that can't be a row, for example because its index is a text."""


class CallTokens:
    """The tokens of one model call."""

    __slots__ = ("_item", "_log_probs", "_prompt", "added", "before", "generation", "item", "kept", "place")

    def __init__(
        self,
        generation: list[int],
        log_probs: "list[float] | Mapping[str, Any] | None",
        *,
        item: int = 0,
        place: int = 0,
        before: "CallTokens | None" = None,
        kept: int = 0,
        added: list[int] | None = None,
        prompt: list[int] | None = None,
    ) -> None:
        self.item = item  # the index of its last item in the output that it is in
        self.place = place  # which of several outputs
        self.generation = generation
        self._item = log_probs if isinstance(log_probs, Mapping) else None  # which has them, not yet looked at
        self._log_probs = None if isinstance(log_probs, Mapping) else log_probs
        self.before = before  # the call to which the prompt adds something
        self.kept = kept  # how many tokens the prompt has in common with what was read and written there
        self.added = added if added is not None else (prompt or [])[kept:]
        self._prompt = prompt

    @property
    def log_probs(self) -> list[float] | None:
        """A number for each generated token; None if they were not recorded."""
        if self._item is not None:
            self._log_probs, self._item = log_probs_of(self._item), None
        return self._log_probs

    @property
    def prompt(self) -> list[int]:
        """All tokens that the model read."""
        if self._prompt is not None:
            return self._prompt
        pieces, needed, call = [self.added], self.kept, self.before
        while needed and call is not None:
            read = call.kept + len(call.added)
            for start, piece in ((read, call.generation), (call.kept, call.added)):
                if needed > start:
                    pieces.append(piece[: needed - start])
                    needed = start
            call = call.before
        return [token for piece in reversed(pieces) for token in piece]

    @property
    def read(self) -> int:
        """How many tokens were read."""
        return self.kept + len(self.added)

    @property
    def length(self) -> int:
        """How many tokens were read and written."""
        return self.read + len(self.generation)

    @property
    def continues(self) -> bool:
        """Whether the prompt begins with everything that was read and written in the call before."""
        return self.kept == (self.before.length if self.before is not None else 0)


def read_calls(*outputs: Items) -> Iterator[CallTokens]:
    """The calls of a row in order: those of its output, then of its traces. Invalid tokens are refused."""
    for call in find_calls(*outputs):
        if isinstance(call, int):
            raise RolloutFormatError(_INVALID)
        yield call


def find_calls(*outputs: Items) -> Iterator[CallTokens | int]:
    """The same; an item whose tokens are not valid yields its index, and nothing continues it."""
    before: CallTokens | None = None
    for place, output in enumerate(outputs):
        for number, item in enumerate(output):
            if not is_trainable(item):
                continue
            before = _read(item, number, before)
            if before is None:
                yield number
            else:
                before.place = place
                yield before


def _read(item: Mapping[str, Any], number: int, before: CallTokens | None) -> CallTokens | None:
    generation: Any = item.get(TRAINABLE)
    prompt, added = item.get(PROMPT), item.get(ADDED)
    if not _are_ids(generation) or not _are_ids(prompt if prompt is not None else added):
        return None
    if prompt is not None:
        kept = 0 if before is None else _shared(before, prompt)
        return CallTokens(generation, item, item=number, before=before, kept=kept, prompt=prompt)
    most = before.length if before is not None else 0
    kept = item.get(KEPT, most)
    if type(kept) is not int or not 0 <= kept <= most:
        return None
    return CallTokens(generation, item, item=number, before=before, kept=kept, added=added)


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list) and _holds(ids, _IDS)


def _holds(values: list[Any], kind: Any) -> bool:
    """Whether a list has only values of a type; in half the time that looking at the type of each takes."""
    try:
        msgspec.convert(values, kind)
    except msgspec.ValidationError:
        return False
    return True


def _shared(before: CallTokens, prompt: list[int]) -> int:
    earlier, written = before.prompt, before.generation
    middle = len(earlier)
    if prompt[:middle] == earlier and prompt[middle : middle + len(written)] == written:
        return middle + len(written)
    return common_prefix([*earlier, *written], prompt)


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


def log_probs_of(item: Mapping[str, Any]) -> list[float] | None:
    """A number for each token that was generated; None if they were not recorded."""
    found, generation = item.get(LOG_PROBS), item.get(TRAINABLE)
    if not isinstance(generation, list) or not isinstance(found or [], list):
        return None
    whole = len(found or []) == len(generation) and _holds(found or [], _NUMBERS)
    return (found or []) if whole else None


# ---- converting ------------------------------------------------------------------------------------------------------
class _Place(NamedTuple):
    """Where a row has items: a list in one of its objects."""

    holder: dict[str, Any]
    name: str


def has_whole_prompts(fields: dict[str, Any]) -> bool:
    """Whether a row has tokens of calls with the whole prompt of each."""
    return any(item.get(PROMPT) is not None for item in _trainable(fields))


def with_added_prompts(fields: dict[str, Any]) -> dict[str, Any]:
    """The row with every prompt as what it adds; the row itself if no prompt is whole. Nothing is changed in place."""
    if not has_whole_prompts(fields):
        return fields
    changed = _converted(fields, _with_added)
    last = changed.pop(ROLLOUT_INDEX_KEY_NAME, None)  # which is the last key of a line
    changed[FORM_KEY] = PROMPT_FORM
    return changed if last is None else {**changed, ROLLOUT_INDEX_KEY_NAME: last}


def with_full_prompts(fields: dict[str, Any]) -> dict[str, Any]:
    """The row with every prompt whole; the row itself if all of them are. Nothing is changed in place."""
    if FORM_KEY not in fields and not any(item.get(ADDED) is not None for item in _trainable(fields)):
        return fields
    changed = _converted(fields, _with_prompt)
    changed.pop(FORM_KEY, None)
    return changed


def _with_added(item: dict[str, Any], call: CallTokens) -> dict[str, Any]:
    prompt: dict[str, Any] = {ADDED: call.added} | ({} if call.continues else {KEPT: call.kept})
    return _replaced(item, PROMPT, prompt)


def _with_prompt(item: dict[str, Any], call: CallTokens) -> dict[str, Any]:
    without = {name: value for name, value in item.items() if name != KEPT}
    return _replaced(without, ADDED, {PROMPT: call.prompt})


def _replaced(item: dict[str, Any], name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The item with fields in the place of another one, so that converting back gives the same text."""
    changed: dict[str, Any] = {}
    for key, value in item.items():
        changed.update(fields if key == name else {key: value})
    return changed


def _converted(
    fields: dict[str, Any], convert: Callable[[dict[str, Any], CallTokens], dict[str, Any]]
) -> dict[str, Any]:
    changed = dict(fields)
    places = _places(changed, copied=True)
    outputs: list[list[Any]] = [list(place.holder[place.name]) for place in places]
    calls = find_calls(*outputs)
    for place, output in zip(places, outputs, strict=True):
        place.holder[place.name] = [
            convert(item, call) if is_trainable(item) and isinstance(call := next(calls), CallTokens) else item
            for item in output
        ]
    return changed


def _places(fields: dict[str, Any], *, copied: bool = False) -> list[_Place]:
    """Where a row has items, in the order in which its calls follow each other."""
    found: list[_Place] = []
    response, traces = fields.get(RESPONSE_KEY_NAME), fields.get(TRACES_KEY_NAME)
    if isinstance(response, dict) and isinstance(response.get("output"), list):
        fields[RESPONSE_KEY_NAME] = response = dict(response) if copied else response
        found.append(_Place(response, "output"))
    elif isinstance(fields.get("output"), list):
        found.append(_Place(fields, "output"))
    if isinstance(traces, list):
        fields[TRACES_KEY_NAME] = traces = [dict(one) if copied and isinstance(one, dict) else one for one in traces]
        found += [
            _Place(one, "output") for one in traces if isinstance(one, dict) and isinstance(one.get("output"), list)
        ]
    return found


def _trainable(fields: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return (item for place in _places(fields) for item in place.holder[place.name] if is_trainable(item))


def is_trainable(item: object) -> bool:
    """Whether an item has the tokens of a call."""
    return isinstance(item, Mapping) and item.get(TRAINABLE) is not None
