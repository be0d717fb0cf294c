"""One pool for all tests: starting the package is what takes time."""

import asyncio
import importlib.util
from collections.abc import Iterator

import pytest

from nemo_gym.process_pool import ProcessPool


@pytest.fixture(scope="session")
def scorers() -> Iterator[ProcessPool]:
    if importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("pip install 'rollout-gym[environments]'")
    pool = ProcessPool("resources_servers.reasoning_gym.scoring:score", size=1, time_limit_s=2.0)
    yield pool
    asyncio.run(pool.close())
