"""Machines that are not as they should be: a clock that jumps, no user namespaces, names that lead out of a folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.data.hub import FOLDER_VARIABLE
from nemo_gym.steps.steps_file import read_steps
from tests.conftest import MockModel

ROOT = Path(__file__).parent.parent
EXAMPLE = "resources_servers/example_single_tool_call"
CONFIGS = f"{EXAMPLE}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
# Before anything of ours is imported, so that every module gets the clock that jumps.
JUMPING = """
import itertools, sys, time
real, jumps = time.time, itertools.cycle([0, 86400, -86400, 3e8, -3e8])
time.time = lambda: real() + next(jumps)
from nemo_gym.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_that_jumps_changes_no_result(mock_model: MockModel, tmp_path: Path) -> None:
    mock_model.set(error_rate=0.1)
    output = tmp_path / "out.jsonl"
    policy = [f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    collect = ["ng_collect_rollouts", f"+config_paths=[{CONFIGS}]", *policy, f"+output_jsonl_fpath={output}"]
    asked = ["+agent_name=example_single_tool_call_simple_agent", f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl"]
    command = [
        sys.executable,
        "-c",
        JUMPING,
        *collect,
        *asked,
        "+num_repeats=8",
        "+rollout_timeout_s=60",
        "+steps=true",
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == len(rows) == 40
    failures = tmp_path / "out_failures.jsonl"
    for line in failures.read_text().splitlines() if failures.exists() else ():
        assert 0 <= json.loads(line)["_ng_duration_s"] < 600
    steps = list(read_steps(tmp_path / "out_steps.jsonl"))
    assert len(steps) >= 40
    assert all(0 <= attempt.duration < 600 for attempt in steps)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare command")
def test_where_user_namespaces_are_switched_off_the_sandbox_uses_what_there_is() -> None:
    program = (
        "import asyncio\n"
        "from nemo_gym.sandbox.runners import SandboxSettings, open_runner\n"
        "from nemo_gym.errors import ConfigError\n"
        "async def main():\n"
        "    try:\n"
        "        runner = await open_runner(SandboxSettings(isolation='namespaces'))\n"
        "    except ConfigError as error:\n"
        "        print('refused:', 'no sandbox works on this machine' in str(error))\n"
        "    runner = await open_runner(SandboxSettings())\n"
        "    print(runner.level, (await runner.run('print(6 * 7)')).stdout.decode().strip())\n"
        "    await runner.aclose()\n"
        "asyncio.run(main())\n"
    )
    shell = f'echo 0 > /proc/sys/user/max_user_namespaces && exec "{sys.executable}" -c "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount-proc", "--pid", "--fork", "--mount", "sh", "-c", shell]
    ran = subprocess.run([*command, "sh", program], cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare" in ran.stderr or "Permission denied" in ran.stderr or "Read-only" in ran.stderr:
        pytest.skip(f"this machine does not allow namespaces anyway: {ran.stderr.strip()}")
    assert ran.stdout.splitlines() == ["refused: True", "landlock 42"], ran.stderr


@pytest.mark.parametrize("name", ["../../escaped.jsonl", "a/../../escaped.jsonl", "/escaped.jsonl"])
def test_a_dataset_whose_file_names_lead_elsewhere_stays_in_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, target = tmp_path / "hub", tmp_path / "deep" / "down" / "target"
    (hub / "owner" / "data" / "a").mkdir(parents=True)
    place = Path(os.path.normpath(hub / "owner" / "data" / name.lstrip("/")))
    place.write_text("{}\n")
    monkeypatch.setenv(FOLDER_VARIABLE, str(hub))
    before = set(tmp_path.rglob("*.jsonl"))
    wanted = name if not name.startswith("/") else name.lstrip("/")
    arguments = ["+repo_id=owner/data", f"+artifact_fpath={wanted}", f"+output_dirpath={target}"]
    assert main(["ng_download_dataset_from_hf", *arguments]) == 0
    written = set(tmp_path.rglob("*.jsonl")) - before
    assert len(written) == 1
    assert all(target in path.parents for path in written)
