"""Lines that begin and end with their key: how the plan and the rollouts are written.

    {"_ng_task_index":12, … ,"_ng_rollout_index":3}

The task index comes first and the rollout index last, so the key of a line can be read without parsing what lies
between, however long that is. A line that was cut off lacks its end (at least the line feed), a line glued to the
remains of another has two beginnings, a hole that a power failure left is full of zero bytes: whenever a line does not
look exactly as it was written, it is parsed, and only what parses has a key. The order of keys means nothing to any
other reader.
"""

import re
from collections.abc import Mapping
from typing import Any

from nemo_gym.io.json import decode, encode
from nemo_gym.schemas.rows import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, RolloutKey

_HEAD = f'{{"{TASK_INDEX_KEY_NAME}":'.encode()
_TAIL = f',"{ROLLOUT_INDEX_KEY_NAME}":'.encode()
_FIRST = re.compile(re.escape(_HEAD) + rb"(\d{1,18}),")
_LAST = re.compile(re.escape(_TAIL) + rb"(\d{1,9})\}\n\Z")
_TAIL_BYTES = len(_TAIL) + 11


def encode_keyed(key: RolloutKey, fields: Mapping[str, Any]) -> bytes:
    """The line for a record, without its end; the key replaces whatever the fields say about it."""
    record = {TASK_INDEX_KEY_NAME: key.task, **fields}
    record[TASK_INDEX_KEY_NAME] = key.task
    record.pop(ROLLOUT_INDEX_KEY_NAME, None)
    record[ROLLOUT_INDEX_KEY_NAME] = key.rollout
    return encode(record)


def key_of(line: bytes) -> RolloutKey | None:
    """The key of a line, or None if the line is not a record with a key."""
    first, last = _FIRST.match(line), _LAST.search(line, max(0, len(line) - _TAIL_BYTES))
    if first and last and line.rfind(_HEAD) == 0 and b"\0" not in line:
        return RolloutKey(int(first[1]), int(last[1]))
    try:
        return RolloutKey.of(decode(line))
    except ValueError:
        return None


def sort_key(record: Any) -> tuple[int, int]:
    """For sorting records by key; those without one come first."""
    return RolloutKey.of(record) or (-1, -1)
