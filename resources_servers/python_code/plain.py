"""Messages between the judge and the solution's process, each with its length before it.

The judge sends pickles, because tests may pass anything. The solution's process sends JSON: lists and plain values as
they are, every other value as an object of one type and its parts. The judge makes the values from these parts with a
closed set of constructors, so no object and no class of the solution takes part in a comparison, and nothing that it
sends can change a class of the judge.
"""

import io
import json
import os
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

LENGTH = 8
# Beyond this, JSON would be read as decimal digits in quadratic time.
BIG = 2**63
# What a subclass is sent as: a tuple with names as a tuple, a default dictionary as a dictionary.
BASES: tuple[type[Any], ...] = (bool, tuple, list, dict, set, frozenset, str, bytes, int, float)


class Failed(Exception):  # noqa: N818 - not an error of ours
    """A test that the solution does not pass."""


def encode(value: Any) -> Any:
    """A value as JSON. Raises ``TypeError`` for a value that is not plain."""
    kind = type(value)
    if value is None or kind in (bool, str, float) or (kind is int and -BIG < value < BIG):
        return value
    if kind is list:
        return [encode(item) for item in value]
    if kind in PARTS:
        return {kind.__name__: PARTS[kind](value)}
    for base in BASES:
        if isinstance(value, base):
            return encode(base(value))
    raise TypeError(f"returns a {kind.__name__}, which is not a plain value")


def decode(value: Any) -> Any:
    """The value that some JSON describes."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        ((name, parts),) = value.items()
        return CONSTRUCTORS[name](parts)
    return value


def _items(value: Any) -> list[Any]:
    return [encode(item) for item in value]


def _pairs(value: Any) -> list[Any]:
    return [[encode(key), encode(item)] for key, item in value.items()]


def _clock(value: Any) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, encode(value.tzinfo), value.fold]


def _day(value: Any) -> list[int]:
    return [value.year, value.month, value.day]


def _zone(value: timezone) -> list[Any]:
    return [encode(value.utcoffset(None)), value.tzname(None)]


# How each type is taken apart, in the solution's process.
PARTS: dict[type[Any], Callable[[Any], Any]] = {
    int: hex,
    tuple: _items,
    set: _items,
    frozenset: _items,
    deque: _items,
    dict: _pairs,
    OrderedDict: _pairs,
    Counter: _pairs,
    bytes: bytes.hex,
    bytearray: bytearray.hex,
    complex: lambda value: [value.real, value.imag],
    range: lambda value: [encode(each) for each in (value.start, value.stop, value.step)],
    slice: lambda value: [encode(each) for each in (value.start, value.stop, value.step)],
    Decimal: str,
    Fraction: lambda value: [encode(value.numerator), encode(value.denominator)],
    date: _day,
    time: _clock,
    datetime: lambda value: [*_day(value), *_clock(value)],
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    timezone: _zone,
}


def _read_items(parts: Any) -> list[Any]:
    return [decode(part) for part in _listed(parts)]


def _read_pairs(parts: Any) -> dict[Any, Any]:
    return {decode(key): decode(item) for key, item in _listed(parts)}


def _read_clock(parts: Any) -> time:
    hour, minute, second, microsecond, zone, fold = _listed(parts)
    return time(hour, minute, second, microsecond, tzinfo=decode(zone), fold=fold)


def _read_moment(parts: Any) -> datetime:
    year, month, day, *clock = _listed(parts)
    return datetime.combine(date(year, month, day), _read_clock(clock))


def _listed(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise TypeError("not a list of parts")
    return parts


# How the judge makes each type.
CONSTRUCTORS: dict[str, Callable[[Any], Any]] = {
    "int": lambda parts: int(parts, 16),
    "tuple": lambda parts: tuple(_read_items(parts)),
    "set": lambda parts: set(_read_items(parts)),
    "frozenset": lambda parts: frozenset(_read_items(parts)),
    "deque": lambda parts: deque(_read_items(parts)),
    "dict": _read_pairs,
    "OrderedDict": lambda parts: OrderedDict(_read_pairs(parts)),
    "Counter": lambda parts: Counter(_read_pairs(parts)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*_listed(parts)),
    "range": lambda parts: range(*_read_items(parts)),
    "slice": lambda parts: slice(*_read_items(parts)),
    "Decimal": lambda parts: Decimal(str(parts)),
    "Fraction": lambda parts: Fraction(*_read_items(parts)),
    "date": lambda parts: date(*_listed(parts)),
    "time": _read_clock,
    "datetime": _read_moment,
    "timedelta": lambda parts: timedelta(*_listed(parts)),
    "timezone": lambda parts: timezone(*_read_items(parts)),
}


def send_plain(descriptor: int, *message: Any) -> None:
    """Write a message of plain values."""
    _write(descriptor, json.dumps(encode(list(message))).encode())


def receive_plain(descriptor: int) -> list[Any]:
    """Read a message of plain values, whoever wrote it."""
    data = _read_message(descriptor)
    try:
        return _read_items(json.loads(data))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Failed(f"gives an answer that can't be read: {error}") from None


def send_anything(descriptor: int, message: Any) -> None:
    """Write a message of the judge."""
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=5).dump(message)
    _write(descriptor, buffer.getvalue())


def receive_anything(descriptor: int) -> Any:
    """Read a message of the judge, whom the solution's process trusts."""
    return pickle.loads(_read_message(descriptor))


def _write(descriptor: int, content: bytes) -> None:
    data = memoryview(len(content).to_bytes(LENGTH, "little") + content)
    while data:
        data = data[os.write(descriptor, data) :]


def _read_message(descriptor: int) -> bytes:
    return _read(descriptor, int.from_bytes(_read(descriptor, LENGTH), "little"))


def _read(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(descriptor, min(size - len(data), 1 << 20))
        if not piece:
            raise Failed("ends the process")
        data += piece
    return bytes(data)
