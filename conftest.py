"""What holds for every test of the repository, those of the server folders included."""

import signal

from hypothesis import HealthCheck, settings

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell without job control starts background commands with SIGINT ignored, and child processes inherit that. Tests
# that interrupt a process would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
