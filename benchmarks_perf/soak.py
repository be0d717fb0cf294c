"""A long bad day: many rollouts, mixed faults, killed workers, an endpoint that is down, Ctrl-C and resume.

    python benchmarks_perf/soak.py [ROLLOUTS] [SECONDS_DOWN]

Collects 100,000 rollouts against the mock endpoint by default. While it runs, calls fail in six ways, worker
processes are killed, the endpoint is away twice for a minute, and the command is interrupted and resumed five times.
Afterwards every rollout has to be there exactly once and whole, no process may be left over, and the memory of the
collector must not have grown with what it saved. (The metrics at the end need a few columns of all rollouts at once.)
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

ROOT = Path(__file__).parent.parent
EXAMPLE = "resources_servers/example_single_tool_call"
CONFIGS = f"{EXAMPLE}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
FAULTS = {
    "MOCK_ERROR_RATE": "0.01",
    "MOCK_FAULTS": "cut:0.005,malformed:0.005,html:0.005,schema:0.005,error200:0.005",
    "MOCK_LATENCY": "20",
}
TASKS = 5  # of the example
MEMORY_GROWTH = 1.25  # the last third of the rollouts may need so much more than the first, which plans all of them
MEMORY_START_MB = 64  # a short soak is mostly the start of processes, which this much of growth allows for


@dataclass
class Soak:
    """What is to happen, as shares of the rollouts that are saved by then."""

    rollouts: int = 100_000
    down_s: float = 60.0
    interrupt_at: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    kill_at: tuple[float, ...] = (0.05, 0.2, 0.4, 0.6, 0.8)
    down_at: tuple[float, ...] = (0.35, 0.65)
    workers: int = 2
    memory: list[tuple[int, int]] = field(default_factory=list)  # rollouts saved, kilobytes of the collector

    def run(self, folder: Path) -> dict[str, int]:
        """Collect until everything is there; return what was found."""
        output, log, port = folder / "out.jsonl", folder / "log.txt", _free_port()
        mock, started, runs = _start_mock(port), time.monotonic(), 0
        plans = [list(self.interrupt_at), list(self.kill_at), list(self.down_at)]
        try:
            while True:
                collector = self._start(output, port, log, resume=runs > 0)
                runs += 1
                interrupted, before = False, len(self.memory)
                while collector.poll() is None:
                    time.sleep(0.05)
                    saved = _lines(output)
                    share = saved / self.rollouts
                    self.memory.append((saved, _memory_kb(collector.pid)))
                    if plans[1] and share >= plans[1][0] and (children := _children(collector.pid)):
                        plans[1].pop(0)
                        os.kill(children[0], signal.SIGKILL)
                    if plans[2] and share >= plans[2][0]:
                        plans[2].pop(0)
                        mock = self._outage(mock, port)
                    if not interrupted and plans[0] and share >= plans[0][0]:
                        plans[0].pop(0)
                        interrupted = True
                        collector.send_signal(signal.SIGINT)
                text = log.read_text(errors="replace")[-10_000:]
                used = [kb // 1024 for _, kb in self.memory[before:] if kb]
                sys.stderr.write(
                    f"run {runs}: exit code {collector.returncode}, {_lines(output)} saved, "
                    f"memory {used[len(used) // 2]} MB, at most {max(used)} MB\n"
                )
                if collector.returncode not in (130, 3):
                    break
                if runs > 3 * (1 + len(self.interrupt_at)):
                    raise RuntimeError(f"it does not come to an end:\n{text}")
        finally:
            mock.kill()
            mock.wait()
        if collector.returncode:
            raise RuntimeError(f"exit code {collector.returncode}:\n{text}")
        return self._found(output, runs, time.monotonic() - started)

    def _start(self, output: Path, port: int, log: Path, *, resume: bool) -> "subprocess.Popen[bytes]":
        command = [
            *(sys.executable, "-m", "nemo_gym.cli", "collect_rollouts", f"+config_paths=[{CONFIGS}]"),
            *(f"+policy_base_url=http://127.0.0.1:{port}/v1", "+policy_api_key=none", "+policy_model_name=mock"),
            *(f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl", f"+output_jsonl_fpath={output}"),
            *(f"+num_repeats={self.rollouts // TASKS}", f"+workers={self.workers}", "+num_samples_in_parallel=64"),
            *("++policy_model.responses_api_models.openai_model.max_retries=0", "+drain_timeout_s=5"),
            *(["+resume_from_cache=true"] if resume else []),
        ]
        # The faults are the endpoint's, not the rollouts': none of them may be given up because of bad luck.
        environment = {**os.environ, "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS": "50"}
        # A pipe that nobody reads would stop the collector once it is full.
        with log.open("wb") as file:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=file)

    def _outage(self, mock: "subprocess.Popen[bytes]", port: int) -> "subprocess.Popen[bytes]":
        mock.kill()
        mock.wait()
        time.sleep(self.down_s)
        return _start_mock(port)

    def _found(self, output: Path, runs: int, seconds: float) -> dict[str, int]:
        keys: Counter[tuple[int, int]] = Counter()
        torn = 0
        with output.open() as file:
            for line in file:
                record = json.loads(line)
                keys[record["_ng_task_index"], record["_ng_rollout_index"]] += 1
                torn += not isinstance(record.get("reward"), int | float) or not record["response"]["output"]
        early = [kb for saved, kb in self.memory if 0 < saved <= self.rollouts / 3]
        late = [kb for saved, kb in self.memory if 2 * self.rollouts / 3 < saved < self.rollouts]
        return {
            "rollouts": len(keys),
            "missing": self.rollouts - len(keys),
            "repeated": sum(count - 1 for count in keys.values()),
            "not_whole": torn,
            "left_over_processes": len(_processes_with(str(output))),
            "runs": runs,
            "failed_attempts": _lines(output.with_name("out_failures.jsonl")),
            "memory_mb_first_third": max(early, default=0) // 1024,
            "memory_mb_last_third": max(late, default=0) // 1024,
            "memory_mb_with_metrics": max(kb for _, kb in self.memory) // 1024,
            "seconds": round(seconds),
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start_mock(port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(ROOT / "benchmarks_perf" / "mock_model.py")]
    process = subprocess.Popen(command, env={**os.environ, **FAULTS, "MOCK_PORT": str(port)}, stdout=subprocess.DEVNULL)
    _wait_until(lambda: _replies(port))
    return process


def _replies(port: int) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/stats", timeout=1):
            return True
    except OSError:
        return False


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise RuntimeError("the mock endpoint does not start")


class _Counted:
    """How many lines a growing file has, reading only what is new."""

    def __init__(self) -> None:
        self.position = self.lines = 0


_counted: dict[Path, _Counted] = {}


def _lines(path: Path) -> int:
    known = _counted.setdefault(path, _Counted())
    if path.exists():
        with path.open("rb") as file:
            file.seek(known.position)
            while block := file.read(1 << 20):
                known.lines += block.count(b"\n")
                known.position += len(block)
    return known.lines


def _memory_kb(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), 0)


def _processes_with(argument: str) -> list[int]:
    """Processes whose command line names something."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def _children(process: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def is_good(found: Mapping[str, int]) -> bool:
    """Whether nothing was lost, repeated, damaged or left over, and the memory stayed flat."""
    wrong = ("missing", "repeated", "not_whole", "left_over_processes")
    most = max(found["memory_mb_first_third"] * MEMORY_GROWTH, found["memory_mb_first_third"] + MEMORY_START_MB)
    return not any(found[name] for name in wrong) and found["memory_mb_last_third"] <= most


def main() -> None:
    """Run the soak and print what was found."""
    rollouts = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    down_s = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with tempfile.TemporaryDirectory() as folder:
        found = Soak(rollouts=rollouts, down_s=down_s).run(Path(folder))
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    sys.exit(0 if is_good(found) else 1)


if __name__ == "__main__":
    main()
