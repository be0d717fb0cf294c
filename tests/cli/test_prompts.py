import json
from pathlib import Path

import pytest

PARAMETERS = ("+input_jsonl_fpath=in.jsonl", "+prompt_config=prompt.yaml", "+output_jsonl_fpath=deep/out.jsonl")


@pytest.fixture(autouse=True)
def files(workspace):
    Path("in.jsonl").write_text('{"question": "Why?"}\n')
    Path("prompt.yaml").write_text("user: 'Answer: {question}'\n")


def test_the_template_is_filled_for_every_row(run):
    ran = run("ng_materialize_prompts", *PARAMETERS)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "Wrote 1 rows to deep/out.jsonl\n"
    row = json.loads(Path("deep/out.jsonl").read_text())
    assert row["responses_create_params"]["input"] == [{"role": "user", "content": "Answer: Why?"}]


def test_flags_name_the_same_files(run):
    ran = run("ng", "dataset", "render", "-i", "in.jsonl", "--prompt-config", "prompt.yaml", "-o", "out.jsonl")
    assert ran.code == 0
    assert Path("out.jsonl").exists()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("prompt.yaml", "system: only this\n", "error: prompt.yaml is not a prompt template (user: Field required)"),
        ("prompt.yaml", "just text\n", "error: prompt.yaml is not a prompt template (the file: "),
        ("prompt.yaml", "user: [\n", "is not valid YAML"),
        ("prompt.yaml", "user: '{answer}'\n", "names the field 'answer'"),
        ("in.jsonl", "not json\n", "line 1 is not a task"),
        ("in.jsonl", '{"responses_create_params": {"input": "x"}}\n', "rows [0] (counted from 0) already have"),
    ],
)
def test_what_cannot_be_filled_is_explained_and_nothing_is_written(run, file, text, message):
    Path(file).write_text(text)
    ran = run("ng_materialize_prompts", *PARAMETERS)
    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err
    assert not Path("deep/out.jsonl").exists()


def test_a_missing_file_is_an_error(run):
    Path("in.jsonl").unlink()
    ran = run("ng_materialize_prompts", *PARAMETERS)
    assert ran.code == 1
    assert "error: input file 'in.jsonl' does not exist" in ran.err
