"""Names where files could be given: ``ng env validate calculator``, ``ng env prefetch gsm8k``; and what init writes."""

import json
from pathlib import Path

import pytest


def test_an_environment_or_a_benchmark_is_validated_by_name(run):
    ran = run("ng", "env", "validate", "calculator", "--json")
    report = json.loads(ran.out)
    assert (ran.code, report["valid"]) == (0, True)
    assert report["servers"] == ["calculator", "calculator_simple_agent"]
    # where the packages of gsm8k are missing, a warning follows: it gets a virtual environment of its own
    assert run("ng", "env", "validate", "gsm8k").out.startswith("✓ Config is valid.\n")


def test_what_is_wrong_is_told_as_json_too(run):
    Path("bad.yaml").write_text(
        json.dumps({"x": {"resources_servers": {"nobody": {"entrypoint": "app.py", "domain": "other"}}}})
    )
    ran = run("ng_validate", "+config_paths=[bad.yaml]", "+json=true")
    assert ran.code == 1
    [finding] = json.loads(ran.out)["findings"]
    assert (finding["severity"], finding["place"]) == ("error", "x")


def test_an_unknown_name_is_a_slip(run):
    ran = run("ng", "env", "validate", "calculater")
    assert ran.code == 2
    assert "no environment or benchmark is called calculater" in ran.err
    assert "did you mean calculator?" in ran.err


def test_prefetching_makes_what_is_missing_and_nothing_else(run):
    assert run("ng", "env", "init", "--benchmark", "mine").code == 0
    ran = run("ng", "env", "prefetch", "mine")
    assert (ran.code, ran.out) == (0, "benchmarks/mine/data/mine_benchmark.jsonl\n")
    made = Path("benchmarks/mine/data/mine_benchmark.jsonl")
    made.write_text("kept\n")
    assert run("ng_prefetch", "mine").code == 0
    assert made.read_text() == "kept\n"


@pytest.mark.parametrize("kind", ["environment", "benchmark"])
def test_a_new_environment_or_benchmark_is_whole(run, mock_model, kind):
    assert run("ng", "env", "init", f"--{kind}", f"new_{kind}").code == 0
    assert run("ng", "env", "validate", f"--{kind}", f"new_{kind}").code == 0
    if kind == "benchmark":
        assert run("ng", "eval", "prepare", "--benchmark", "new_benchmark").code == 0
    ran = run(
        *("ng_e2e_collect_rollouts", "--model-type", "openai_model", f"--{kind}", f"new_{kind}"),
        *("--split", "example" if kind == "environment" else "benchmark", "--output", "results/new.jsonl"),
        *("--model-url", mock_model.base_url, "--model-api-key", "none", "--model", "mock", "--disable-aggregation"),
    )
    assert ran.code == 0, ran.err
    assert len(Path("results/new.jsonl").read_text().splitlines()) == 5
    assert not Path("results/new_aggregate_metrics.json").exists()


def test_templates_are_for_servers_alone(run):
    ran = run("ng", "env", "init", "--benchmark", "mine", "--template", "tools")
    assert ran.code == 2
    assert "+template is for resources servers" in ran.err
