import json
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.config_types import BenchmarkDatasetConfig, DatasetConfig, GitlabDatasetSource, HuggingFaceDatasetSource

ROW = {"name": "d", "type": "train", "jsonl_fpath": "d.jsonl", "license": "MIT"}


def test_the_dump_has_the_order_that_metrics_files_show() -> None:
    assert json.loads(DatasetConfig.model_validate(ROW).model_dump_json()) == {
        "name": "d",
        "type": "train",
        "jsonl_fpath": "d.jsonl",
        "num_repeats": 1,
        "source": None,
        "gitlab_identifier": None,
        "huggingface_identifier": None,
        "license": "MIT",
    }


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_training_data_needs_a_licence(kind: str) -> None:
    with pytest.raises(ValidationError, match="needs a 'license'"):
        DatasetConfig.model_validate({"name": "d", "type": kind, "jsonl_fpath": "d.jsonl"})


def test_examples_need_no_licence() -> None:
    assert DatasetConfig.model_validate({"name": "d", "type": "example", "jsonl_fpath": "d.jsonl"}).license is None


@pytest.mark.parametrize("change", [{"license": "mine"}, {"num_repeats": 0}, {"type": "test"}])
def test_wrong_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DatasetConfig.model_validate({**ROW, **change})


def test_a_source_is_mirrored_into_the_older_field() -> None:
    gitlab = {"dataset_name": "n", "version": "0.0.1", "artifact_fpath": "f"}
    dataset = DatasetConfig.model_validate({**ROW, "source": {"type": "gitlab", **gitlab}})
    assert dataset.gitlab_identifier is not None
    assert dataset.gitlab_identifier.model_dump() == gitlab
    assert dataset.huggingface_identifier is None
    hub = DatasetConfig.model_validate({**ROW, "source": {"type": "huggingface", "repo_id": "o/n"}})
    assert hub.huggingface_identifier is not None
    assert hub.huggingface_identifier.repo_id == "o/n"


def test_an_older_field_is_mirrored_into_the_source_with_a_warning() -> None:
    gitlab = {"dataset_name": "n", "version": "0.0.1", "artifact_fpath": "f"}
    with pytest.warns(DeprecationWarning, match="gitlab_identifier"):
        dataset = DatasetConfig.model_validate({**ROW, "gitlab_identifier": gitlab})
    assert dataset.source == GitlabDatasetSource(type="gitlab", **gitlab)
    with pytest.warns(DeprecationWarning, match="huggingface_identifier"):
        dataset = DatasetConfig.model_validate({**ROW, "huggingface_identifier": {"repo_id": "o/n"}})
    assert dataset.source == HuggingFaceDatasetSource(type="huggingface", repo_id="o/n")


def test_both_older_fields_leave_the_choice_open() -> None:
    gitlab = {"dataset_name": "n", "version": "0.0.1", "artifact_fpath": "f"}
    with pytest.warns(DeprecationWarning, match="identifier"):
        dataset = DatasetConfig.model_validate(
            {**ROW, "gitlab_identifier": gitlab, "huggingface_identifier": {"repo_id": "o/n"}}
        )
    assert dataset.source is None


def test_a_dump_can_be_read_again() -> None:
    dataset = DatasetConfig.model_validate({**ROW, "source": {"type": "huggingface", "repo_id": "o/n"}})
    assert DatasetConfig.model_validate(dataset.model_dump()) == dataset


def test_old_and_new_fields_that_disagree_are_refused() -> None:
    source = {"type": "huggingface", "repo_id": "o/n"}
    with pytest.raises(ValidationError, match="either 'source' or 'huggingface_identifier'"):
        DatasetConfig.model_validate({**ROW, "source": source, "huggingface_identifier": {"repo_id": "other"}})


def test_a_benchmark_needs_its_script_and_prompt_key() -> None:
    benchmark = {"name": "b", "type": "benchmark", "jsonl_fpath": "b.jsonl", "prepare_script": "p.py"}
    with pytest.raises(ValidationError, match="prompt_config"):
        BenchmarkDatasetConfig.model_validate(benchmark)
    assert list(BenchmarkDatasetConfig.model_validate({**benchmark, "prompt_config": None}).model_dump()) == [
        "name",
        "type",
        "jsonl_fpath",
        "prepare_script",
        "prompt_config",
        "num_repeats",
    ]
