"""A rollout as a person reads it: who wrote what, which tools were called, what came back, how it was scored.

Pure: a record as saved goes in, text comes out. Everything in the record gets a line; an item of an unknown kind is
shown as JSON rather than left out. Control characters, with which model output could take over a terminal, are
replaced.
"""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.io.terminal_text import printable_lines
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import TRACES_KEY_NAME

MODEL_STARTS: Final = "model output from here on"
_LABEL_ROOM: Final = 11
_LONGEST_FIELD: Final = 60
_LONGEST_OUTPUT: Final = 2_000


class Entry(NamedTuple):
    """One step of a transcript: whose it is, and what it says."""

    label: str
    text: str


def render_transcript(fields: Mapping[str, Any], *, width: int = 100) -> str:
    """The whole rollout as text: a heading, the conversation, the fields of the verification."""
    record = Record(fields)
    given, made = list(prompt_entries(record)), list(output_entries(record))
    rule = [f"  {f' {MODEL_STARTS} ':─^{max(width - 4, len(MODEL_STARTS) + 6)}}"] if given and made else []
    blocks = [
        [heading(record), ""],
        _laid_out(given, width),
        rule,
        _laid_out(made, width),
        *_traces(record, width),
        ["", *textwrap.wrap(printable_lines(score_line(record)), width, initial_indent="  ", subsequent_indent="  ")],
    ]
    return "\n".join(line for block in blocks for line in block).rstrip()


def _traces(record: Record, width: int) -> Iterator[list[str]]:
    """The chains of model calls beside the response, such as those of sub-agents."""
    traces = record.fields.get(TRACES_KEY_NAME)
    for number, trace in enumerate(traces if isinstance(traces, list) else ()):
        if isinstance(trace, dict) and isinstance(trace.get("output"), list):
            entries = [*_entries(trace.get("input")), *_entries(trace["output"])]
            title = printable_lines(f" {title_of_trace(trace, number)} ")
            yield [f"  {title:─^{max(width - 4, len(title))}}", *_laid_out(entries, width)]


def title_of_trace(trace: Mapping[str, Any], number: int) -> str:
    """What a trace is: its number, who made its calls, and why they are not in the response."""
    parent = f"trace {trace['parent']}" if trace.get("parent") else "the response"
    origin = str(trace["reason"]).replace("_", " ") if trace.get("reason") else f"goes on from {parent}"
    calls = "beside the work" if trace.get("auxiliary") else str(trace.get("thread") or "")
    use = "repeated, not used" if trace.get("trained") is False and not trace.get("auxiliary") else ""
    return " · ".join(filter(None, (f"trace {number}", calls, origin, use)))


def heading(record: Record) -> str:
    """Which rollout this is, as far as the record says."""
    indices = (("task", record.task), ("rollout", record.rollout))
    parts = [*(f"{name} {index}" for name, index in indices if index is not None), record.agent or ""]
    return printable_lines(" · ".join(filter(None, parts)) or "a rollout")


def score_line(record: Record) -> str:
    """The reward first, then every other number and short text that the verification returned."""
    fields = {name: value for name, value in record.fields.items() if _is_score(name, value)}
    names = sorted(fields, key=lambda name: name != "reward")
    return " · ".join(f"{name} {_scalar(fields[name])}" for name in names) or "not scored"


def prompt_entries(record: Record) -> Iterator[Entry]:
    """What the model was given."""
    yield from _entries(record.given)


def output_entries(record: Record) -> Iterator[Entry]:
    """What the model did and what the tools returned; then why it stopped, if not because it was done."""
    yield from _entries(record.output)
    details = record.response.get("incomplete_details")
    if isinstance(details, Mapping):
        yield Entry("cut off", str(details.get("reason") or "no reason given"))


def _entries(items: Any) -> Iterator[Entry]:
    for item in items if isinstance(items, list) else []:
        yield from _entry(item) if isinstance(item, Mapping) else [Entry("?", _json(item))]


def _entry(item: Mapping[str, Any]) -> Iterator[Entry]:
    match item:
        case {"type": "function_call", "name": str(name), **rest}:
            yield Entry("call", f"{name}({_arguments(rest.get('arguments'))})")
        case {"type": "function_call_output", **rest}:
            yield Entry("result", _content(rest.get("output")))
        case {"role": "tool", **rest}:
            yield Entry("result", _content(rest.get("content")))
        case {"type": "reasoning", **rest}:
            thoughts = _content(rest.get("summary")), _content(rest.get("content"))
            yield Entry("thinks", "\n".join(filter(None, thoughts)))
        case {"role": str(role), **rest}:
            if rest.get("content") or not rest.get("tool_calls"):
                yield Entry(role, _content(rest.get("content")))
            yield from _chat_calls(rest.get("tool_calls"))
        case _:
            yield Entry(str(item.get("type", "?")), _json(item))


def _chat_calls(calls: Any) -> Iterator[Entry]:
    """Tool calls the way Chat Completions write them, as part of a message."""
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield Entry("call", f"{function.get('name')}({_arguments(function.get('arguments'))})")
        else:
            yield Entry("call", _json(call))


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(map(_part, content))
    return content if isinstance(content, str) else "" if content is None else _json(content)


def _part(part: Any) -> str:
    if isinstance(part, Mapping):
        for name in ("text", "refusal"):
            if isinstance(part.get(name), str):
                return str(part[name])
        return f"[{str(part.get('type', 'part')).removeprefix('input_')}]"
    return part if isinstance(part, str) else _json(part)


def _arguments(arguments: Any) -> str:
    """``name=value`` pairs; text that is not a JSON object is shown as the model wrote it."""
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return str(arguments)
    if not isinstance(values, dict):
        return str(arguments)
    return ", ".join(f"{name}={_json(value)}" for name, value in values.items())


def _laid_out(entries: Iterable[Entry], width: int) -> Iterator[str]:
    indent = " " * (2 + _LABEL_ROOM)
    for label, text in entries:
        shown = text if len(text) <= _LONGEST_OUTPUT else f"{text[:_LONGEST_OUTPUT]} … ({len(text)} characters)"
        lines = [
            piece
            for line in printable_lines(shown).split("\n")
            for piece in _wrapped(line, max(width - len(indent), 20))
        ]
        yield f"  {printable_lines(label)[: _LABEL_ROOM - 1]:<{_LABEL_ROOM}}{lines[0]}".rstrip()
        yield from (f"{indent}{line}".rstrip() for line in lines[1:])


def _wrapped(line: str, width: int) -> list[str]:
    # Spaces inside a line may be code: only a line that does not fit is touched.
    return [line] if len(line) <= width else textwrap.wrap(line, width, drop_whitespace=True) or [""]


def _is_score(name: str, value: Any) -> bool:
    if name.startswith("_ng_"):
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _LONGEST_FIELD)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "[nested too deeply to be shown]"
