"""Ports for servers that start later.

A port that the system hands out and that is closed again belongs to nobody: until the server listens, the system may
give it to a connection of any test beside this one, or a program under test may choose it. The system takes ports from
32768 upwards and our programs take them below 20000, so the ones here lie between. Every process that runs tests claims
a range of its own.
"""

import functools
import itertools
import random
import socket
from collections.abc import Iterator
from typing import Final

RANGES: Final = range(20_001, 32_000, 500)


@functools.cache
def _claimed_range() -> Iterator[int]:
    """The ports of a range whose first one this process holds as long as it lives, over and over."""
    for first in random.SystemRandom().sample(RANGES, len(RANGES)):
        with socket.socket() as claim:
            try:
                claim.bind(("127.0.0.1", first))
            except OSError:
                continue  # another process runs tests with these ports
            claim.detach()
            return itertools.cycle(range(first + 1, first + RANGES.step))
    raise OSError(f"{len(RANGES)} processes run tests already")


def free_port() -> int:
    """A port of this machine that nobody listens on; the next one is another."""
    for port in itertools.islice(_claimed_range(), RANGES.step):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("all ports of this process are in use")
