"""The quick look at a rollout file, as a script."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "print_aggregate_results.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_averages_are_over_all_rollouts_of_an_agent(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(
        '{"agent_ref": {"name": "a"}, "reward": 1, "_ng_task_index": 3, "_x": 9}\n\n'
        '{"agent_ref": {"name": "a"}, "reward": NaN, "n": 2}\n{"reward": true}\n'
    )
    done = run(f"+jsonl_fpath={path}")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "a: 2 rollouts"
    assert json.dumps({"reward": 0.5, "n": 1.0}, indent=4) in done.stdout
    assert "(no agent): 1 rollouts" in done.stdout


def test_mistakes_are_explained(tmp_path: Path) -> None:
    assert "usage:" in run().stderr
    missing = run(f"+jsonl_fpath={tmp_path / 'none.jsonl'}")
    assert (missing.returncode, "none.jsonl: no such file" in missing.stderr) == (1, True)
    (tmp_path / "bad.jsonl").write_text("{\n")
    assert "bad.jsonl:1: not JSON" in run(f"++jsonl_fpath={tmp_path / 'bad.jsonl'}").stderr
