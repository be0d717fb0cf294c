"""Finds text that is too similar: repeated answers, near duplicates, and tasks that are held out for evaluation.

Texts are compared by their words, ignoring case, white space and punctuation. System messages are never compared,
because they are the same in every task of an environment.

Two rollouts are near duplicates if both their prompts and their answers are similar enough: two answers "yes" to
different questions are not duplicates, and neither are different answers to the same long prompt. Similarity is the
Jaccard index of the sets of five-word sequences, estimated by MinHash with a standard error of at most 0.045. Of
several near duplicates, the first one in the files is kept.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.records import ExportedRollout
from nemo_gym.io.files import named_files
from nemo_gym.schemas.record import Record, read_records

_PERMUTATIONS: Final = 128
_SHINGLE: Final = 5  # words
_MISSED: Final = 0.9  # weight of false negatives in the index; false positives cost little, as they are checked again
_ASCII: Final = bytes(range(0x80))
# What is not part of a word becomes a space; the bytes of characters beyond ASCII are looked at one by one.
_SEPARATE: Final = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or byte == ord("_") else 0x20 for byte in range(256)
)
# What is compared of the items of an answer.
_SAID: Final = {
    "message": ("role", "content"),
    "function_call": ("name", "arguments"),
    "function_call_output": ("output",),
    "reasoning": ("content", "summary"),
}
_IDS: Final = frozenset({"id", "call_id"})
_SYSTEM: Final = frozenset({"system", "developer"})


def normalised(text: str) -> bytes:
    """The words of some text in the form in which they are compared, with a space between them."""
    # A few passes over the bytes take a tenth of the time of a search for words.
    words = text.encode("utf-8", "replace").lower()
    for char in set(words.translate(None, _ASCII).decode()) if not text.isascii() else ():
        folded = "".join(part if part.isalnum() else " " for part in char.casefold())
        if folded != char:
            words = words.replace(char.encode(), folded.encode())
    return b" ".join(words.translate(_SEPARATE).split())


def answer_text(rollout: ExportedRollout) -> bytes:
    """The words of an answer: its text, reasoning and calls, and the results of the calls, without ids."""
    texts: list[str] = []
    for item in rollout.output:
        kind = item.get("type") or "message"
        texts.append(str(kind))
        if kind not in _SAID:
            texts.append(repr({name: value for name, value in item.items() if name not in _IDS}))
            continue
        for value in map(item.get, _SAID[kind]):
            if isinstance(value, str):
                texts.append(value)
            elif value:
                texts += map(_part_text, value) if isinstance(value, list) else [repr(value)]
    return normalised("\n".join(texts))


def _part_text(part: Any) -> str:
    text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
    return text if isinstance(text, str) else repr(part)


def question_text(record: Record) -> bytes:
    """The words of a task: everything in its prompt except system messages; without a prompt, its question."""
    given = record.params.get("input")
    if given is None:
        given = record.question or ""
    items = given if isinstance(given, list) else [given]
    return normalised("\n".join(text for item in items for text in _texts(item)))


def _texts(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, Mapping) and item.get("role") not in _SYSTEM:
        for name in ("content", "text", "arguments", "output"):
            value = item.get(name)
            for part in value if isinstance(value, list) else [value]:
                yield from _texts(part)


def _runs(text: bytes, length: int) -> set[bytes]:
    """All sequences of that many words; for a shorter text, the whole text."""
    words = text.split()
    return {b" ".join(words[at : at + length]) for at in range(max(1, len(words) - length + 1))}


class Repeats:
    """Passes only the first rollout with each text; the same text for another prompt counts as different."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __call__(self, rollout: ExportedRollout) -> bool:
        """Whether it is new."""
        mark = rollout.record.prompt_digest + hashlib.blake2b(answer_text(rollout), digest_size=12).digest()
        if mark in self._seen:
            return False
        self._seen.add(mark)
        return True


class NearDuplicates:
    """Passes rollouts that are not similar to any earlier one."""

    def __init__(self, threshold: float) -> None:
        try:
            import datasketch  # noqa: PLC0415 - an extra
            import numpy as np  # noqa: PLC0415 - comes with it
        except ImportError:
            raise ConfigError("near_duplicates needs datasketch", hint="pip install 'rollout-gym[export]'") from None
        library: Any = datasketch  # parts of it have no types
        weights = (1 - _MISSED, _MISSED)
        self._sketch: Callable[[], Any] = lambda: library.MinHash(num_perm=_PERMUTATIONS)
        self._index = library.MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS, weights=weights)
        self._packed: Callable[[Any], Any] = lambda sketch: sketch.hashvalues.astype(np.uint32)
        self._threshold = threshold
        self._known: list[Any] = []
        self._prompts: dict[bytes, int] = {}

    def __call__(self, rollout: ExportedRollout) -> bool:
        """Whether it is new. Similar prompts count as the same; answers are compared only within the same prompt."""
        prompt = self._prompts.get(rollout.record.prompt_digest)
        if prompt is None:
            prompt = self._find(question_text(rollout.record), b"prompt")[0]
            self._prompts[rollout.record.prompt_digest] = prompt
        return self._find(answer_text(rollout), b"%d" % prompt)[1]

    def _find(self, text: bytes, kind: bytes) -> tuple[int, bool]:
        """The number of this text, and whether it is new. Only texts of one kind are compared, to keep lists short."""
        sketch = self._sketch()
        sketch.update_batch([b"%s %s" % (kind, run) for run in _runs(text, _SHINGLE)])
        packed = self._packed(sketch)
        # The index only suggests candidates; their whole sketches decide. Sorted, so that the first one wins.
        for number in sorted(self._index.query(sketch)):
            if (self._known[number] == packed).mean() >= self._threshold:
                return number, False
        number = len(self._known)
        self._known.append(packed)
        self._index.insert(number, sketch)
        return number, True


class HeldOutFilter:
    """Passes rollouts that share no long sequence of words with a held-out task.

    Sequences that occur in many held-out tasks belong to their template and do not count. A held-out task that is too
    short for a sequence, or consists only of the template, is recognised by its whole text.
    """

    def __init__(self, files: str | list[str], *, length: int, common: int) -> None:
        self._length = length
        self._whole: set[bytes] = set()
        counts: Counter[int] = Counter()
        # Hashes instead of text: a benchmark has millions of sequences of words.
        for path in named_files(files, "decontaminate"):
            for text in _questions(path):
                if text not in self._whole and text.count(b" ") + 1 >= length:
                    counts.update(map(hash, _runs(text, length)))
                self._whole.add(text)
        self._runs = {run for run, tasks in counts.items() if tasks <= common}
        self._prompts: dict[bytes, bool] = {}  # rollouts of one task share their prompt

    def __call__(self, rollout: ExportedRollout) -> bool:
        """Whether neither the question nor the answer overlaps with a held-out task."""
        if rollout.record.prompt_digest not in self._prompts:
            question = question_text(rollout.record)
            self._prompts[rollout.record.prompt_digest] = question not in self._whole and self._is_clean(question)
        return self._prompts[rollout.record.prompt_digest] and self._is_clean(answer_text(rollout))

    def _is_clean(self, text: bytes) -> bool:
        return text.count(b" ") + 1 < self._length or self._runs.isdisjoint(map(hash, _runs(text, self._length)))


def _questions(path: Path) -> Iterator[bytes]:
    for number, _, record in read_records(path):
        text = question_text(record)
        if not text:
            raise ConfigError(
                f"{path}:{number}: has no question to compare with",
                hint="+decontaminate takes task files: rows with responses_create_params.input, question, problem "
                "or prompt",
            )
        yield text
