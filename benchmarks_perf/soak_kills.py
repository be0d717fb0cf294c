"""Kills servers at random while rollouts are collected, wherever servers can run.

    python benchmarks_perf/soak_kills.py [ROLLOUTS] [KILLS] [SEED]

Collects 10,000 rollouts with 50 kills by default, a third each beside the command, with worker processes, and through
``ng_run``. The environment keeps a number for each session in a process of its own, and the model server has two
workers. A victim is any process below the command or ``ng_run``: a server, one of its workers, a worker process or one
of its servers. Afterwards every rollout has to be there exactly once, with the reward that it gets only if its session
was not lost on the way; no attempt may have been used up, and no process may be left.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parent))
import soak

ENVIRONMENT = "resources_servers/example_session_state_mgmt"
CONFIGS = (
    f"{ENVIRONMENT}/configs/example_session_state_mgmt.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
)
COUNTER = "++example_session_state_mgmt_resources_server.resources_servers.example_session_state_mgmt"
MODEL = "++policy_model.responses_api_models.openai_model"
TASKS = 10
PLACES = ("beside", "workers", "ng_run")
WRONG = ("missing", "repeated", "wrong_rewards", "used_up_attempts", "kills_left", "left_over_processes")


@dataclass
class Kills:
    """How many rollouts in each place, and how many kills among them."""

    rollouts: int
    kills: int
    seed: int = 0
    parallel: int = 32
    places: tuple[str, ...] = PLACES
    seen: set[tuple[int, str]] = field(default_factory=set)  # processes: their ids, and when each began

    def run(self, folder: Path) -> dict[str, dict[str, int]]:
        """Collect in each place; return what was found."""
        port, chance = soak._free_port(), random.Random(self.seed)
        mock = subprocess.Popen(
            [sys.executable, str(soak.ROOT / "benchmarks_perf" / "mock_model.py")],
            env={**os.environ, "MOCK_PORT": str(port), "MOCK_LATENCY": "20"},
            stdout=subprocess.DEVNULL,
        )
        soak._wait_until(lambda: soak._replies(port))
        try:
            return {place: self._collect(place, folder / place, port, chance) for place in self.places}
        finally:
            mock.kill()
            mock.wait()

    def _collect(self, place: str, folder: Path, port: int, chance: random.Random) -> dict[str, int]:
        folder.mkdir()
        output, log, head = folder / "out.jsonl", folder / "log.txt", soak._free_port()
        tasks, began = folder / "tasks.jsonl", time.monotonic()
        tasks.write_text("".join(json.dumps(task(number)) + "\n" for number in range(TASKS)))
        gym = [
            *(f"+config_paths=[{CONFIGS}]", f"+policy_base_url=http://127.0.0.1:{port}/v1", "+policy_api_key=none"),
            *("+policy_model_name=mock", f"{COUNTER}.isolation=process", f"{MODEL}.num_workers=2"),
        ]
        at_head = f"+head_server={{host: 127.0.0.1, port: {head}}}"
        wanted = [
            *("+agent_name=example_session_state_mgmt_simple_agent", f"+input_jsonl_fpath={tasks}"),
            *(f"+output_jsonl_fpath={output}", f"+num_repeats={self.rollouts // TASKS}"),
            f"+num_samples_in_parallel={self.parallel}",
            *([at_head] if place == "ng_run" else gym),
            *(["+workers=2"] if place == "workers" else []),
        ]
        with log.open("wb") as file, _served([*gym, at_head], file, place) as served:
            collector = _start("collect_rollouts", wanted, file)
            killed = self._kill(collector, served or collector, output, chance)
        if collector.returncode:
            raise RuntimeError(f"{place}: exit code {collector.returncode}:\n{log.read_text(errors='replace')[-8000:]}")
        found = self._found(output)
        return {**found, "kills": killed, "kills_left": self.kills - killed, "seconds": round(time.monotonic() - began)}

    def _kill(
        self,
        collector: "subprocess.Popen[bytes]",
        host: "subprocess.Popen[bytes]",
        output: Path,
        chance: random.Random,
    ) -> int:
        """Kill processes at random until the collection ends; returns how many."""
        moments = sorted(chance.uniform(0.01, 0.9) * self.rollouts for _ in range(self.kills))
        killed = 0
        while collector.poll() is None:
            time.sleep(0.02)
            victims = [pid for pid in _below(host.pid) if "multiprocessing" not in _command(pid)]
            self.seen |= {(pid, began) for pid in victims if (began := _began(pid))}
            if victims and killed < len(moments) and soak._lines(output) >= moments[killed]:
                killed += 1
                try:
                    os.kill(chance.choice(victims), signal.SIGKILL)
                except ProcessLookupError:  # it ended at this moment by itself
                    killed -= 1
        return killed

    def _found(self, output: Path) -> dict[str, int]:
        keys: Counter[tuple[int, int]] = Counter()
        wrong = used_up = 0
        for record in map(json.loads, output.read_text().splitlines()):
            keys[record["_ng_task_index"], record["_ng_rollout_index"]] += 1
            wrong += record["reward"] != 1.0
        failures = output.with_name("out_failures.jsonl")
        classes = Counter(
            (record["_ng_failure_class"], bool(record.get("_ng_owed")))
            for record in map(json.loads, failures.read_text().splitlines() if failures.exists() else ())
        )
        used_up = sum(number for (_, owed), number in classes.items() if not owed)
        sys.stderr.write(f"{output.parent.name}: {dict(classes)}\n")
        return {
            "rollouts": len(keys),
            "missing": self.rollouts - len(keys),
            "repeated": sum(count - 1 for count in keys.values()),
            "wrong_rewards": wrong,
            "used_up_attempts": used_up,
            "hit_attempts": sum(classes.values()),
            "left_over_processes": self._left_over(),
        }

    def _left_over(self) -> int:
        for _ in range(50):  # a process whose parent was killed has five seconds to end
            if not (left := sum(_began(pid) == began for pid, began in self.seen)):
                break
            time.sleep(0.1)
        return left


def task(number: int) -> dict[str, object]:
    """A task that gets its reward only if the server still knows the number that it started with."""
    row = json.loads((soak.ROOT / ENVIRONMENT / "data" / "example.jsonl").read_text().splitlines()[0])
    return {**row, "initial_count": 1 + number, "expected_count": 1 + number}


def _start(command: str, arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "nemo_gym.cli", command, *arguments],
        cwd=soak.ROOT,
        stdout=log,
        stderr=log,
    )


@contextmanager
def _served(arguments: list[str], log: IO[bytes], place: str) -> "Iterator[subprocess.Popen[bytes] | None]":
    """The servers of ``ng_run``, if the collection is to use them."""
    if place != "ng_run":
        yield None
        return
    host = _start("run", arguments, log)
    try:
        soak._wait_until(lambda: "ready!" in Path(log.name).read_text(errors="replace"))
        yield host
    finally:
        host.send_signal(signal.SIGINT)
        host.wait()


def _below(process: int) -> list[int]:
    """All processes below one."""
    found = []
    for child in _children(process):
        found += [child, *_below(child)]
    return found


def _children(process: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return [int(pid) for each in tasks for pid in (each / "children").read_text().split()]
    except OSError:
        return []


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _began(process: int) -> str:
    """When a process began; empty if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def is_good(found: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether everything completed once, with the right reward, and nothing was used up or left over."""
    return not any(each[name] for each in found.values() for name in WRONG)


def main() -> None:
    """Run all places and print what was found."""
    rollouts, kills, seed = map(int, [*sys.argv[1:], *("10000", "50", "0")[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        found = Kills(rollouts // len(PLACES) // TASKS * TASKS, -(-kills // len(PLACES)), seed).run(Path(folder))
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    sys.exit(0 if is_good(found) else 1)


if __name__ == "__main__":
    main()
