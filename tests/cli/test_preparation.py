import json
from pathlib import Path

import pytest

CONFIG = """\
my_resources:
  resources_servers:
    any: {entrypoint: app.py, domain: other}
my_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: my_resources}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: example, type: example, jsonl_fpath: data/example.jsonl}
"""
PARAMETERS = ("+config_paths=[gym.yaml]", "+output_dirpath=prepared")
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Hi"}]}}


@pytest.fixture(autouse=True)
def files(workspace):
    (workspace / "gym.yaml").write_text(CONFIG)
    (workspace / "data").mkdir()
    (workspace / "data/example.jsonl").write_text(f"{json.dumps(ROW)}\n" * 2)


def test_the_datasets_of_the_agents_are_collated(run):
    ran = run("ng_prepare_data", *PARAMETERS, "+mode=example_validation")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "Type     Rows  Tasks                   Metrics",
        "-------  ----  ----------------------  -----------------------------",
        "example  2     prepared/example.jsonl  prepared/example_metrics.json",
    ]
    rows = [json.loads(line) for line in Path("prepared/example.jsonl").read_text().splitlines()]
    assert rows == [{**ROW, "agent_ref": {"type": "responses_api_agents", "name": "my_agent"}}] * 2


def test_flags_name_the_same_parameters(run):
    ran = run(
        "ng", "dataset", "collate", "--config", "gym.yaml", "--mode", "example_validation", "--output-dir", "there"
    )
    assert ran.code == 0, ran.err
    assert Path("there/example.jsonl").exists()


def test_missing_and_invalid_parameters_are_usage_errors(run):
    ran = run("ng_prepare_data", "+config_paths=[gym.yaml]", "+mode=wrong")
    assert ran.code == 2
    assert "error: missing parameters: output_dirpath\ninvalid parameters:\n" in ran.err
    assert "  mode (expected train_preparation | example_validation): " in ran.err


def test_a_missing_dataset_is_a_configuration_error(run):
    Path("data/example.jsonl").unlink()
    ran = run("ng_prepare_data", *PARAMETERS, "+mode=example_validation")
    assert (ran.code, ran.out) == (1, "")
    assert "error: missing data:" in ran.err
    assert "data/example.jsonl" in ran.err


def test_invalid_samples_are_refused_or_left_out(run):
    Path("data/example.jsonl").write_text(f"{json.dumps(ROW)}\nnot json\n")
    refused = run("ng_prepare_data", *PARAMETERS, "+mode=example_validation")
    assert refused.code == 1
    assert "data/example.jsonl:2" in refused.err
    skipped = run("ng_prepare_data", *PARAMETERS, "+mode=example_validation", "+skip_invalid=true")
    assert skipped.code == 0
    assert "warning: 1 invalid samples were left out" in skipped.err


def test_that_there_is_nothing_to_prepare_is_said(run):
    ran = run("ng_prepare_data", *PARAMETERS, "+mode=train_preparation")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == (
        "warning: no configured agent has a dataset for mode=train_preparation, so nothing was written\n"
    )
