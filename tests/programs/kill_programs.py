"""Kills collectors, the keepers of programs, and programs at random moments: nothing may be lost, twice or left behind.

python tests/programs/kill_programs.py [kills]
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
from pathlib import Path

from nemo_gym.programs.attempt_folder import AttemptFolders
from nemo_gym.programs.keeper import MODULE
from tests.programs.scripted_endpoint import scripted_endpoint

ROOT = Path(__file__).parents[2]
TASKS = 200
ENVIRONMENT = f"""
import nemo_gym

environment = nemo_gym.Environment(tasks=[{{"prompt": f"Write hello into hello.txt ({{n}})"}} for n in range({TASKS})])


@environment.verify
def verify(task, response):
    return float(task.get("workspace", {{}}).get("files", {{}}).get("hello.txt", "").strip() == "hello")
"""


def command_lines() -> dict[int, str]:
    """The running processes of this machine."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def below(parent: int) -> set[int]:
    """The descendants of a process."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {parent}
    while more := {pid for pid, above in parents.items() if above in found} - found:
        found |= more
    return found - {parent}


def kill_one(collector: int, chance: random.Random) -> str:
    """Kill something of a collection."""
    kind, lines, mine = chance.choice(["collector", "keeper", "program"]), command_lines(), below(collector)
    keepers = [pid for pid in mine if MODULE in lines.get(pid, "")]
    programs = [pid for pid in mine if "agent.py" in lines.get(pid, "")]
    chosen = {"collector": [collector], "keeper": keepers, "program": programs}[kind]
    if not chosen:
        return ""
    try:
        os.kill(chance.choice(chosen), signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return kind


def main(kills: int) -> int:
    chance, done = random.Random(7), Counter[str]()
    with tempfile.TemporaryDirectory() as name, scripted_endpoint() as endpoint:
        folder = Path(name)
        base = folder / AttemptFolders().base.name  # of collectors with this folder for temporary files
        (folder / "environment.py").write_text(ENVIRONMENT)
        output = folder / "rollouts.jsonl"
        agent = str(ROOT / "examples/shell_agent.yaml")
        while True:
            started = [sys.executable, "-m", "nemo_gym.cli", "eval", "run", str(folder / "environment.py")]
            options = ["--agent", agent, "--model", "openai:scripted", "--model-url", endpoint.url]
            more = [f"+output_jsonl_fpath={output}", "+resume_from_cache=true", "+num_samples_in_parallel=4"]
            process = subprocess.Popen(
                [*started, *options, "--model-api-key", "none", *more],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS": "50", "TMPDIR": name},
            )  # fmt: skip
            while process.poll() is None:
                time.sleep(chance.uniform(0.2, 2.5))
                if sum(done.values()) < kills and process.poll() is None and (kind := kill_one(process.pid, chance)):
                    done[kind] += 1
            if process.returncode == 0:
                break
        rows = Counter(json.loads(line)["_ng_task_index"] for line in output.read_text().splitlines())
        rewards = {json.loads(line)["reward"] for line in output.read_text().splitlines()}
        time.sleep(2)
        processes = [line for line in command_lines().values() if str(base) in line]
        left = [path.name for path in base.iterdir()] if base.is_dir() else []
    print(  # noqa: T201
        f"killed {dict(done)}: {len(rows)} of {TASKS} tasks, {sum(rows.values())} rows, rewards {rewards}, "
        f"{len(processes)} processes and {len(left)} folders left"
    )
    is_clean = len(rows) == sum(rows.values()) == TASKS and not processes and not left
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
