"""What the collector and its workers say to each other: frames of a JSON head and raw bytes, over a socket.

    ┌──────────────┬──────────────┬───────────┬───────────┐
    │ head: 4 bytes│ body: 4 bytes│ head      │ body      │
    └──────────────┴──────────────┴───────────┴───────────┘

The body is a line on its way from or to a file; nobody in between takes it apart.
"""

import asyncio
import struct
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from nemo_gym.rollouts.jsonl import decode, encode
from nemo_gym.rollouts.outcome import Completed, Failed, Failure, Outcome, Vanished
from nemo_gym.rollouts.planned import Planned
from nemo_gym.schemas.rows import RolloutKey

LENGTHS = struct.Struct("<II")


class Frame(NamedTuple):
    """One message."""

    head: dict[str, Any]
    body: bytes = b""

    def encode(self) -> bytes:
        """The bytes of the message."""
        head = orjson.dumps(self.head)
        return LENGTHS.pack(len(head), len(self.body)) + head + self.body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next message, or None when the other side is gone."""
    try:
        head, body = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
        data = await reader.readexactly(head + body)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Frame(orjson.loads(data[:head]), data[head:])


def encode_planned(number: int, planned: Planned) -> bytes:
    """A rollout to run."""
    head = {
        "number": number,
        "key": list(planned.key),
        "agent": planned.agent,
        "attempt": planned.attempt,
        "last_attempt": planned.last_attempt,
    }
    return Frame(head, encode(planned.row)).encode()


def decode_planned(frame: Frame) -> Planned:
    """The rollout that a frame asks for."""
    head = frame.head
    return Planned(RolloutKey(*head["key"]), head["agent"], decode(frame.body), head["attempt"], head["last_attempt"])


def encode_outcome(number: int, outcome: Outcome) -> bytes:
    """How a rollout ended."""
    head: dict[str, Any] = {"number": number, "kind": type(outcome).__name__, "seconds": outcome.seconds}
    match outcome:
        case Completed(reward=reward):
            head["reward"] = reward
        case Failed(failure=failure):
            head["failure"] = asdict(failure)
        case Vanished(kind=kind):
            head["class"] = kind
    return Frame(head, outcome.line).encode()


def decode_outcome(frame: Frame, planned: Planned) -> Outcome:
    """The outcome that a frame tells of."""
    head, line = frame.head, frame.body
    match head["kind"]:
        case "Completed":
            return Completed(planned, line, head["seconds"], head["reward"])
        case "Failed":
            return Failed(planned, line, head["seconds"], Failure(**head["failure"]))
        case _:
            return Vanished(planned, line, head["seconds"], head["class"])
