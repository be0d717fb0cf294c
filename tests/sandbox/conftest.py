"""Sandboxes that tests share: one for each level that this machine can do."""

import asyncio
from collections.abc import Iterator
from functools import cache

import pytest

from nemo_gym.sandbox.interface import SandboxCreateError
from nemo_gym.sandbox.jail import Jail

LEVELS = ("namespaces", "landlock")


@cache
def unable(level: str) -> str | None:
    """Why this machine can't do a level."""
    jail = Jail(level)
    try:
        asyncio.run(jail.start())
    except SandboxCreateError as error:
        return str(error)
    finally:
        asyncio.run(jail.aclose())
    return None


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    if problem := unable(request.param):
        pytest.skip(problem)
    return str(request.param)


@pytest.fixture(scope="module")
def jail(level: str) -> Iterator[Jail]:
    jail = Jail(level)
    yield jail
    asyncio.run(jail.aclose())
