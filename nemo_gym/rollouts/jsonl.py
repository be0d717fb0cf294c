"""One JSON value per line: how lines are read and written.

Lines are written compactly, in UTF-8, with ``\\n`` at the end and never inside. Reading is more tolerant than writing:
whatever Python's own reader accepts (``NaN``, lone surrogates) is accepted here.
"""

import json
from typing import Any

import orjson


def encode(value: Any) -> bytes:
    """The line for a value, without its end."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits and lone surrogates
        return json.dumps(value, separators=(",", ":")).encode()


def decode(line: bytes | str) -> Any:
    """The value on a line. Raises ``ValueError`` if there is none."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)
