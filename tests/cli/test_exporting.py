"""``ng_export`` as a user types it."""

import json
from pathlib import Path

ITEM = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Four."}]}


def save(name: str, *rewards: float, model: str = "tiny") -> None:
    rows = [
        {
            "_ng_task_index": 0,
            "_ng_rollout_index": number,
            "responses_create_params": {"input": "2 + 2?"},
            "response": {"model": model, "output": [ITEM], "id": f"{name}{number}"},
            "reward": reward,
            "agent_ref": {"name": "adder"},
        }
        for number, reward in enumerate(rewards)
    ]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_output_is_named_on_stdout_and_the_report_is_on_stderr(run):
    save("a.jsonl", 0.0, 1.0)
    save("b.jsonl", 0.5)
    ran = run("ng_export", "+input='?.jsonl'", "+format=sft", "+output=o/sft.jsonl", "+min_reward=0.5")
    assert ran.code == 0, ran.err
    assert ran.out == "o/sft.jsonl\n"
    assert "read: 3 lines of 2 files" in ran.err
    assert "1  min_reward=0.5 (first: a.jsonl:1)" in ran.err
    assert "written: 2 rows from 2 rollouts of 1 task\n" in ran.err
    assert json.loads(Path("o/sft.jsonl").read_text().splitlines()[0])["messages"][1]["content"] == "Four."


def test_flags_and_the_tree_of_commands(run):
    save("a.jsonl", 0.0, 1.0)
    ran = run("ng", "dataset", "export", "-i", "a.jsonl", "-o", "o.jsonl", "--format", "dpo", "--filter", "reward >= 0")
    assert ran.code == 0, ran.err
    assert list(json.loads(Path("o.jsonl").read_text())) == ["prompt", "chosen", "rejected"]


def test_the_preset_has_the_rows_of_the_reference(run):
    save("a.jsonl", 0.0, 1.0)
    ran = run("ng_export", "+input=a.jsonl", "+format=dpo", "+output=o.jsonl", "+preset=nemo")
    assert ran.code == 0, ran.err
    row = json.loads(Path("o.jsonl").read_text())
    assert row == {"prompt": "2 + 2?", "chosen": [ITEM], "rejected": [ITEM], "quality_difference": 1.0}
    refused = run("ng_export", "+input=a.jsonl", "+format=sft", "+output=p.jsonl", "+preset=nemo")
    assert refused.code == 1
    assert "no rollout is left of 2" in refused.err
    assert "by “success=true”" in refused.err


def test_mistakes_are_told_before_anything_is_written(run):
    save("a.jsonl", 1.0)
    save("b.jsonl", 1.0, model="large")
    common = ("+format=sft", "+output=o.jsonl")
    for arguments, code, message in (
        (("+input=missing.jsonl", *common), 1, "missing.jsonl: no such file"),
        (("+input='none*.jsonl'", *common), 1, "no file matches none*.jsonl"),
        (("+input=.", *common), 1, "is a folder"),
        (("+input='?.jsonl'", *common), 1, "2 models: tiny (1), large (1)"),
        (("+input=a.jsonl", *common, "+min_reward=2"), 1, "1 by “min_reward=2” (first: a.jsonl:1)"),
        (("+input=a.jsonl", *common, "+filter='reward >'"), 1, "filter"),
        (("+input=a.jsonl", "+format=parrot", "+output=o.jsonl"), 2, "format"),
        (("+input=a.jsonl", *common, "+min_rewards=1"), 2, "min_reward"),
        (("+input=a.jsonl", "+format=atif", "+output=o.parquet"), 1, "atif has no form for tables"),
        (("+input=a.jsonl", "+format=sft", "+output=o.parquet", "+arguments=object"), 2, "needs a .jsonl output"),
    ):
        ran = run("ng_export", *arguments)
        assert (ran.code, message in ran.err) == (code, True), ran.err
        assert "Traceback" not in ran.err
    assert sorted(path.name for path in Path().iterdir()) == ["a.jsonl", "b.jsonl"]


def test_files_can_be_typed_bare(run):
    save("a.jsonl", 1.0)
    save("b.jsonl", 1.0)
    assert run("ng_export", "a.jsonl", "b.jsonl", "+format=sft", "+output=sft.jsonl").code == 0
    assert len(Path("sft.jsonl").read_text().splitlines()) == 2


def test_a_filter_with_a_misspelt_field_is_told_from_one_that_nothing_passes(run):
    save("a.jsonl", 0.0, 1.0)
    command = ("ng_export", "+input=a.jsonl", "+format=sft", "+output=sft.jsonl")
    ran = run(*command, '+filter="rewrd > 0"')
    assert (ran.code, "no column 'rewrd'" in ran.err, "'reward'" in ran.err) == (1, True, True)
    ran = run(*command, '+filter="reward > 1"')
    assert (ran.code, "no rollout is left of 2" in ran.err) == (1, True)
    assert not Path("sft.jsonl").exists()
