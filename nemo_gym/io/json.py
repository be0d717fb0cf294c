"""Reads and writes JSON: one reader, one writer for each purpose, and files of JSON lines in blocks of whole lines.

- ``decode`` reads a line or a body. It accepts everything that Python's own parser accepts (``NaN``, lone surrogates),
  and raises a ``ValueError`` for anything else. ``decode_exactly`` is slower, and keeps integers beyond 64 bits.
- ``encode`` writes a line of a JSONL file: compact, UTF-8, without line feeds. Its input must have come from JSON.
- ``to_json`` writes reports, which must not fail because of an unusual value: NaN and infinities become ``null``, and
  values without an equivalent in JSON become text.
- ``encode_json`` writes the body of a call: of models only the set fields, and bytes unchanged. JSON text that is part
  of a value is written as it is if it is an ``orjson.Fragment``.

All of them use orjson, and fall back on Python's own module for what orjson refuses: integers beyond 64 bits, lone
surrogates, deep nesting.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import orjson
from pydantic import BaseModel
from pydantic_core import from_json

from nemo_gym.io.compressed import open_raw_lines

_NOT_A_MODEL: Final = (dict, list, str)  # as a tuple, because a union would be made anew by every call
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | _NUMPY


def decode(text: bytes | str) -> Any:
    """The value of JSON text. Raises ``ValueError`` with orjson's message, clearer than that of Python's parser."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        refused = error
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise refused from None


class NotFiniteError(ValueError):
    """JSON has no numbers such as NaN; Python's parser accepts them, and writing them again would make them null."""


def refuse_not_finite(text: bytes) -> None:
    """Raise ``NotFiniteError`` if JSON text has ``NaN`` or ``Infinity`` outside of its strings."""
    if b"NaN" in text or b"Infinity" in text:  # usually not, or inside a string
        try:
            json.loads(text, parse_constant=_refuse)
        except NotFiniteError:
            raise
        except (ValueError, RecursionError):
            return  # whoever reads the text says what is wrong with it


def decode_finite(text: bytes) -> Any:
    """Like ``decode``, but raises ``NotFiniteError`` for numbers that JSON does not have."""
    try:
        return orjson.loads(text)  # which refuses them
    except orjson.JSONDecodeError:
        refuse_not_finite(text)
        return decode(text)


def _refuse(constant: str) -> Any:
    raise NotFiniteError(f"it has the value {constant}, which JSON does not have")


def decode_exactly(text: bytes | str) -> Any:
    """The value of JSON text as pydantic would read it, with integers of any length."""
    try:
        return msgspec.json.decode(text)  # which takes half as long, and refuses what only pydantic accepts
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return from_json(text)
    except ValueError:  # not JSON, or nested more deeply than that reader goes
        return json.loads(text)


def encode(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """The line for a value, without a line feed; ``default`` converts objects inside it.

    Raises ``ValueError`` if the value is nested too deeply.
    """
    try:
        return orjson.dumps(value, default)
    except TypeError:
        return _slowly(value, default=default)


def encode_sorted(value: Any) -> bytes:
    """Like ``encode``, but with sorted keys, so that equal values have the same text."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _slowly(value, sort_keys=True)


def encode_json(content: Any) -> bytes:
    """The body for a value: of models only the set fields, bytes unchanged, and nothing for None."""
    if isinstance(content, bytes):
        return content
    if content is None:
        return b""
    # Asking whether something is a model takes pydantic longer than writing a short text.
    if not isinstance(content, _NOT_A_MODEL) and isinstance(content, BaseModel):
        return content.__pydantic_serializer__.to_json(content, exclude_unset=True)
    try:
        # Most keys are text. Without the option for others, a long conversation is written a quarter faster.
        return orjson.dumps(content, default=_nested_model, option=_NUMPY)
    except TypeError:
        pass
    try:
        return orjson.dumps(content, default=_nested_model, option=JSON_OPTIONS)
    except TypeError:
        return _slowly(content, default=_nested_model)


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """The value as JSON for a report, compact or indented by two spaces."""
    try:
        return orjson.dumps(value, default=_plain, option=JSON_OPTIONS | (orjson.OPT_INDENT_2 if indent else 0))
    except orjson.JSONEncodeError:
        return _slowly(_finite(value), default=_plain, indent=2 if indent else None)


def _slowly(value: Any, *, indent: int | None = None, **options: Any) -> bytes:
    separators = None if indent else (",", ":")
    try:
        return json.dumps(value, indent=indent, separators=separators, **options).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _nested_model(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, orjson.Fragment):  # which only orjson itself writes
        return decode_exactly(orjson.dumps(value))
    raise TypeError(f"{type(value).__name__} can't be sent as JSON")


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "item"):  # a numpy number
        return value.item()
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- files of JSON lines ---------------------------------------------------------------------------------------------
Block = bytes | memoryview  # a view must begin where its buffer begins

_BLOCK: Final = 1 << 18  # bytes read at a time: small enough to stay in the processor's cache
_NEWLINE: Final = ord("\n")


def read_blocks(path: Path) -> Iterator[memoryview]:
    """The content of a file in blocks that end at the end of a line; the last block may lack its line feed.

    A block is valid until the next one is requested: all share one buffer, because copying costs more than reading.
    """
    buffer = bytearray(2 * _BLOCK)
    used = 0
    with open_raw_lines(path) as file:
        while read := file.readinto(memoryview(buffer)[used:]):
            used += read
            cut = buffer.rfind(b"\n", 0, used) + 1
            if cut:
                yield memoryview(buffer)[:cut]
                buffer[: used - cut] = buffer[cut:used]
                used -= cut
            elif used == len(buffer):  # the line is longer than the buffer
                # A new object: the old one cannot grow while somebody holds a view of it.
                buffer = buffer + bytes(len(buffer))
    if used:
        yield memoryview(buffer)[:used]


def line_ends(block: Block) -> list[int]:
    """Where each line of a block ends; an unfinished last line ends with the block."""
    content, size = _content(block), len(block)
    ends = []
    place = content.find(b"\n", 0, size)
    while place >= 0:
        ends.append(place)
        place = content.find(b"\n", place + 1, size)
    if size and (not ends or ends[-1] != size - 1):
        ends.append(size)
    return ends


def count_lines(block: Block) -> int:
    """The number of lines in a block, including an unfinished last one."""
    return _content(block).count(b"\n", 0, len(block)) + (len(block) > 0 and block[-1] != _NEWLINE)


def _content(block: Block) -> bytes | bytearray:
    """The buffer behind a block. A view has no search methods, and searching its buffer needs no copy."""
    return block if isinstance(block, bytes) else cast("bytes | bytearray", block.obj)


def is_text(block: Block) -> bool:
    """Whether a block is valid UTF-8."""
    try:
        str(block, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
