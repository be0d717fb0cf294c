"""The columns of a rollout by which people filter, sort and plot.

Some columns have fixed names and exist for every rollout; two of them, question and answer, are previews of longer
text. The rest are the record's own fields: numbers, booleans and short strings, at the top level and one level deep as
``object.field``. If a field of the record has the name of a fixed column, it is called ``record.<name>``. Numbers are
those of SQL: 64-bit integers and floats; NaN counts as missing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from nemo_gym.filters.syntax import Value
from nemo_gym.schemas.record import REWARD, Record, as_float, as_number, is_metric_name

LONGEST_PREVIEW: Final = 200
_READ_FOR_PREVIEW: Final = 300  # characters; more than a preview shows, because text may begin with blanks


def preview_question(record: Record) -> str | None:
    """The question of the task: the record's own question field, otherwise the user's last message.

    The user's first message may be an example that shows the model what an answer looks like.
    """
    text = record.question
    if text is None:
        given = record.params.get("input")
        text = given if isinstance(given, str) else _text_by("user", reversed(given) if type(given) is list else ())
    if text is None:
        text = _text_by("user", record.output or ())
    return None if text is None else preview(text)


def preview_answer(record: Record) -> str | None:
    """The assistant's last message; for a failed rollout, the reason."""
    text = _text_by("assistant", reversed(record.output or ()))
    if text is None and isinstance(record.fields.get("error_message"), str):
        text = record.fields["error_message"]
    return None if text is None else preview(text)


def _text_by(role: str, items: Iterable[Any]) -> str | None:
    for item in items:
        if type(item) is dict and item.get("role") == role:
            text = _content(item.get("content"))
            if text:
                return text
    return None


def _content(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if type(part) is dict else part
        if isinstance(text, str) and text:
            return text
    return None


def preview(text: str) -> str:
    """The beginning of the text, on one line."""
    return plain_text(text[:_READ_FOR_PREVIEW].strip().replace("\n", " ").replace("\t", " ")[:LONGEST_PREVIEW])


def plain_text(text: str) -> str:
    """The text without NUL and lone surrogates, which databases and terminals can't handle."""
    if "\0" in text:
        text = text.replace("\0", "�")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


LONGEST_TEXT: Final = 60
MOST_NESTED: Final = 40  # fields of an object that become columns; larger objects are left out
_DURATIONS: Final = ("_ng_duration_s", "duration_s", "duration")
_INTEGERS: Final = 2**63
NUMBERS: Final = (
    "task",
    "rollout",
    "reward",
    "tokens",
    "input_tokens",
    "output_tokens",
    "turns",
    "tool_calls",
    "duration",
)
TEXTS: Final = ("agent", "failure")
FIXED_ORDER: Final = (*NUMBERS, *TEXTS)
PREVIEWS: Final = ("question", "answer")
MARKED: Final = ("label", "note")  # what a person has said about a rollout, in a file beside the run
OUTSIDE: Final = ("file", "bytes")  # facts about a line that are not part of its record
FIXED: Final = frozenset({*NUMBERS, *TEXTS, *PREVIEWS, *OUTSIDE, *MARKED})


def record_fields(record: Record) -> dict[str, Value]:
    """All columns of a record. An index that is not a whole number is a ``ValueError``."""
    previews = {"question": preview_question(record), "answer": preview_answer(record)}
    return fixed_fields(record) | own_fields(record) | previews


def fixed_fields(record: Record) -> dict[str, Value]:
    """The columns that every rollout has; None where the record has no value."""
    return dict(zip(FIXED_ORDER, fixed_values(record), strict=True))


def fixed_values(record: Record) -> tuple[Value, ...]:
    """The values of the fixed columns, in the order of ``FIXED_ORDER``."""
    failure, agent, reward = record.failure, record.agent, record.reward
    calls, turns = record.counts
    used = record.reported_usage.get
    total, read, written = number(used("total_tokens")), number(used("input_tokens")), number(used("output_tokens"))
    if total is None and read is not None and written is not None:
        total = read + written
    return (
        record.task or 0,
        record.rollout,
        reward,
        total,
        read,
        written,
        turns,
        calls,
        _duration(record),
        None if agent is None else plain_text(agent),
        None if failure is None else plain_text(failure),
    )


def _duration(record: Record) -> Value:
    for name in _DURATIONS:
        if (found := number(record.fields.get(name))) is not None:
            return found
    return None


def own_fields(record: Record) -> dict[str, Value]:
    """The record's own numbers, booleans and short strings."""
    fields: dict[str, Value] = {}
    for name, value in record.fields.items():
        kind = type(value)
        if name == REWARD or not is_metric_name(name):
            continue
        if kind is dict:
            if len(value) <= MOST_NESTED:
                _add_nested(fields, name, value)
        elif kind is not list and (short := scalar(value)) is not None:
            fields[plain_text(name) if name not in FIXED else f"record.{name}"] = short
    return fields


def _add_nested(fields: dict[str, Value], name: str, values: Mapping[str, Any]) -> None:
    for inner, value in values.items():
        if (short := scalar(value)) is not None:
            fields[plain_text(f"{name}.{inner}")] = short


def scalar(value: object) -> Value:
    """The value if it is a number, a boolean or a short string, otherwise None."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        return plain_text(value) if len(value) <= LONGEST_TEXT else None
    if kind is bool:
        return bool(value)
    return number(value)


def number(value: object) -> float | int | None:
    """The value as a number that SQL can hold; None if it is not a number, or NaN."""
    if type(value) is float:
        return value if value == value else None  # noqa: PLR0124 - only NaN differs from itself
    found = as_number(value)
    if found is None or found != found:  # noqa: PLR0124
        return None
    return found if isinstance(found, float) or -_INTEGERS <= found < _INTEGERS else as_float(found)
