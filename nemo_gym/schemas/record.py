"""What a saved row means: the only module that looks into the fields of a task, a planned row, a rollout or a failure.

- An **index** is a whole number, however it is written: ``3``, ``3.0`` (a file that went through pandas) and ``"3"``
  are the same. Anything else, booleans above all, is refused with a ``RolloutFormatError``.
- The **key** is the task index and the rollout index. A row that lacks one of them (or has null) has no key: the store
  can't match it with a plan, and an export labels it null. Statistics count it nevertheless, under task 0 and as the
  next free rollout of its task.
- The **agent** is the name in ``agent_ref``, if it is a text that is not empty.
- The **reward** is a number; true and false are 1 and 0, and NaN is not a reward. A row that is **masked**
  (``mask_sample``) has none, and no other metric either: its verdict says that it is not a measurement.
- A **metric** is a top-level bool, int or float, or one in ``response.usage`` or ``reward_components``. What the
  program stamps itself (``_ng_*``, references, the request and the response) never is, whatever its type.
- **Usage** is what was paid for: the tokens in ``response.usage`` or in its ``spent``, and those of each judge.
- A **tool call** is an output item whose type ends in ``_call``. A **turn** is a sequence of items that the model
  produced in one go; the output of a tool, or a message by someone else, ends it.
- Two rows are of the same **task** if they ask the same under the same name, in whatever order keys are written.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypedDict, cast

import msgspec

from nemo_gym.io.compressed import open_lines
from nemo_gym.io.json import decode, encode_sorted
from nemo_gym.schemas.call_tokens import FORM_KEY, PROMPT_FORM, RolloutFormatError, with_full_prompts
from nemo_gym.schemas.rows import (
    AGENT_REF_KEY_NAME,
    FAILURE_KIND_KEY_NAME,
    JUDGE_USAGE_KEY,
    MASK_KEY_NAME,
    MAX_ROLLOUTS,
    NG_FAILURE_CLASS_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    SKILLS_REF_KEY_NAME,
    SPENT,
    TASK_INDEX_KEY_NAME,
    TASK_SOURCE_KEY_NAME,
    TRACES_KEY_NAME,
    RolloutKey,
)
from nemo_gym.schemas.transcript_counts import (
    NO_TRANSCRIPT,
    TranscriptCounts,
    count_items,
    count_pattern,
    type_and_role,
)

Row = dict[str, Any]
REWARD: Final = "reward"
REWARD_COMPONENTS: Final = "reward_components"
MASKED: Final = "masked"  # the failure of a masked row that does not name one
PASS_THRESHOLD: Final = 1.0  # lowest reward with which a rollout passes, unless set otherwise
BOOKKEEPING_PREFIX: Final = "_ng_"
NEVER_METRICS: Final = frozenset(
    {
        AGENT_REF_KEY_NAME,
        MASK_KEY_NAME,
        RESPONSE_KEY_NAME,
        RESPONSES_CREATE_PARAMS_KEY_NAME,
        SKILLS_REF_KEY_NAME,
        TRACES_KEY_NAME,
    }
)
QUESTION_FIELDS: Final = ("question", "problem", "prompt")
# Stands for "no index" in columns of numbers; the smallest int64 is not an index anybody writes.
NO_INDEX: Final = -(2**63)
_DIGITS: Final = re.compile(r"-?[0-9]{1,19}")
_NOTHING: Final[Mapping[str, Any]] = {}


# ---- tokens ----------------------------------------------------------------------------------------------------------
class Usage(NamedTuple):
    """The tokens that a whole rollout paid for: those of its model, and those of each judge by name."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    judges: "Sequence[tuple[str, Usage]]" = ()

    @classmethod
    def of(cls, reported: Any) -> "Usage | None":
        """The tokens of one reported usage; None if the numbers are not plausible."""
        if not isinstance(reported, dict):
            return None
        spent = reported.get(SPENT)
        if isinstance(spent, dict):
            reported = {**spent, "input_tokens_details": spent}
        details = reported.get("input_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        read, written, cached = reported.get("input_tokens"), reported.get("output_tokens"), cached or 0
        if type(read) is type(written) is type(cached) is int and read >= 0 and written >= 0 and cached >= 0:
            return cls(read, written, cached)
        return None

    def as_fields(self) -> Row:
        """The tokens in the fields of a result, from which ``Record.usage`` reads them."""
        judges = {name: used.as_reported() for name, used in self.judges}
        return {RESPONSE_KEY_NAME: {"usage": self.as_reported()}, **({JUDGE_USAGE_KEY: judges} if judges else {})}

    def as_reported(self) -> Row:
        """The tokens without those of judges, as a response reports them."""
        counts = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {**counts, "input_tokens_details": {"cached_tokens": self.cached_tokens}}


# ---- numbers ---------------------------------------------------------------------------------------------------------
_NUMBERS: Final = (int, float)  # as a tuple, because a union would be made anew by every call


def is_metric_name(name: str) -> bool:
    """Whether a field can be a metric; those that the program itself writes into a row cannot."""
    return name not in NEVER_METRICS and not name.startswith(BOOKKEEPING_PREFIX)


def is_task_field(name: str) -> bool:
    """Whether a field of a row belongs to its task, and was not added by whoever prepares or collects it."""
    own = {AGENT_REF_KEY_NAME, TASK_SOURCE_KEY_NAME, SKILLS_REF_KEY_NAME}
    return name not in own and not name.startswith(BOOKKEEPING_PREFIX)


def as_number(value: object) -> int | float | None:
    """The value if it is a number (booleans as 0 and 1), else None."""
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, _NUMBERS) else None


def as_float(value: float) -> float:
    """A float; an integer too large for one counts as infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# ---- rows ------------------------------------------------------------------------------------------------------------
class Record:
    """A row that was parsed. It wraps the object, changes nothing in it, and reads a field only on demand."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        # Almost always a dictionary, which is quick to check; checking for a mapping takes longer than all the rest.
        if type(fields) is not dict and not isinstance(fields, Mapping):
            raise RolloutFormatError(f"not an object but {type(fields).__name__}")
        self.fields: Row = fields if isinstance(fields, dict) else dict(fields)

    @classmethod
    def parse(cls, line: bytes | str, path: Path | None = None, number: int = 0) -> Self:
        """The row on a line. An error names the file and the line, if they are given."""
        try:
            return cls(decode(line))
        except ValueError as error:
            reason = str(error) if isinstance(error, RolloutFormatError) else f"not JSON ({error})"
        raise RolloutFormatError(f"{path}:{number}: {reason}" if path else reason, hint="repair or delete that line")

    # ---- which rollout it is ----------------------------------------------------------------------------------------
    @property
    def task(self) -> int | None:
        return self._index(TASK_INDEX_KEY_NAME, NO_INDEX + 1, -NO_INDEX)

    @property
    def rollout(self) -> int | None:
        """The rollout index: which of the task's repeats it is."""
        return self._index(ROLLOUT_INDEX_KEY_NAME, 0, MAX_ROLLOUTS)

    @property
    def key(self) -> RolloutKey | None:
        """Both indices; None if it lacks one."""
        task, rollout = self.task, self.rollout
        return None if task is None or rollout is None else RolloutKey(task, rollout)

    def sort_key(self) -> tuple[int, int]:
        """For sorting rows by key; those without one come first."""
        return self.key or (-1, -1)

    @property
    def agent(self) -> str | None:
        reference = self.fields.get(AGENT_REF_KEY_NAME)
        name = reference.get("name") if isinstance(reference, dict) else None
        return name if isinstance(name, str) and name else None

    @property
    def source(self) -> str | None:
        """The server that declares the dataset of the task."""
        source = self.fields.get(TASK_SOURCE_KEY_NAME)
        return source if isinstance(source, str) else None

    def summary(self) -> Row:
        """What may be logged about a row: the rollout and its agent, never its content."""
        named = {name: self.fields.get(name) for name in (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)}
        return {name: value for name, value in {**named, "agent_name": self.agent}.items() if value is not None}

    def _index(self, name: str, lowest: int, end: int) -> int | None:
        value = self.fields.get(name)
        if value is None:
            return None
        whole: int = value
        if type(value) is not int:
            is_text = isinstance(value, str)
            if not (_DIGITS.fullmatch(value) if is_text else isinstance(value, float) and value.is_integer()):
                raise RolloutFormatError(f"{name} must be a whole number, not {value!r:.60}")
            whole = int(value)
        if not lowest <= whole < end:
            raise RolloutFormatError(f"{name} is out of range: {value!r:.60}")
        return whole

    # ---- what the task asks -----------------------------------------------------------------------------------------
    @property
    def params(self) -> Mapping[str, Any]:
        """The request to the model; empty if there is none."""
        return self._object(RESPONSES_CREATE_PARAMS_KEY_NAME)

    @property
    def given(self) -> list[Any]:
        """What the model was given, as items: the instructions as a system message, then the input."""
        params = self.params
        system = [{"role": "system", "content": params["instructions"]}] if params.get("instructions") else []
        given = params.get("input")
        if isinstance(given, str):
            return [*system, {"role": "user", "content": given}]
        return [*system, *given] if isinstance(given, list) else system

    @property
    def question(self) -> str | None:
        """The question in a field of its own."""
        return next((self.fields[name] for name in QUESTION_FIELDS if isinstance(self.fields.get(name), str)), None)

    @property
    def prompt_digest(self) -> bytes:
        """Stands for what the task asks: instructions and input, otherwise its question. Empty if the row has neither.

        Sampling parameters, tools and the index do not matter, so runs with other settings have the same digests.
        """
        params = self.params
        content: Any = self.question
        if params.get("input") is not None:
            content = [params.get("instructions"), params["input"]]
        try:
            return b"" if content is None else hashlib.blake2b(encode_sorted(content), digest_size=12).digest()
        except ValueError:  # nested too deeply to be written
            return b""

    @property
    def prompt_number(self) -> int | None:
        """The digest as a number of 53 bits, because columns of floats hold no larger integers exactly."""
        digest = self.prompt_digest
        return int.from_bytes(digest[:8]) >> 11 if digest else None

    @property
    def identity(self) -> bytes:
        """Stands for the task. It includes the prompt, because other runs may use the same index for other tasks."""
        name = self.fields.get("task_id")
        return self.prompt_digest + str(self.task if name is None else name).encode("utf-8", "replace")

    # ---- how it went ------------------------------------------------------------------------------------------------
    @property
    def failure(self) -> str | None:
        """The class of the failure: of an attempt, or of a verdict that is not a measurement; None if it is one."""
        kind = self.fields.get(NG_FAILURE_CLASS_KEY)
        if kind is None and self.is_masked:
            kind = self.fields.get(FAILURE_KIND_KEY_NAME) or MASKED
        return None if kind is None else str(kind)

    @property
    def is_masked(self) -> bool:
        """Whether the verdict says that its reward is not a measurement."""
        return self.fields.get(MASK_KEY_NAME) is True

    @property
    def reward(self) -> float | None:
        if self.is_masked:
            return None
        number = as_number(self.fields.get(REWARD))
        reward = math.nan if number is None else as_float(number)
        return None if math.isnan(reward) else reward

    @property
    def metrics(self) -> dict[str, bool | int | float]:
        """The top-level metrics in the order of the row, then the parts of the reward. Booleans stay booleans."""
        if self.is_masked:
            return {}
        numbers = bool | int | float
        found = {n: value for n, value in self.fields.items() if isinstance(value, numbers) and is_metric_name(n)}
        parts = self._object(REWARD_COMPONENTS).items()
        return found | {f"{REWARD_COMPONENTS}/{n}": value for n, value in parts if isinstance(value, numbers)}

    @property
    def response(self) -> Mapping[str, Any]:
        """The response of the agent; empty if there is none."""
        return self._object(RESPONSE_KEY_NAME)

    @property
    def reported_usage(self) -> Mapping[str, Any]:
        """``response.usage`` as it is; empty if there is none."""
        usage = self.response.get("usage")
        return usage if isinstance(usage, dict) else _NOTHING

    @property
    def usage(self) -> Usage | None:
        """The tokens that were paid for; None if they are not known."""
        own, judged = Usage.of(self.response.get("usage")), self._object(JUDGE_USAGE_KEY)
        judges = [(str(name), used) for name, each in judged.items() if (used := Usage.of(each)) is not None]
        return (own or Usage(0, 0))._replace(judges=judges) if judges else own

    @property
    def output(self) -> list[Any] | None:
        """``response.output``, or a top-level ``output`` as older files have it, if it is a list."""
        output = self.response.get("output")
        if not isinstance(output, list):
            output = self.fields.get("output")
        return output if isinstance(output, list) else None

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """The items of the output; an empty one for anything that is not an object, so that places stay the same."""
        return [item if isinstance(item, dict) else _NOTHING for item in self.output or ()]

    @property
    def traces(self) -> list[Mapping[str, Any]]:
        """The chains of model calls beside the one in the output; none if all calls are in the output."""
        form = self.fields.get(FORM_KEY, PROMPT_FORM)
        if form != PROMPT_FORM:
            raise RolloutFormatError(f"tokens in form {form!r:.20}, which is newer than this program")
        traces = self.fields.get(TRACES_KEY_NAME)
        return [trace for trace in traces if isinstance(trace, dict)] if isinstance(traces, list) else []

    def with_prompts(self) -> Row:
        """The fields, in which every model call has the whole prompt that it read."""
        return with_full_prompts(self.fields)

    @property
    def counts(self) -> TranscriptCounts:
        """The tool calls and turns of the transcript."""
        output = self.output
        if output is None:
            return NO_TRANSCRIPT
        try:
            return count_pattern(tuple([(item.get("type"), item.get("role")) for item in output]))
        except (AttributeError, TypeError):  # an item that is not an object, or whose type is not a text
            return count_items(map(type_and_role, output))

    def _object(self, name: str) -> Mapping[str, Any]:
        value = self.fields.get(name)
        return value if isinstance(value, dict) else _NOTHING


# ---- lines -----------------------------------------------------------------------------------------------------------
class RecordLine(NamedTuple):
    """A line of a file: its number, its text without the line end, and the row that it holds."""

    number: int
    text: bytes
    record: Record


def read_records(path: Path) -> Iterator[RecordLine]:
    """The rows of a file; blank lines are skipped, and one that can't be read is an error."""
    with open_lines(path) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield RecordLine(number, line.rstrip(b"\r\n"), Record.parse(line, path, number))


class _Outline(TypedDict, total=False):
    """The fields of a planned row that name the rollout and are repeated in its record."""

    _ng_task_index: Any
    _ng_rollout_index: Any
    agent_ref: Any
    skills_ref: Any


_outline = msgspec.json.Decoder(_Outline).decode


def outline_of(line: bytes) -> Row:
    """The fields of a line that name its rollout, in a third of the time that the whole line takes."""
    try:
        return cast("Row", _outline(line))
    except (ValueError, msgspec.MsgspecError, RecursionError):  # no object, or JSON that only Python writes
        return Record.parse(line).fields
