"""Sandboxes that tests share: one for each level that this machine can do."""

import asyncio
from collections.abc import Iterator

import pytest

from nemo_gym.sandbox.jail import Jail
from tests.sandbox.kernel_features import kernel_supports

LEVELS = ("namespaces", "landlock")


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    if not kernel_supports(request.param):
        pytest.skip(f"the kernel of this machine does not offer {request.param}")
    return str(request.param)


@pytest.fixture(scope="module")
def jail(level: str) -> Iterator[Jail]:
    jail = Jail(level)
    yield jail
    asyncio.run(jail.aclose())
