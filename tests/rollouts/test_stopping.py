"""Ctrl-C twice ends the process within seconds, whatever the code of an environment does."""

import json
import signal
from pathlib import Path

from tests.forked_commands import ForkedCommands

HOST = Path(__file__).parent / "stuck_host.py"
WAYS = ("blocks the loop", "spins", "matches for ever", "swallows cancellation", "hangs in a thread")


def test_two_signals_always_end_the_process_and_what_was_saved_is_intact(
    commands: ForkedCommands, tmp_path: Path
) -> None:
    outputs = {way: tmp_path / f"{way.replace(' ', '_')}.jsonl" for way in WAYS}
    hosts = {way: commands.start("python", str(HOST), way, str(outputs[way])) for way in WAYS}
    try:
        for said in ("stuck", "waiting for those that run"):
            for host in hosts.values():
                # Also between the signals: two that wait for a busy process are one.
                host.read_until(said)
            for host in hosts.values():
                host.signal(signal.SIGINT)
        ended = {way: host.wait() for way, host in hosts.items()}
    finally:
        for host in hosts.values():
            host.kill()
    for way, ran in ended.items():
        # Code that never gives up the interpreter's lock leaves only the clock that needs none, which exits with 1.
        assert ran.code in ((1, 130) if way == "matches for ever" else (130,)), (way, ran.err)
        assert ran.err.index("waiting for those that run") < ran.err.index("stopping now")
        assert [json.loads(line)["_ng_task_index"] for line in outputs[way].read_text().splitlines()] == [0, 1, 2]
