"""What holds for every test of the repository, those of the server folders included."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Tests start hundreds of processes. Without cached bytecode each of them, and every worker of pytest, would compile the
# whole program and its libraries again, which takes more time than most tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell without job control starts background commands with SIGINT ignored, and child processes inherit that. Tests
# that interrupt a process would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without looking for garbage, and never look through what they brought into memory.

    Thousands of tests and the libraries that they import stay until the end. The garbage collector would go through
    them again and again while they are loaded, and at every full collection afterwards.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
