"""What a world starts from, as the host describes it, and what the fork server hands back once it exists."""

import socket
from dataclasses import dataclass
from typing import Final

from nemo_gym.sandbox.inside.world_supervisor import WorldBox

# What the host writes to the fork server: a new box or world, without or with a network namespace of its own.
PLAIN: Final = b"+"
WITH_NETWORK: Final = b"n"


@dataclass(frozen=True, slots=True)
class WorldStart:
    """How a world begins. ``archives`` are descriptors of archives that are unpacked into it, one over the other."""

    workdir: str
    root: str | None = None
    user: int = 1000
    loopback: bool = False
    port: int | None = None
    archives: tuple[int, ...] | list[int] = ()


@dataclass(frozen=True, slots=True)
class StartedWorld:
    """A world that exists, and the socket that listens on its port."""

    box: WorldBox
    workdir: str
    listener: socket.socket | None = None
