"""Makes one plan of an old and a new one: more rows, more repeats, or fewer.

The new plan is what is wanted; of the old one only what is already collected is kept. Where both have a key, both must
have the same row, for otherwise a rollout on disk would be the answer to another question.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.jsonl import decode
from nemo_gym.rollouts.keyed import encode_keyed, key_in
from nemo_gym.rollouts.plan import Row
from nemo_gym.rollouts.store.agenda import PlanWriter
from nemo_gym.rollouts.store.history import History, packed
from nemo_gym.rollouts.store.repair import read_lines
from nemo_gym.schemas.rows import RolloutKey

SHOWN = 5


class PlanConflictError(ConfigError):
    """Two plans that can't be joined."""


def write_extended(old: Path, writer: PlanWriter, rows: Iterable[Row], history: History) -> None:
    """Write the new rows, then those old ones that are collected and not among them."""
    before = _digests(old, history)
    changed: list[RolloutKey] = []
    for row in rows:
        key = key_in(row)
        if key is None:
            continue
        line = encode_keyed(key, row) + b"\n"
        if before.pop(packed(key), None) not in (None, _digest(line)):
            changed.append(key)
        writer.write_line(line)
    if changed:
        raise _conflict(changed)
    for key, line in _rows_of(old):
        if packed(key) in before:
            writer.write_line(line)


def _digests(path: Path, history: History) -> dict[int, bytes]:
    """A digest of each old row that is collected; others may change without harm."""
    return {packed(key): _digest(line) for key, line in _rows_of(path) if packed(key) in history.done}


def _rows_of(path: Path) -> Iterable[tuple[RolloutKey, bytes]]:
    for line in read_lines(path):
        try:
            row = decode(line.text)
        except ValueError:
            continue
        if key := key_in(row):
            yield key, encode_keyed(key, row) + b"\n"


def _digest(line: bytes) -> bytes:
    return sha256(line).digest()[:8]


def _conflict(keys: list[RolloutKey]) -> PlanConflictError:
    some = ", ".join(f"task {key.task} rollout {key.rollout}" for key in keys[:SHOWN])
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return PlanConflictError(
        f"the new plan has other rows for {some}{more}, which are already collected",
        hint="a plan can be extended by rows at the end of the input and by repeats; for anything else collect to "
        "another output, or keep the old plan with +resume_mode=force",
    )
