"""Ports for servers that start later.

A port that the system hands out and that is closed again belongs to nobody: until the server listens, the system may
give it to a connection of any test beside this one. It takes those from 32768 upwards, so the ones here are lower, and
every worker of pytest has a range of its own.
"""

import itertools
import os
import socket
from typing import Final

FIRST: Final = 13_000  # above the default of the head server
RANGES: Final = 19
RANGE: Final = 1_000

_numbers = itertools.cycle(range(RANGE))


def free_port() -> int:
    """A port of this machine that nobody listens on; the next one is another."""
    start = FIRST + os.getpid() % RANGES * RANGE
    for number in itertools.islice(_numbers, RANGE):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", start + number))
            except OSError:
                continue
            return start + number
    raise OSError(f"all ports from {start} to {start + RANGE - 1} are in use")
