"""Preparation from configuration to files: scope, checks before writing, conflicts, prompts."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.data.agent_datasets import InvalidSamplesError
from nemo_gym.data.prepare import MissingDatasetError
from nemo_gym.errors import ConfigError
from nemo_gym.train_data_utils import TrainDataProcessor


def row(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **fields}


def write(path: str, rows: list[Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows))


def dataset(path: str, kind: str = "train", **fields: Any) -> dict[str, Any]:
    license_ = {"license": "MIT"} if kind in {"train", "validation"} else {}
    return {"name": Path(path).stem, "type": kind, "jsonl_fpath": path, **license_, **fields}


def config(*datasets: dict[str, Any], mode: str = "train_preparation", **settings: Any) -> dict[str, Any]:
    agent = {"entrypoint": "app.py", "datasets": list(datasets)}
    servers = {"ag": {"responses_api_agents": {"simple_agent": agent}}, "rs": {"resources_servers": {"x": {}}}}
    return {"output_dirpath": "out", "mode": mode, **servers, **settings}


def run(*datasets: dict[str, Any], **settings: Any):
    return TrainDataProcessor().run(config(*datasets, **settings))


def rows_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_result_says_what_was_written() -> None:
    write("d/a.jsonl", [row("a"), "", row("b")])
    done = run(dataset("d/a.jsonl", num_repeats=2))
    assert done.files["train"].rows == 4
    assert rows_of(str(done.files["train"].tasks))[0]["agent_ref"] == {"type": "responses_api_agents", "name": "ag"}
    assert done.files["train"].metrics == Path("out/train_metrics.json")
    assert done.skipped == []


def test_without_datasets_nothing_is_written() -> None:
    assert run().files == {}
    assert list(Path().iterdir()) == []


def test_an_agent_of_its_own_is_replaced() -> None:
    write("d/a.jsonl", [row(agent_ref={"name": "other"})])
    run(dataset("d/a.jsonl"))
    assert rows_of("out/train.jsonl")[0]["agent_ref"]["name"] == "ag"


def test_numbers_and_texts_come_through_unchanged() -> None:
    write("d/a.jsonl", [row(big=2**80, label="é\u2028", small=1e-300, nested={"a": [None, True]})])
    run(dataset("d/a.jsonl"))
    (prepared,) = rows_of("out/train.jsonl")
    assert {key: prepared[key] for key in ("big", "label", "small", "nested")} == {
        "big": 2**80, "label": "é\u2028", "small": 1e-300, "nested": {"a": [None, True]},
    }  # fmt: skip


def test_invalid_samples_are_reported_with_file_line_and_reason_before_anything_is_written() -> None:
    write("d/a.jsonl", [row(), {"nothing": 1}, "{torn", "[]", row() | {"x": 1}, '{"x": NaN}', row(y=float("inf"))])
    bad = {"responses_create_params": {"input": [], "seed": 4}}
    write("d/b.jsonl", [bad, row()])
    with pytest.raises(InvalidSamplesError) as caught:
        run(dataset("d/a.jsonl"), dataset("d/b.jsonl"))
    text = str(caught.value)
    assert "6 invalid samples" in text
    for part in (
        "d/a.jsonl:2: has no responses_create_params",
        "d/a.jsonl:3: not JSON",
        "d/a.jsonl:4: must be an object, not list",
        "d/a.jsonl:6: not JSON (NaN is not a JSON number)",
        "d/a.jsonl:7: not JSON (Infinity is not a JSON number)",
        "d/b.jsonl:1: responses_create_params.seed",
    ):
        assert part in text
    assert "skip_invalid" in (caught.value.hint or "")
    assert sorted(map(str, Path().rglob("*.json*"))) == ["d/a.jsonl", "d/b.jsonl"]


def test_invalid_samples_can_be_left_out() -> None:
    write("d/a.jsonl", [{"nothing": 1}, row("kept")])
    done = run(dataset("d/a.jsonl"), skip_invalid=True)
    assert [str(sample) for sample in done.skipped] == ["d/a.jsonl:1: has no responses_create_params"]
    assert len(rows_of("out/train.jsonl")) == 1
    assert json.loads(Path("out/train_metrics.json").read_text())["Number of examples"] == 1


def test_many_invalid_samples_are_not_all_listed() -> None:
    write("d/a.jsonl", ["{"] * 50)
    with pytest.raises(InvalidSamplesError, match="and 30 more"):
        run(dataset("d/a.jsonl"))


def test_a_benchmark_without_template_may_leave_the_input_open() -> None:
    write("d/b.jsonl", [{"question": "x"}, {"question": "y", "responses_create_params": {"temperature": 0.5}}])
    run(dataset("d/b.jsonl", "benchmark", prepare_script="p.py", prompt_config=None))
    assert len(rows_of("out/benchmark.jsonl")) == 2
    write("d/b.jsonl", [{"question": "x", "responses_create_params": {"nonsense": 1}}])
    with pytest.raises(InvalidSamplesError, match="nonsense"):
        run(dataset("d/b.jsonl", "benchmark", prepare_script="p.py", prompt_config=None))


def test_a_row_that_the_template_cannot_fill_is_invalid() -> None:
    write("d/b.jsonl", [{"question": "x"}, {"other": "y"}])
    Path("p.yaml").write_text("user: 'Q {question}'\n")
    with pytest.raises(InvalidSamplesError, match=r"d/b.jsonl:2: .*'question'"):
        run(dataset("d/b.jsonl", "benchmark", prepare_script="p.py", prompt_config="p.yaml"))


def test_changed_data_is_a_conflict_that_shows_the_difference() -> None:
    write("d/a.jsonl", [row(level=1)])
    run(dataset("d/a.jsonl"))
    before = Path("out/train.jsonl").read_text()
    write("d/a.jsonl", [row(level=1), row(level=2)])
    with pytest.raises(ValueError, match=r"Number of examples: was 1, now 2") as caught:
        run(dataset("d/a.jsonl"))
    assert isinstance(caught.value, ConfigError)
    assert json.loads(Path("d/a_metrics_conflict.json").read_text())["Number of examples"] == 2
    assert Path("out/train.jsonl").read_text() == before
    run(dataset("d/a.jsonl"), overwrite_metrics_conflicts=True)
    assert json.loads(Path("d/a_metrics_conflict.json").read_text())["Number of examples"] == 2, "as a record of it"
    run(dataset("d/a.jsonl"))
    assert json.loads(Path("d/a_metrics.json").read_text())["Number of examples"] == 2
    assert not Path("d/a_metrics_conflict.json").exists()


def test_the_same_data_again_is_no_conflict() -> None:
    write("d/a.jsonl", [row(level=1.23456)])
    run(dataset("d/a.jsonl"))
    run(dataset("d/a.jsonl"))
    metrics = json.loads(Path("d/a_metrics.json").read_text())
    Path("d/a_metrics.json").write_text(json.dumps({key: metrics[key] for key in list(metrics)[:5]}))
    run(dataset("d/a.jsonl"))


def test_metrics_that_cannot_be_read_are_named() -> None:
    write("d/a.jsonl", [row()])
    Path("d/a_metrics.json").write_text("{")
    with pytest.raises(ConfigError, match=r"d/a_metrics.json: not JSON"):
        run(dataset("d/a.jsonl"))


def test_all_missing_data_is_listed() -> None:
    write("d/a.jsonl", [row()])
    with pytest.raises(MissingDatasetError, match=r"(?s)'x' of agent 'ag' \(d/x.jsonl\).*d/y.jsonl") as caught:
        run(dataset("d/a.jsonl"), dataset("d/x.jsonl"), dataset("d/y.jsonl", "validation"))
    assert "should_download" in (caught.value.hint or "")
    with pytest.raises(MissingDatasetError):
        run(dataset("d/x.jsonl"), should_download=True)


def test_examples_are_never_downloaded() -> None:
    source = {"type": "huggingface", "repo_id": "r", "artifact_fpath": "x.jsonl"}
    with pytest.raises(MissingDatasetError):
        run(dataset("d/e.jsonl", "example", source=source), mode="example_validation", should_download=True)


def test_a_training_set_needs_a_licence() -> None:
    with pytest.raises(ConfigError, match=r"agent 'ag' is not valid: .*license"):
        run({"name": "a", "type": "train", "jsonl_fpath": "d/a.jsonl"})


@pytest.mark.parametrize("settings", [{"mode": "other"}, {"output_dirpath": None}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mode|output_dirpath"):
        run(**settings)
