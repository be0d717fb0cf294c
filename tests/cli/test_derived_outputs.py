"""Commands that make a file from rollouts: what was collected, and what is not a file, is never replaced."""

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "export": ("ng_export", "+input=run.jsonl", "+format=sft", "+overwrite=true", "+output={}"),
    "profile": (
        "ng_reward_profile",
        "+rollouts_jsonl_fpath=run.jsonl",
        "+input_jsonl_fpath=tasks.jsonl",
        "+output_jsonl_fpath={}",
    ),
    "prompts": (
        "ng_materialize_prompts",
        "+input_jsonl_fpath=questions.jsonl",
        "+prompt_config=prompt.yaml",
        "+output_jsonl_fpath={}",
    ),
    "page": ("ng_viewer", "+jsonl_fpath=run.jsonl", "+export_html={}"),
}
INPUT = {"export": "run.jsonl", "profile": "tasks.jsonl", "prompts": "questions.jsonl", "page": "run.jsonl"}


def rollout(task: int) -> str:
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}]
    fields = {"responses_create_params": {"input": "?"}, "response": {"output": said, "model": "m"}, "reward": 1.0}
    return json.dumps({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}} | fields) + "\n"


@pytest.fixture(autouse=True)
def files(workspace: Path) -> None:
    for name in ("run", "other"):
        Path(f"{name}.jsonl").write_text("".join(map(rollout, range(3))))
        Path(f"{name}_manifest.json").write_text(json.dumps({"settings": {}, "output": f"{name}.jsonl"}))
        Path(f"{name}_failures.jsonl").write_text("{}\n")
    Path("tasks.jsonl").write_text('{"responses_create_params": {"input": "?"}}\n' * 3)
    Path("questions.jsonl").write_text('{"q": "?"}\n')
    Path("prompt.yaml").write_text('user: "{q}"\n')
    Path("folder").mkdir()
    Path("folder/notes").write_text("mine")
    os.mkfifo("pipe.jsonl")


def state() -> dict[str, tuple[int, bytes | None]]:
    return {
        str(path): (stat.S_IFMT(path.lstat().st_mode), path.read_bytes() if path.is_file() else None)
        for path in sorted(Path().rglob("*"))
        if not path.name.endswith(".sqlite")
    }


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("folder", "is a folder"),
        ("pipe.jsonl", "not a file but a device or a pipe"),
        ("tasks.jsonl/below.jsonl", "is a file"),
        ("{input}", "is one of the inputs"),
        ("other.jsonl", "holds the rollouts of a run"),
        ("other_failures.jsonl", "the failures file of a run"),
    ],
)
def test_an_output_that_would_lose_something_is_refused(run, command, output, reason):
    before = state()
    words = [word.format(output.format(input=INPUT[command])) for word in COMMANDS[command]]
    ran = run(*words)
    assert ran.code == 1
    assert reason in ran.err or (command, output) == ("export", "folder")  # which an export has its own words for
    assert "Traceback" not in ran.err
    assert state() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_what_was_made_before_is_made_again(run, command):
    words = [word.format("made.jsonl") for word in COMMANDS[command]]
    assert run(*words).code == 0
    assert run(*words).code == 0


MERGE = ("ng_aggregate_rollouts", "+input_glob=run.jsonl", "+output_jsonl_fpath={}")


@pytest.mark.parametrize("words", [*COMMANDS.values(), MERGE], ids=[*COMMANDS, "merge"])
def test_a_disk_that_takes_no_more_is_an_error_with_a_hint(words, workspace):
    before = state()
    names = [word.format("made.jsonl") for word in words]
    program = "import sys; from nemo_gym.cli.main import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run(
        [sys.executable, "-B", "-c", program, *names],  # -B: the limit would also cut off compiled modules
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)),  # "File too large" for every write
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran.stderr
    assert "error: " in ran.stderr
    assert "hint: " in ran.stderr
    assert state() == before


def test_an_export_without_a_suffix_is_a_folder_and_replaces_no_file(run):
    Path("notes").write_text("mine")
    for output in ("notes", "pipe.jsonl/"):
        before = state()
        ran = run("ng_export", "+input=run.jsonl", "+format=sft", f"+output={output}", "+overwrite=true")
        assert (ran.code, "Traceback" in ran.err) == (1, False)
        assert state() == before


def test_the_only_input_can_not_be_the_merged_output(run):
    ran = run("ng_aggregate_rollouts", "+input_glob=run.jsonl", "+output_jsonl_fpath=run.jsonl")
    assert ran.code == 1
    assert "the output run.jsonl is the only input" in ran.err
