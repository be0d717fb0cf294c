"""Fixtures of several files."""

import asyncio

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import SandboxSettings, open_runner


@pytest.fixture(scope="module")
def namespaces() -> None:
    async def check() -> None:
        runner = await open_runner(SandboxSettings(isolation="namespaces"))
        await runner.aclose()

    try:
        asyncio.run(check())
    except ConfigError as error:
        pytest.skip(f"no namespaces here: {error}")
