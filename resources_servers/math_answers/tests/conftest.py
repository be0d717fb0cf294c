"""One pool for all tests: starting the library is what takes time."""

import asyncio
import importlib.util
from collections.abc import Iterator

import pytest

from nemo_gym.process_pool import ProcessPool


@pytest.fixture(scope="session")
def library() -> Iterator[ProcessPool]:
    if importlib.util.find_spec("math_verify") is None:
        pytest.skip("pip install 'rollout-gym[environments]'")
    pool = ProcessPool("resources_servers.math_answers.symbolic:equivalent", size=1, time_limit_s=1.0)
    yield pool
    asyncio.run(pool.close())
